"""Gradient projection in your own training loop: attach, step, end_task."""

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
    """Keeps a model's outputs for the tasks it has learnt, by a projection method."""

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
        """Protect the task just learnt.

        `loader` yields batches (inputs, labels) of its training data and must be iterable twice.
        Each of `classes`, if given, must have a sample. `forward` maps inputs to the logits that
        tell which samples are classified correctly, for a model that needs more than the inputs.
        """
        if iter(loader) is loader:
            raise UserError("the loader can be iterated only once: give a list or a DataLoader")
        self.method.projector.remove()
        self.method.learn(self.model, forward or self.model, lambda: loader, classes)
        self.method.projector.install()
        for norm in self._norms():
            norm.add_task()

    def use_task(self, task: int) -> None:
        """Select a task, from 0, in every `TaskBatchNorm` of the model.

        `end_task` selects the next one. A model without such layers needs no call.
        """
        for norm in self._norms():
            norm.task = task

    def _norms(self) -> list[TaskBatchNorm]:
        return [m for m in self.model.modules() if isinstance(m, TaskBatchNorm)]

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected."""
        return self.method.layer_ranks()

    def held(self) -> list[Held]:
        """Return the share of each class that is still protected, for a method with a budget."""
        return self.method.held()

    def detach(self) -> None:
        """Restore the model's layers and protect nothing any more."""
        self.method.projector.protect({})


def attach(model: nn.Module, method: Projected) -> Guard:
    """Put a guard with a projection method on a model, for use in any training loop.

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

    CGP's contrastive loss is part of the loss, which you compute yourself here:
    `classgrad.methods.projection.cgp.contrastive`.
    """
    if not isinstance(method, Projected):
        raise UserError(
            f"{type(method).__name__} is not a projection method: attach takes CGP, GPM or SGP"
        )
    if not method.attachable:
        raise UserError(
            f"{type(method).__name__} changes the network before each task: use it in a run; "
            "attach takes CGP, GPM or SGP"
        )
    return Guard(model, method)
