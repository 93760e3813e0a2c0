"""Gradient projection in a training loop of your own: attach, step, end_task."""

from collections.abc import Iterable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from classgrad.core.collect import Forward
from classgrad.errors import UserError
from classgrad.methods.base import Held, LayerRank
from classgrad.methods.projection.base import Projected
from classgrad.networks.layers import TaskBatchNorm


class Guard:
    """Keeps the answers of a model to the tasks it has learnt, by a projection method."""

    def __init__(self, model: nn.Module, method: Projected) -> None:
        self.model = model
        self.method: Projected = method.replace()
        self.method.attach(model)

    def step(self, optimizer: torch.optim.Optimizer) -> AbstractContextManager[None]:
        """Wrap `loss.backward()` and `optimizer.step()` of one training step."""
        return self.method.projector.step(optimizer)

    def end_task(
        self,
        loader: Iterable[tuple[Tensor, Tensor]],
        *,
        classes: Iterable[int] | None = None,
        forward: Forward | None = None,
    ) -> None:
        """Protect what the task just learnt needs.

        `loader` gives (inputs, labels) of its training data, in batches, and can be gone through
        twice. With `classes` each of them must be there. `forward` gives the logits that say which
        samples are classified correctly, for a model that needs more than the inputs.
        """
        if iter(loader) is loader:
            raise UserError("the loader can be gone through only once: give a list or a DataLoader")
        self.method.projector.remove()
        self.method.learn(self.model, forward or self.model, lambda: loader, classes)
        self.method.projector.install()
        for norm in self._norms():
            norm.add_task()

    def use_task(self, task: int) -> None:
        """Let every `TaskBatchNorm` of the model use what it keeps for one task, 0 the first.

        After `end_task` they stand at the next task. A model without them needs no such call.
        """
        for norm in self._norms():
            norm.task = task

    def _norms(self) -> list[TaskBatchNorm]:
        return [m for m in self.model.modules() if isinstance(m, TaskBatchNorm)]

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected."""
        return self.method.layer_ranks()

    def held(self) -> list[Held]:
        """Return what is still protected of each class, for a method with a limit of memory."""
        return self.method.held()

    def detach(self) -> None:
        """Leave the model as it was: nothing is protected any more."""
        self.method.projector.protect({})


def attach(model: nn.Module, method: Projected) -> Guard:
    """Guard a model with a projection method, for use in any training loop.

    >>> import torch, classgrad
    >>> model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> guard = classgrad.attach(model, classgrad.CGP(epsilon=0.99))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> x, y = torch.randn(16, 4), torch.arange(16) % 2
    >>> for task in range(2):
    ...     loss = nn.functional.cross_entropy(model(x), y)
    ...     optimizer.zero_grad()
    ...     with guard.step(optimizer):
    ...         loss.backward()
    ...         optimizer.step()
    ...     guard.end_task([(x, y)])
    >>> [layer.name for layer in guard.layer_ranks()]
    ['0', '2']

    The contrastive loss of CGP is part of the loss, which is yours here:
    `classgrad.methods.projection.cgp.contrastive`.
    """
    if not isinstance(method, Projected):
        raise UserError(
            f"{type(method).__name__} does not work by projection: attach takes CGP, GPM or SGP"
        )
    if not method.attachable:
        raise UserError(
            f"{type(method).__name__} changes the network before each task: use it in a run; "
            "attach takes CGP, GPM or SGP"
        )
    return Guard(model, method)
