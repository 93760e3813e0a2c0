"""Multitask: one trunk learns all tasks at once; the upper bound the paper compares with.

Each batch has samples of one task; the batches of all tasks are in random order. Mixed batches
would have statistics that no test batch has, since BatchNorm at test time sees one task at a time
(implementations differ here; the paper does not say).

An epoch is one pass over the data of all tasks. With the epochs of one task the joint network is
not yet an upper bound: a head has as many steps as under finetuning, but in between the trunk moves
for the other tasks, and no task starts from features that were learnt for an earlier one. So
training has `epoch_factor` times as many epochs, and a schedule as long.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import Field, PrivateAttr

from classgrad.methods.base import Fit, Method
from classgrad.networks.network import Network
from classgrad.tasks import Task


class Multitask(Method):
    """Wait for the last task, then train on all of them together."""

    name: ClassVar[str] = "multitask"
    summary: ClassVar[str] = "all tasks at once with all data (the upper bound)"
    joint: ClassVar[bool] = True
    rehearsal_free: ClassVar[bool] = False
    parallel: ClassVar[bool] = True

    epoch_factor: int = Field(
        default=3, ge=1, description="epochs over all tasks, in multiples of those of one task"
    )

    _stream: Sequence[Task] = PrivateAttr(default=())
    _seen: int = PrivateAttr(default=0)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Keep the stream, to know which task is the last one."""
        self._stream = stream
        return net

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Wait for the last task; then train on all."""
        self._seen = task.id + 1
        if self._seen == len(self._stream):
            fit(self._stream, factor=self.epoch_factor)

    def memory_bytes(self) -> int:
        """Return the bytes of all training data so far, which this method needs at once."""
        seen = self._stream[: self._seen]
        return sum(t.train.images.nbytes + t.train.labels.nbytes for t in seen)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of tasks seen; their data come from the stream again."""
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        self._seen = state["seen"]
