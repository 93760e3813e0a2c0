"""The protected directions of one layer, and the inputs of one layer for some samples."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from classgrad.core import linalg


@dataclass(frozen=True)
class Subspace:
    """Orthonormal columns (d x r); extending or reducing gives a new one.

    Between tasks they are stored in the precision of the weights, so orthonormal up to its
    rounding; `basis` is what follows from these columns in float64, so what is computed with it
    does not depend on whether the columns were saved and loaded.

    >>> plane = Subspace.empty(3).extended(torch.eye(3)[:, :2])
    >>> plane.rank, plane.dimension
    (2, 3)
    """

    columns: Tensor
    rounded: Tensor | None = None  # how the first of float64 columns were stored

    @classmethod
    def empty(cls, dimension: int) -> "Subspace":
        """Return a subspace of rank 0 in a space of `dimension`."""
        return cls(torch.zeros(dimension, 0, dtype=torch.float64))

    @property
    def basis(self) -> Tensor:
        """The columns in float64, orthonormal; computed with every call if they are stored."""
        return linalg.reorthonormalised(self.columns)

    @property
    def dimension(self) -> int:
        """Length of a direction."""
        return self.columns.shape[0]

    @property
    def rank(self) -> int:
        """Number of protected directions."""
        return self.columns.shape[1]

    @property
    def memory_bytes(self) -> int:
        """Bytes the columns take."""
        return self.columns.nbytes

    def exact(self) -> "Subspace":
        """Return the same with float64 columns, to compute with."""
        if self.columns.dtype == torch.float64:
            return self
        return Subspace(self.basis, self.columns)

    def stored(self, dtype: torch.dtype) -> "Subspace":
        """Return the same with columns of this type; those that were stored before stay as then."""
        if self.columns.dtype == dtype:
            return self
        kept = self.columns[:, :0] if self.rounded is None else self.rounded
        new = self.columns[:, kept.shape[1] :]
        return Subspace(torch.cat([kept.to(dtype), new.to(dtype)], dim=1))

    def extended(self, vectors: Tensor) -> "Subspace":
        """Return the span of this subspace and `vectors` (columns)."""
        exact = self.exact()
        return Subspace(linalg.extend(exact.columns, vectors), exact.rounded)

    def reduced(self, columns: list[int]) -> "Subspace":
        """Return the span of these columns of the basis only."""
        return Subspace(self.exact().columns[:, columns])


# From this many coordinates on, only the directions that are needed are computed. Below, that takes
# less than a second for all.
WIDE = 2048
LEAST_SHARE = 1e-3  # of the energy outside a basis, for which directions are computed in any case


class Parts(NamedTuple):
    """A representation C, split by a basis: δ along it, and (σ² descending, U) of what is outside.

    If `complete`, only directions with negligible energy are left out.
    """

    delta: Tensor
    values: Tensor
    vectors: Tensor
    complete: bool


class Representation:
    """A representation matrix C (d x n), streamed in by rows.

    While n < d the rows are kept; from then on only C Cᵀ. Every method returns the same either way.
    """

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self.count = 0
        self._rows: list[Tensor] = []
        self._gram: Tensor | None = None

    @classmethod
    def of(cls, rows: Tensor) -> "Representation":
        """Return the representation with these rows (n x d)."""
        result = cls(rows.shape[1])
        result.add(rows)
        return result

    @classmethod
    def of_gram(cls, gram: Tensor, count: int) -> "Representation":
        """Return a representation of `count` rows with this C Cᵀ."""
        result = cls(len(gram))
        if count < len(gram):
            result.add(linalg.rows_of_gram(gram))
            result.count = count
        else:
            result.add_gram(gram, count)
        return result

    @classmethod
    def pooled(cls, parts: list["Representation"]) -> "Representation":
        """Return the concatenation of several representations of one layer."""
        result = cls(parts[0].dimension)
        for part in parts:
            result.count += part.count
            result._rows += part._rows
            if part._gram is not None:
                result._gram = part._gram if result._gram is None else result._gram + part._gram
        result._fold()
        return result

    def add(self, rows: Tensor) -> None:
        """Append rows (n x d)."""
        self.count += len(rows)
        self._rows.append(rows.detach().double())
        self._fold()

    def add_gram(self, gram: Tensor, count: int) -> None:
        """Append `count` rows that have this C Cᵀ."""
        self.count += count
        self._gram = gram if self._gram is None else self._gram + gram
        self._fold()

    def gram(self) -> Tensor:
        """Return C Cᵀ (d x d, float64)."""
        return linalg.gram(self._all_rows()) if self._gram is None else self._gram

    def energy(self) -> float:
        """Return E = ||C||²."""
        if self._gram is not None:
            return float(self._gram.trace())
        return float(sum(rows.square().sum() for rows in self._rows))

    def energy_along(self, basis: Tensor) -> Tensor:
        """Return δ, the energy along each column of a basis (d x r)."""
        if self._gram is not None:
            return linalg.energy_along_gram(self._gram, basis)
        return linalg.energy_along(self._all_rows(), basis)

    def held_energy(self, basis: Tensor) -> float:
        """Return the share of the energy that a basis holds, 0 to 1."""
        total = self.energy()
        return float(self.energy_along(basis).sum()) / total if total > 0 else 1.0

    def spectrum(self, basis: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return (σ² descending, U) of C or, given a basis, of the residual Ĉ = C - S Sᵀ C.

        Directions are left out whose energy is negligible compared with that of C.
        """
        if basis is None:
            basis = torch.zeros(self.dimension, 0, dtype=torch.float64)
        parts = self.split_by(basis)
        return parts.values, parts.vectors

    def coordinates(self, axes: Tensor) -> "Representation":
        """Return axesᵀ C, for orthonormal axes (d x m)."""
        result = Representation(axes.shape[1])
        if self._gram is not None:
            result.add_gram(axes.T @ self._gram @ axes, self.count)
        else:
            result.add(self._all_rows() @ axes)
        return result

    def split_by(self, basis: Tensor, left_out: float = 0.0) -> Parts:
        """Return δ along a basis, and (σ² descending, U) of the part of C outside it.

        These are `energy_along` and `spectrum`, with the product of C and the basis formed once. In
        wide layers, weak directions that hold no more than the energy `left_out` may be left out.
        """
        complete = True
        if self._gram is not None:
            along = self._gram @ basis
            delta = (basis * along).sum(0)
            if 2 * basis.shape[1] > self.dimension:  # the complement has fewer coordinates
                outside = linalg.complement(basis)
                coordinates = outside.T @ self._gram @ outside
                values, vectors, complete = _spectrum_of_gram(coordinates, left_out)
                vectors = outside @ vectors
            else:
                remaining = linalg.residual_gram(self._gram, basis, along)
                values, vectors, complete = _spectrum_of_gram(remaining, left_out)
        else:
            rows = self._all_rows()
            along = rows @ basis
            delta = along.square().sum(0)
            values, vectors = linalg.spectrum(rows - along @ basis.T)
        keep = values > linalg.NEGLIGIBLE_ENERGY * self.energy()
        return Parts(delta, values[keep], vectors[:, keep], complete)

    def energies(self) -> Tensor:
        """Return the σ² of C, descending, without their directions."""
        if self._gram is not None:
            return linalg.energies(self._gram)
        rows = self._all_rows()
        return linalg.energies(rows @ rows.T)

    def _all_rows(self) -> Tensor:
        if len(self._rows) != 1:
            empty = torch.zeros(0, self.dimension, dtype=torch.float64)
            self._rows = [torch.cat([empty, *self._rows])]
        return self._rows[0]

    def _fold(self) -> None:
        if self._rows and (self._gram is not None or self.count >= self.dimension):
            gram = linalg.gram(self._all_rows())
            self._gram = gram if self._gram is None else self._gram + gram
            self._rows = []


def _spectrum_of_gram(c_ct: Tensor, left_out: float) -> tuple[Tensor, Tensor, bool]:
    """Return (eigenvalues descending, eigenvectors), and whether these are all."""
    total = float(c_ct.trace())
    if left_out > 0 and total > 0 and len(c_ct) >= WIDE:
        # Some rules compare the first directions with stored ones even where none is needed.
        leading = linalg.leading_spectrum(c_ct, max(total - left_out, LEAST_SHARE * total))
        if leading is not None:
            return *leading, False
    return *linalg.spectrum_of_gram(c_ct), True
