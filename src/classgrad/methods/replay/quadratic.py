"""A small quadratic programme with a lower bound, solved exactly by its active set."""

import torch
from torch import Tensor

# The pull on a variable is rounding below this many times the precision of its terms.
ROUNDING = 10


def minimise_above(q: Tensor, c: Tensor, lower: float = 0.0) -> Tensor:
    """Return the v >= lower with the least ½ vᵀ Q v + cᵀ v; Q (n x n) is positive definite.

    As in the method of Lawson and Hanson for non-negative least squares, with u = v - lower: all
    variables start at the bound. The one with the strongest pull away from it is freed, and u goes
    towards the minimum over the free ones; those that reach the bound on the way are fixed again.
    The value falls with every variable freed, so no set of free ones comes twice. Where rounding
    hides that, for an almost singular Q, the number of rounds is limited.

    >>> q = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> minimise_above(q, torch.tensor([-3.0, 1.0]), 0.0).tolist()
    [1.5, 0.0]
    """
    q, c = q.double(), c.double()
    c = c + lower * q.sum(1)
    u, free = torch.zeros_like(c), torch.zeros_like(c, dtype=torch.bool)
    useless = torch.zeros_like(free)  # freed since the last progress, and fixed again at once
    for _ in range(10 * len(c)):
        pull = -(q @ u + c)
        noise = ROUNDING * len(c) * torch.finfo(q.dtype).eps * (q.abs() @ u + c.abs())
        pull = torch.where(free | useless, -torch.inf, pull - noise)
        best = int(pull.argmax())
        if pull[best] <= 0:
            break
        free[best] = True
        u, free = _descend(q, c, u, free)
        if free[best]:
            useless[:] = False
        else:
            useless[best] = True
    return u + lower


def _descend(q: Tensor, c: Tensor, u: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """Go to the minimum over the free variables, fixing those that reach zero on the way."""
    free = free.clone()
    while free.any():
        goal = torch.zeros_like(u)
        # By singular values: with rounding even Q + ridge I can be singular.
        goal[free] = torch.linalg.lstsq(q[free][:, free], -c[free], driver="gelsd").solution
        below = free & (goal <= 0)
        if not below.any():
            return goal, free
        step = torch.where(below, u / (u - goal), torch.inf)
        step = step.nan_to_num(0.0, torch.inf)  # a variable at zero whose goal is zero: 0 / 0
        first = int(step.argmin())
        u = (u + step[first] * (goal - u)).clamp(min=0)
        free[first] = False
        u[~free] = 0.0
    return torch.zeros_like(u), free
