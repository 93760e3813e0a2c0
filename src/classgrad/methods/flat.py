"""Gradients of many parameters as one vector, for methods that compare and combine them.

Where a step needs no more than inner products and sums, gradients stay one tensor per parameter:
copies of all of them take a noticeable part of it.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

# Columns of float32 vectors that are converted to float64 at a time for a product; few, so that
# those of several vectors fit in a cache of 2 MB.
COLUMNS = 1 << 15

# Factors in this range lose nothing in float32.
SAFE_FACTORS = 1e-30, 1e30


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


def gram(vectors: Sequence[Sequence[Tensor]]) -> Tensor:
    """Return the inner products of n vectors (n x n, float64, on the CPU).

    A vector is a list of tensors, whose shapes are the same for all vectors. In float32 the squares
    of tiny gradients, as of a well-learnt task, underflow, and a Gram matrix can have negative
    eigenvalues.
    """
    total = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for rows in _columns(vectors):
        total += rows @ rows.T
    return total


def inner(vectors: Sequence[Sequence[Tensor]], vector: Sequence[Tensor]) -> Tensor:
    """Return the inner products of n vectors with one (n, float64, on the CPU)."""
    total = torch.zeros(len(vectors), dtype=torch.float64)
    for rows in _columns([*vectors, vector]):
        total += rows[:-1] @ rows[-1]
    return total


def _columns(vectors: Sequence[Sequence[Tensor]]) -> Iterator[Tensor]:
    """Yield columns of the matrix whose rows are the vectors, in float64; valid until the next."""
    buffer = torch.empty(len(vectors), COLUMNS, dtype=torch.float64)
    for parts in zip(*vectors, strict=True):
        for columns in zip(*(part.flatten().split(COLUMNS) for part in parts), strict=True):
            rows = buffer[:, : len(columns[0])]
            for row, column in zip(rows, columns, strict=True):
                row.copy_(column.detach().cpu())
            yield rows


def add_(vector: list[Tensor], rows: Sequence[list[Tensor]], factors: Tensor) -> None:
    """Add rows times factors to a vector, in place; each is a list of tensors."""
    least, most = SAFE_FACTORS
    for row, factor in zip(rows, factors.tolist(), strict=True):
        if factor == 0:
            continue
        if not least < abs(factor) < most:  # the row is tiny or huge, and its product is not
            root = math.sqrt(abs(factor))
            row, factor = list(torch._foreach_mul(row, root)), math.copysign(root, factor)
        torch._foreach_add_(vector, row, alpha=factor)
