"""The matrix P of OWM at one site, and how it learns rows of inputs.

One row r with k = P rᵀ makes P <- P - k kᵀ / (α + r k). Rows R with one α are learnt together,

    P <- P - P Rᵀ (α I + R P Rᵀ)⁻¹ R P,

which equals one update after another (Woodbury). Only Rᵀ R counts: more rows than d are replaced by
the triangular factor of R, d rows with the same Rᵀ R.
"""

import torch
from torch import Tensor

from classgrad.core.layers import Site
from classgrad.core.sides import Side
from classgrad.distributed import Cut, world


class Shrinking(Side):
    """Multiplies matrices by the P of one site."""

    rows_only = True  # a gradient does not show whether it has met P already

    def __init__(self, site: Site, matrix: Tensor | None = None) -> None:
        self.by_rows = False
        self.like = site.weight.detach()
        eye = torch.eye(site.dimension, dtype=torch.float64)
        self.become(eye if matrix is None else matrix)

    def become(self, matrix: Tensor) -> None:
        """Take a new P (d x d, float64, on the CPU), and a copy of it as the weights are."""
        self.matrix, self.rounded = matrix, matrix.to(self.like)

    def free(self, matrix: Tensor) -> Tensor:
        """Return matrix P."""
        return matrix @ self.rounded.to(matrix.dtype)

    def leaks(self, matrix: Tensor) -> bool:
        """Return False: all that came through rows has met P."""
        return False


def mean_rows(site: Site, x: Tensor, mean_of: int, every: int) -> Tensor:
    """Input of a layer (n, ...) -> rows of its means over about `mean_of` samples each, float64."""
    cut = world().cut
    if cut is None:
        parts = x.tensor_split(max(1, len(x) // mean_of))
        means = torch.stack([part.mean(0) for part in parts])
    else:
        means = means_of_whole(x, max(1, cut.whole // mean_of), cut)
    return site.rows(means, every).cpu().double()


def means_of_whole(x: Tensor, groups: int, cut: Cut) -> Tensor:
    """Part of an input -> means of the whole over samples in so many groups of about one size."""
    parts = torch.arange(cut.whole).tensor_split(groups)
    sizes = torch.tensor([len(part) for part in parts])
    group = torch.arange(groups).repeat_interleave(sizes)[cut.start : cut.stop]
    sums = x.new_zeros(groups, *x.shape[1:]).index_add(0, group.to(x.device), x)
    return world().sum(sums) / sizes.to(x).view(-1, *[1] * (x.dim() - 1))


def shrunk(p: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """P (d x d) and rows R (n x d) -> P - P Rᵀ (α I + R P Rᵀ)⁻¹ R P, symmetric like P.

    >>> shrunk(torch.eye(2), torch.tensor([[1.0, 0.0]]), alpha=1.0).tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """
    if len(rows) > len(p):
        rows = torch.linalg.qr(rows, mode="r").R  # fewer rows with the same Rᵀ R
    r_p = rows @ p
    inner = r_p @ rows.T
    inner.diagonal().add_(alpha)
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), r_p, upper=False)
    p = torch.addmm(p, half.T, half, alpha=-1)
    return (p + p.T) / 2
