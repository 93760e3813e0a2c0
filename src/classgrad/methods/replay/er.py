"""Experience replay with a reservoir (Chaudhry et al., 2019), "ER_Res" in tables.

Every step learns from the current batch B and from a batch B_M of the memory M together: the loss
is the mean cross-entropy over the samples of both, (|B| L(B) + |B_M| L(B_M)) / (|B| + |B_M|). Then
the samples of B are offered to M by reservoir sampling: the n-th sample ever seen, from 0, goes to
slot n of M while there are free ones, else to slot j ~ U{0..n} if j < |M|. So M is at any time a
uniform sample of all that was seen.

Differences from the paper: batches from the memory are drawn task by task
(`classgrad.methods.replay.base`). A task lasts many epochs here, so samples are offered in its
first epoch only: each is offered once.

Differences from the released code: only samples of finished tasks are replayed
(`replay_current=True` replays those of the current task too); j is drawn from 0..n, not 0..n-1.
"""

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from classgrad.methods.base import Step
from classgrad.methods.replay.base import Rehearsal
from classgrad.methods.replay.buffer import Reservoir
from classgrad.networks.network import Network
from classgrad.tasks import Split


class ER(Rehearsal):
    """Learn each batch together with one from a uniform sample of the past."""

    name: ClassVar[str] = "er"
    summary: ClassVar[str] = "experience replay from a reservoir, ER_Res (2019)"
    parallel: ClassVar[bool] = True
    bytes_per_sample: ClassVar[int] = 8  # its slot in the reservoir

    replay_current: bool = Field(
        default=False,
        description="replay the current task's samples too, as the released code does",
    )

    def empty_memory(self) -> Reservoir:
        """Return an empty reservoir."""
        return Reservoir(self._size.samples)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the mean loss over the current batch and one from the memory."""
        current = super().loss(net, step)
        parts = self.draw(step, without=None if self.replay_current else step.task.id)
        if not parts:
            return current
        # More samples than asked for, drawn for BatchNorm's sake, do not count for more.
        drawn = sum(len(part.index) for part in parts)
        new, replayed = len(step.batch), min(drawn, self.draw_count(step))
        # The memory's loss already has its shard weight; the sum is multiplied by the batch's.
        memory_loss = self.batch_loss(net, parts, step.generator) / step.shard.weight
        return (new * current + replayed * memory_loss) / (new + replayed)

    def after_step(self, net: Network, step: Step) -> None:
        """Offer the batch to the reservoir, in the first epoch."""
        if step.epoch > 0:
            return
        train = step.task.train
        samples = Split(train.images[step.batch], train.labels[step.batch])
        places = self._memory.draw_places(len(samples), step.generator)
        self._memory.insert(step.task.id, samples, places)
