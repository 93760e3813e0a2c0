"""The base of distillation methods: old heads are pulled to the outputs they had before a task.

The pull has to be zero as long as no weight has moved. So both outputs are of the same batch, where
BatchNorm uses its statistics, and of the same units, where dropout leaves some out. In such a
network, or where images are augmented, the outputs to keep are computed in every step by a copy of
the network as it was before the task, which draws the same masks. In others, where the output for
an image is always the same, they are recorded once before the task, which is equivalent and costs
nothing in a step.
"""

import copy
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional

from classgrad.methods.base import Method
from classgrad.networks.layers import Dropout, TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import BATCH
from classgrad.tasks import Split, Task, Transform, batches


class Distilled(Method):
    """Learn a task while the outputs of old heads are pulled to earlier ones; they train too."""

    revisits: ClassVar[bool] = True

    targets: Literal["step", "task"] = Field(
        default="step",
        description="outputs to keep: computed in every step on its batch, if that matters; or "
        "once, before the task",
    )

    _teacher: Network | None = PrivateAttr(default=None)  # the network as it was before the task

    def needs_teacher(self, net: Network, task: Task) -> bool:
        """Tell whether the outputs to keep are computed in every step."""
        return self.targets == "step" and (task.augment is not None or depends_on_batch(net))

    def keep_teacher(self, net: Network) -> None:
        """Keep a copy of the network as it is now."""
        self._teacher = copy.deepcopy(net).requires_grad_(False).train()
        self._teacher.set_generator(torch.Generator())

    @torch.no_grad()
    def teacher_logits(self, net: Network, x: Tensor, tasks: Sequence[int]) -> Tensor | None:
        """Return the earlier outputs of these tasks' heads for the inputs of `net`'s next pass.

        They are concatenated; None without a copy of the earlier network.
        """
        if self._teacher is None:
            return None
        for own, other in zip(dropouts(self._teacher), dropouts(net), strict=True):
            if own.generator is not None and other.generator is not None:
                own.generator.set_state(other.generator.get_state())
        return torch.cat(logits_of(self._teacher, x, tasks), dim=1)

    def state_dict(self) -> dict[str, Any]:
        """Return the network as it was before the task, if a copy is kept."""
        return {"before": None if self._teacher is None else self._teacher.state_dict()}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state, for a network with the same heads."""
        self._teacher = None
        if state.get("before") is not None:  # older states have none
            self.keep_teacher(net)
            assert self._teacher is not None
            self._teacher.load_state_dict(state["before"])


def depends_on_batch(net: Network) -> bool:
    """Tell whether what an old head says of an image in a step depends on its batch or on chance.

    Where embeddings depend on the task, old heads are computed in evaluation mode: see `logits_of`.
    """
    if any(isinstance(m, TaskBatchNorm) and m.statistics == "batch" for m in net.modules()):
        return True
    random = any(dropout.share > 0 for dropout in dropouts(net))
    foreign = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    return not net.task_dependent and (random or foreign)


def dropouts(net: Network) -> list[Dropout]:
    """Return the dropout layers of a network."""
    return [module for module in net.modules() if isinstance(module, Dropout)]


def logits_of(
    net: Network, x: Tensor, tasks: Sequence[int], features: Tensor | None = None
) -> list[Tensor]:
    """Return the outputs of the heads of these tasks.

    `features` are embeddings of `x`, if they are known already; they are used where embeddings do
    not depend on the task. Where they do, every head gets the embeddings of its own task, in
    evaluation mode, so with stored statistics, as in predictions: the loss is zero as long as no
    weight has moved.
    """
    if net.task_dependent:
        with net.evaluating():
            return [net.heads[task](net.embed(x, task)) for task in tasks]
    if features is None:
        features = net.embed(x, tasks[0])
    return [net.heads[task](features) for task in tasks]


def in_batches(
    net: Network,
    split: Split,
    transform: Transform,
    forward: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Return the outputs of `forward` for a split, in its order, in evaluation mode.

    The batches are shuffled, as in training: with BatchNorm on batch statistics the output of a
    sample depends on its batch, and many datasets are sorted by class.
    """
    dtype = next(net.parameters()).dtype
    order, rows = [], []
    with net.evaluating(), torch.no_grad():
        for index in batches(len(split), BATCH, generator):
            order.append(index)
            rows.append(forward(transform(split.unit_images(index, dtype))))
    return torch.cat(rows)[torch.cat(order).argsort()]


def record(
    net: Network,
    split: Split,
    transform: Transform,
    tasks: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Return the current outputs of these tasks' heads for a split, concatenated."""

    def forward(x: Tensor) -> Tensor:
        return torch.cat(logits_of(net, x, tasks), dim=1)

    return in_batches(net, split, transform, forward, generator)


def drift(logits: Tensor, recorded: Tensor) -> Tensor:
    """Return the loss with the recorded outputs as targets, minus its value when recorded."""
    targets = recorded.sigmoid()
    return cross_entropies(logits, targets) - cross_entropies(recorded, targets)


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of (n x outputs), summed over outputs, averaged over rows."""
    total = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return total / len(logits)
