"""The new directions that a class adds to a basis: the plain rule, and those of base refining.

Notation of CGP (MM 2022): S a basis, C the representation of a class with energy E,
δ = diag(Sᵀ C Cᵀ S) its energy along each stored direction, Ĉ = U Σ Vᵀ the residual outside S. The
joint list is L = [δ, σ²]. The stored directions stay protected in any case, so rules differ only in
how many columns of U they add.

- `plain` adds the first m of U, with the smallest m for which Σδ + Σσ²[:m] >= ε E (Eq. k-rank2).
- `own` adds those of U among the first k of sorted L, with k the class's own rank at ε (Eq.
  k-rank1). Less than the share ε of the class may then be held. Where its energy is spread thinly
  over the stored directions, it adds more than `plain`.
- `capped` is `own`, but at most what `plain` adds.
- `missing` adds those of U among the first m of sorted L, with m as above; often none.
- `joint` adds those of U among the first of sorted L that reach ε E; at least what `plain` adds.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from classgrad.core.linalg import smallest_rank
from classgrad.core.subspace import Parts


class Inputs(Protocol):
    """What the rules need of a representation C."""

    def energy(self) -> float:
        """Return E."""

    def energies(self) -> Tensor:
        """Return the σ² of C, descending."""

    def split_by(self, basis: Tensor, left_out: float = 0.0) -> Parts:
        """Return δ, and (σ² descending, U) of Ĉ; weak directions may be left out."""


class Selection(NamedTuple):
    """New directions (d x n), and the columns of S that represent the class together with them.

    `along` is the share of the class's energy inside S, `shares` that along each new direction.
    """

    new: Tensor
    stored: list[int]
    along: float
    shares: Tensor

    def held(self, count: int) -> float:
        """Return the share of the energy that S and the first `count` new directions hold."""
        return min(1.0, self.along + float(self.shares[:count].sum()))


def share_of_whole(c: Inputs, epsilon: float, uncounted: int) -> float:
    """Return which share of C holds its strongest directions and the share ε of the rest.

    One channel with a thousand times the energy of the others would otherwise be all that is held.
    """
    energy = c.energy()
    if not uncounted or not energy:
        return epsilon
    rest = float(c.energies()[uncounted:].sum())
    return 1 - (1 - epsilon) * rest / energy


class Rule(Protocol):
    """One of the rules of this module."""

    def __call__(
        self, basis: Tensor, c: Inputs, epsilon: float, *, of_residual: bool = False
    ) -> Selection:
        """Select the directions of a class."""


def plain(basis: Tensor, c: Inputs, epsilon: float, *, of_residual: bool = False) -> Selection:
    """Protect at least the share ε of the class.

    Every stored direction counts, because all stay protected; none is assigned to the class. With
    `of_residual` the right side is ε ||Ĉ||², as Eq. k-rank2 is printed: much less is protected.
    """
    parts = _split(basis, c, epsilon)
    return _selection(c, parts, _needed(parts, c, epsilon, of_residual))


def own(basis: Tensor, c: Inputs, epsilon: float, *, of_residual: bool = False) -> Selection:
    """Represent the class by as many directions as it needs on its own (Algorithm 1)."""
    own_rank = smallest_rank(c.energies(), epsilon * c.energy())
    parts = _split(basis, c, epsilon)
    stored, count = _first_of_joint_list(parts, own_rank)
    if count == len(parts.values) and not parts.complete:
        parts = c.split_by(basis)
        stored, count = _first_of_joint_list(parts, own_rank)
    return _selection(c, parts, count, stored)


def capped(basis: Tensor, c: Inputs, epsilon: float, *, of_residual: bool = False) -> Selection:
    """Represent the class as `own` does, but never add more than not refining would."""
    parts = _split(basis, c, epsilon)
    own_rank = smallest_rank(c.energies(), epsilon * c.energy())
    stored, count = _first_of_joint_list(parts, own_rank)
    enough = _needed(parts, c, epsilon, of_residual)
    return _selection(c, parts, min(count, enough), stored)


def missing(basis: Tensor, c: Inputs, epsilon: float, *, of_residual: bool = False) -> Selection:
    """Represent the class by as many directions as the basis lacks (the paper's text, its scripts).

    Most of the first directions of the joint list are stored ones.
    """
    parts = _split(basis, c, epsilon)
    stored, count = _first_of_joint_list(parts, _needed(parts, c, epsilon, of_residual))
    return _selection(c, parts, count, stored)


def joint(basis: Tensor, c: Inputs, epsilon: float, *, of_residual: bool = False) -> Selection:
    """Represent the class by the strongest directions, stored or new, that hold ε (TRGP)."""
    parts = _split(basis, c, epsilon)
    stored, count = _strongest(parts, epsilon * c.energy())
    if count == len(parts.values) and not parts.complete:
        parts = c.split_by(basis)
        stored, count = _strongest(parts, epsilon * c.energy())
    return _selection(c, parts, count, stored)


def _selection(c: Inputs, parts: Parts, count: int, stored: Sequence[int] = ()) -> Selection:
    """Select the first `count` new directions, with the share of the energy along them."""
    energy = c.energy() or 1.0
    along, shares = float(parts.delta.sum()) / energy, parts.values[:count] / energy
    return Selection(parts.vectors[:, :count], list(stored), along, shares)


def _split(basis: Tensor, c: Inputs, epsilon: float) -> Parts:
    """Split C by a basis; directions of U that are not needed for the share ε may be left out."""
    return c.split_by(basis, (1 - epsilon) * c.energy())


def _needed(parts: Parts, c: Inputs, epsilon: float, of_residual: bool) -> int:
    """Return the smallest m for which Σδ + Σσ²[:m] reaches ε E, or ε ||Ĉ||²."""
    along = float(parts.delta.sum())
    whole = c.energy() - along if of_residual else c.energy()
    return smallest_rank(parts.values, epsilon * whole - along)


def _strongest(parts: Parts, energy: float) -> tuple[list[int], int]:
    """Take the first of sorted [δ, σ²] that hold an energy."""
    ordered = torch.cat([parts.delta, parts.values]).sort(descending=True, stable=True).values
    return _first_of_joint_list(parts, smallest_rank(ordered, energy))


def _first_of_joint_list(parts: Parts, count: int) -> tuple[list[int], int]:
    """Take the first `count` of sorted [δ, σ²]; return which stored ones, and how many new ones."""
    joint_list = torch.cat([parts.delta, parts.values])
    order = joint_list.sort(descending=True, stable=True).indices[:count]
    stored = order[order < len(parts.delta)]
    return sorted(stored.tolist()), len(order) - len(stored)
