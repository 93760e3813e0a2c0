"""A probe: what a network makes of a fixed input, to notice that its code has changed.

A state has the weights of a trunk, but not its code. If the code of a user's own trunk has changed
since, the same weights give other features, and every answer may be another.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from classgrad.errors import UserError
from classgrad.networks.network import Network
from classgrad.tasks import Transform

INPUTS = 2
# Of the length of features: far above rounding, which differs between processors.
TOLERANCE, LOW_PRECISION = 1e-3, 5e-2


@torch.no_grad()
def measure(net: Network, shape: Sequence[int], transform: Transform, tasks: int) -> Tensor | None:
    """Return the features of fixed inputs, for the first and the newest task.

    None if the network refuses them: what a user's own trunk accepts is not known.
    """
    like = next(net.parameters())
    x = torch.rand(INPUTS, *shape, generator=torch.Generator().manual_seed(0))
    x = transform(x.to(like))
    try:
        with net.evaluating():
            features = [net.embed(x, task).cpu().float() for task in (0, max(tasks - 1, 0))]
    except (RuntimeError, ValueError, TypeError, IndexError):
        return None
    return torch.cat(features, dim=1)  # the newest task may have more of them


def refuse_other(now: Tensor | None, then: Tensor | None, precise: bool) -> None:
    """Refuse a network that makes something else of the probe than when its state was saved."""
    if now is None or then is None:
        return
    moved = 1.0
    if now.shape == then.shape:
        moved = float((now - then).norm() / then.norm().clamp(min=1e-12))
    if not moved <= (TOLERANCE if precise else LOW_PRECISION):
        raise UserError(
            f"with the saved weights the trunk computes other features than when they were saved "
            f"({min(moved, 9.99):.0%} apart): its code has changed; load it with the code of "
            "then, or with check_trunk=False if the change is meant",
            hint="check_trunk",
        )
