"""Multitask: one trunk learns all tasks at once; the upper bound the paper compares with.

Batches hold one task each, in random order over all tasks. Mixed batches would have statistics that
no test batch has, since BatchNorm at test time sees one task at a time (methods differ here; the
paper does not say).
"""

from typing import Any, ClassVar

from pydantic import PrivateAttr

from classgrad.methods.base import Fit, Method
from classgrad.networks.network import Network
from classgrad.tasks import Task, TaskStream


class Multitask(Method):
    """Wait for the last task, then train on all of them together."""

    name: ClassVar[str] = "multitask"
    summary: ClassVar[str] = "all tasks at once with all data (the upper bound)"
    joint: ClassVar[bool] = True

    _tasks: list[Task] = PrivateAttr(default_factory=list)
    _last: int = PrivateAttr(default=0)

    def wrap(self, net: Network, stream: TaskStream, seed: int) -> Network:
        """Remember which task is the last one."""
        self._last = len(stream) - 1
        return net

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Collect the tasks; train at the last one."""
        self._tasks.append(task)
        if task.id == self._last:
            fit(self._tasks)

    def memory_bytes(self) -> int:
        """Return the bytes of all training data, which this method needs at once."""
        return sum(t.train.images.nbytes + t.train.labels.nbytes for t in self._tasks)

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: the data come from the stream again."""
        return {}
