"""A subspace that grows by one class after another, in the coordinates where that is cheapest."""

import torch
from torch import Tensor

from classgrad.core import linalg
from classgrad.core.selection import Rule, Selection
from classgrad.core.subspace import Parts, Representation, Subspace


class Outside:
    """A representation C as its energy along a basis S, and Nᵀ C with N the complement of S.

    Directions are in coordinates of N.
    """

    def __init__(self, c: Representation, basis: Tensor, complement: Tensor) -> None:
        self._whole = c
        self._along = c.energy_along(basis)
        self._outside = c.coordinates(complement)

    def energy(self) -> float:
        """Return E = ||C||²."""
        return self._whole.energy()

    def energies(self) -> Tensor:
        """Return the σ² of C, descending."""
        return self._whole.energies()

    def split_by(self, basis: Tensor, left_out: float = 0.0) -> Parts:
        """Return δ along S and a basis outside it, and (σ² descending, U) of the part outside both.

        See `Representation.split_by`.
        """
        delta, values, vectors, complete = self._outside.split_by(basis, left_out)
        keep = values > linalg.NEGLIGIBLE_ENERGY * self.energy()
        return Parts(torch.cat([self._along, delta]), values[keep], vectors[:, keep], complete)


class GrowingSubspace:
    """A subspace to which the directions of one class after another are added.

    While it holds at most half of all directions, classes are split by its basis. Beyond that, the
    basis S of that moment and its complement N are kept, and what is added later is a basis in
    coordinates of N. So N is computed once, and a class is multiplied by S and by N once, instead
    of by all directions twice.
    """

    def __init__(self, subspace: Subspace) -> None:
        self._kept = subspace.exact()
        self._complement: Tensor | None = None
        self._added = Subspace.empty(0)  # in coordinates of the complement

    @property
    def rank(self) -> int:
        """Number of directions."""
        return self._kept.rank + self._added.rank

    @property
    def subspace(self) -> Subspace:
        """The subspace with all that was added."""
        if self._complement is not None and self._added.rank:
            self._kept = self._kept.extended(self._complement @ self._added.basis)
            self._complement, self._added = None, Subspace.empty(0)
        return self._kept

    def choose(
        self, rule: Rule, c: Representation, epsilon: float, *, of_residual: bool = False
    ) -> Selection:
        """Return the directions (d x n) that a rule adds for a class; `add` adds them."""
        if 2 * self.rank <= self._kept.dimension:
            return rule(self._kept.basis, c, epsilon, of_residual=of_residual)
        if self._complement is None:
            self._complement = linalg.complement(self._kept.basis)
            self._added = Subspace.empty(self._complement.shape[1])
        outside = Outside(c, self._kept.basis, self._complement)
        chosen = rule(self._added.basis, outside, epsilon, of_residual=of_residual)
        return chosen._replace(new=self._complement @ chosen.new)

    def add(self, vectors: Tensor) -> None:
        """Add directions (d x n), chosen or others."""
        if self._complement is None:
            self._kept = self._kept.extended(vectors)
            return
        new = self._complement.T @ vectors
        lengths = vectors.norm(dim=0)
        self._added = self._added.extended(
            new[:, new.norm(dim=0) > linalg.SPAN_TOLERANCE * lengths]
        )
