"""Multitask: one trunk learns all tasks at once; the upper bound the paper compares with.

Batches hold one task each, in random order over all tasks. Mixed batches would have statistics that
no test batch has, since BatchNorm at test time sees one task at a time (methods differ here; the
paper does not say).
"""

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import PrivateAttr

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

    _stream: Sequence[Task] = PrivateAttr(default=())
    _seen: int = PrivateAttr(default=0)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Remember the stream, to know which task is the last one."""
        self._stream = stream
        return net

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Wait for the last task; then train on all."""
        self._seen = task.id + 1
        if self._seen == len(self._stream):
            fit(self._stream)

    def memory_bytes(self) -> int:
        """Return the bytes of all training data so far, which this method needs at once."""
        seen = self._stream[: self._seen]
        return sum(t.train.images.nbytes + t.train.labels.nbytes for t in seen)

    def state_dict(self) -> dict[str, Any]:
        """Return how many tasks came; the data come from the stream again."""
        return {"seen": self._seen}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state."""
        self._seen = state["seen"]
