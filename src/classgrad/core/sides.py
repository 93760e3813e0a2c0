"""How a protected subspace is taken out of gradients: removed, or scaled by importance."""

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.core import linalg
from classgrad.core.subspace import Subspace

# A gradient with more than this many roundings along a protected probe direction is projected
# again. Removing S from rows leaves about ten.
ROUNDINGS = 100


class Side:
    """Removes one subspace from matrices, by its basis or its complement, whichever is narrower."""

    soft = False  # whether directions are scaled instead of removed
    rows_only = False  # whether a Linear layer's gradient must come through projected rows

    def __init__(self, subspace: Subspace, like: Tensor) -> None:
        self.inside = subspace.rank <= subspace.dimension // 2
        basis = subspace.basis if self.inside else linalg.complement(subspace.basis)
        self.basis = basis.to(like)
        # Two random directions, in the subspace and anywhere, as long as the roots of rank and
        # dimension: ||g probe|| is then about ||g S|| and ||g||, for one reading of g.
        chance = torch.Generator().manual_seed(subspace.rank)
        weights = torch.randn(subspace.rank, generator=chance, dtype=torch.float64)
        anywhere = torch.randn(subspace.dimension, generator=chance, dtype=torch.float64)
        self.probes = torch.stack([subspace.basis @ weights, anywhere]).to(like)
        self.by_rows = False  # whether all of the gradient came through projected rows

    def free(self, matrix: Tensor) -> Tensor:
        """Return the part of a matrix (o x d) outside the subspace."""
        basis = self.basis.to(matrix.dtype)
        return linalg.remove(matrix, basis) if self.inside else linalg.keep(matrix, basis)

    def leaks(self, matrix: Tensor) -> bool:
        """Tell whether a matrix has a part inside the subspace."""
        along = functional.linear(matrix, self.probes.to(matrix.dtype))
        inside, all_of_it = torch.linalg.vector_norm(along, dim=0)
        return bool(inside > ROUNDINGS * torch.finfo(matrix.dtype).eps * all_of_it)


class SoftSide(Side):
    """Scales what matrices have along each direction by 1 - λ, its importance (SGP, AAAI 2023).

    g - g M Λ Mᵀ is taken through the thin M, or as one d x d matrix once M is wider than half of d,
    so that the cost stops growing there. It does not go by rows: whether a gradient was scaled
    already does not show, and scaling twice is not scaling once.
    """

    soft = True

    def __init__(self, subspace: Subspace, like: Tensor, importance: Tensor) -> None:
        basis = subspace.basis
        scaled = basis * importance
        self.inside = subspace.rank <= subspace.dimension // 2
        self.basis = (basis if self.inside else scaled @ basis.T).to(like)
        if self.inside:
            self.scaled = scaled.to(like)
        self.by_rows = False

    def free(self, matrix: Tensor) -> Tensor:
        """Return g - g M Λ Mᵀ of a matrix (o x d)."""
        basis = self.basis.to(matrix.dtype)
        if not self.inside:
            return torch.addmm(matrix, matrix, basis, alpha=-1)
        return torch.addmm(matrix, matrix @ self.scaled.to(matrix.dtype), basis.T, alpha=-1)
