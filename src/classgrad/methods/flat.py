"""Gradients of many parameters as one vector, for methods that compare and combine them."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

# Columns of float32 vectors that are converted to float64 at a time for a product.
COLUMNS = 1 << 18


def gather(parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> Tensor:
    """Return the gradients of these parameters as one vector, with zeros where there is none."""
    return torch.cat(
        [
            p.new_zeros(p.numel()) if g is None else g.detach().flatten()
            for p, g in zip(parameters, gradients, strict=True)
        ]
    )


def split(parameters: Sequence[nn.Parameter], vector: Tensor) -> list[Tensor]:
    """Return the parts of a vector that belong to these parameters, in their shapes."""
    parts = vector.split([p.numel() for p in parameters])
    return [part.view(p.shape) for p, part in zip(parameters, parts, strict=True)]


def write(parameters: Sequence[nn.Parameter], vector: Tensor) -> None:
    """Set the gradients of these parameters from one vector.

    A parameter without a gradient that would get zeros stays without: optimisers then skip it.
    """
    for p, part in zip(parameters, split(parameters, vector), strict=True):
        if p.grad is None:
            if not part.any():
                continue
            p.grad = torch.empty_like(p)
        p.grad.copy_(part)


def products(left: Tensor, right: Tensor) -> Tensor:
    """Rows (m x d) and rows (n x d) -> their inner products (m x n) in float64, on the CPU.

    In float32 the squares of tiny gradients, as of a well-learnt task, underflow, and a Gram matrix
    can have negative eigenvalues.
    """
    total = torch.zeros(len(left), len(right), dtype=torch.float64)
    for a, b in zip(left.split(COLUMNS, dim=1), right.split(COLUMNS, dim=1), strict=True):
        total += a.cpu().double() @ b.cpu().double().T
    return total
