"""The protected directions of one layer: an orthonormal basis."""

from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad.core import linalg


@dataclass(frozen=True)
class Subspace:
    """Orthonormal columns `basis` (d x r, float64); extending or reducing gives a new one.

    >>> plane = Subspace.empty(3).extended(torch.eye(3)[:, :2])
    >>> plane.rank, plane.dimension
    (2, 3)
    """

    basis: Tensor

    @classmethod
    def empty(cls, dimension: int) -> "Subspace":
        """Return the subspace of `dimension` that holds nothing yet."""
        return cls(torch.zeros(dimension, 0, dtype=torch.float64))

    @property
    def dimension(self) -> int:
        """Length of a direction."""
        return self.basis.shape[0]

    @property
    def rank(self) -> int:
        """Number of protected directions."""
        return self.basis.shape[1]

    @property
    def memory_bytes(self) -> int:
        """Bytes the basis takes."""
        return self.basis.nbytes

    def extended(self, vectors: Tensor) -> "Subspace":
        """Return the subspace that holds `vectors` (columns) too."""
        return Subspace(linalg.extend(self.basis, vectors))

    def reduced(self, columns: list[int]) -> "Subspace":
        """Return the subspace of these columns only."""
        return Subspace(self.basis[:, columns])
