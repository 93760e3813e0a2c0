"""A-GEM, Averaged Gradient Episodic Memory (Chaudhry et al., ICLR 2019).

The memory holds samples of finished tasks. With g the gradient of the current batch and g_ref that
of a batch from the memory, over the trunk and all heads, a step must not raise the memory's loss:
if gᵀ g_ref < 0, g becomes g - (gᵀ g_ref / g_refᵀ g_ref) g_ref (Eq. 11), else it stays as it is.
g_ref is zero for the current head, which so keeps its gradient; g is zero for heads of finished
tasks, which so move along g_ref alone. The step that the optimiser makes of it, with momentum for
example, is projected in the same way (`classgrad.methods.replay.base`).

Differences from the paper and the released code: the memory has `memory` samples in all, an equal
share for each task so far, drawn at random with balanced classes when the task ends (there: a
number per class for the whole stream, the last ones seen); batches from it are drawn task by task
(`classgrad.methods.replay.base`).
"""

from typing import ClassVar

from torch import Tensor

from classgrad.methods.base import Step
from classgrad.methods.replay.base import Episodic, Gradient
from classgrad.networks.network import Network


class AGEM(Episodic):
    """Remove the part of a gradient that would raise the mean loss on the memory."""

    name: ClassVar[str] = "agem"
    summary: ClassVar[str] = "A-GEM: gradients that spare the memory's mean loss (ICLR 2019)"
    parallel: ClassVar[bool] = True

    def references(self, net: Network, step: Step) -> list[Gradient]:
        """Return g_ref, the gradient of the loss of a batch from the memory."""
        parts = self.draw(step)
        return (
            [self.gradient_of(self.batch_loss(net, parts, step.generator), step)] if parts else []
        )

    def correction(self, along: Tensor, square: Tensor) -> Tensor | None:
        """Project the gradient if it points against that of the memory."""
        return spare(along, square)

    def closest(self, along: Tensor, square: Tensor) -> Tensor | None:
        """Project a direction in the same way."""
        return spare(along, square)


def spare(along: Tensor, square: Tensor) -> Tensor | None:
    """Return -gᵀ g_ref / g_refᵀ g_ref (1) from the two products if gᵀ g_ref < 0, else None."""
    return None if along >= 0 or square == 0 else -along / square[0]
