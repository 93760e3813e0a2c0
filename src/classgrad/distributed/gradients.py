"""Gradients that are means over processes, of losses that are means over parts of a batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from classgrad.distributed import World, world


class Averaged:
    """A loss of which `backward`, and `finish` after it, leave averaged gradients.

    Those of these parameters, which begin as the first process has them. DistributedDataParallel
    averages some while others are still computed. It needs all of them in every step; where a
    step uses only some (`idle`), such as the head of one task among several, `finish` averages all
    that are there.
    """

    def __init__(
        self, parameters: list[nn.Parameter], loss: Callable[..., Tensor], *, idle: bool
    ) -> None:
        self.parameters, self.loss = parameters, loss
        self.late = idle and world().size > 1
        if self.late:
            world().level(parameter.data for parameter in parameters)
        elif world().size > 1:
            with world().watched():
                wrapped = DistributedDataParallel(_Loss(parameters, loss))
            wrapped.register_comm_hook(world(), _average)
            self.loss = wrapped

    def __call__(self, *given: Any) -> Tensor:
        """Return the loss."""
        return self.loss(*given)

    def finish(self) -> None:
        """Average what `backward` has not averaged yet."""
        if self.late:
            found = [p.grad for p in self.parameters if p.grad is not None]
            total = world().sum(torch.cat([g.flatten() for g in found])) / world().size
            for gradient, part in zip(found, total.split([g.numel() for g in found]), strict=True):
                gradient.copy_(part.view(gradient.shape))


class _Loss(nn.Module):
    """A loss as a module of the parameters whose gradients are wanted."""

    def __init__(self, parameters: list[nn.Parameter], loss: Callable[..., Tensor]) -> None:
        super().__init__()
        self.moved = nn.ParameterList(parameters)
        self.loss = loss

    def forward(self, *given: Any) -> Tensor:
        return self.loss(*given)


def _average(here: World, bucket: distributed.GradBucket) -> torch.futures.Future[Tensor]:
    """Average some gradients over processes, and count their bytes."""
    values = bucket.buffer().div_(here.size)
    here.sent["sums"] += values.nbytes
    work = distributed.all_reduce(values, async_op=True)
    assert work is not None
    averaged: torch.futures.Future[Tensor] = work.get_future().then(lambda done: done.value()[0])
    return averaged
