"""The new directions that a class adds to a basis: the plain rule, and those of base refining.

Notation of CGP (MM 2022): S the basis so far, C the class's representation with energy E,
δ = diag(Sᵀ C Cᵀ S) its energy along each stored direction, Ĉ = U Σ Vᵀ the residual outside S. The
joint list is L = [δ, σ²]. The stored directions stay protected in any case, so rules differ only in
how many columns of U they add.

- `plain` adds the first m of U, with the smallest m for which Σδ + Σσ²[:m] >= ε E.
- `alg1` adds those of U among the first k of sorted L, with k the class's own rank at ε; at most
  what `plain` adds. Less than the share ε of the class may then be held.
- `joint` adds those of U among the first of sorted L that reach ε E; at least what `plain` adds.
- `official` adds those of the residual among the first m of L, where L and m are relative to the
  directions of one group only; often none. Its groups begin with `complete`.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from classgrad.core.linalg import smallest_rank
from classgrad.core.subspace import Representation


class Selection(NamedTuple):
    """New directions (d x n), and the columns of S that represent the class together with them."""

    new: Tensor
    stored: list[int]


def plain(basis: Tensor, c: Representation, epsilon: float) -> Selection:
    """Protect at least the share ε of the class (Eq. k-rank2, with ||C||² on the right).

    Every stored direction counts, because all stay protected; none is assigned to the class.
    """
    delta, values, vectors = c.split_by(basis)
    count = smallest_rank(values, epsilon * c.energy() - float(delta.sum()))
    return Selection(vectors[:, :count], [])


def complete(basis: Tensor, c: Representation, epsilon: float) -> Selection:
    """Add what `plain` adds, and assign to the class the strongest stored directions up to ε.

    So a class that opens a group gives it directions that hold the share ε of the class, as in the
    released scripts, where every group has its own basis.
    """
    delta, values, vectors = c.split_by(basis)
    count = smallest_rank(values, epsilon * c.energy() - float(delta.sum()))
    strongest = delta.sort(descending=True, stable=True)
    missing = epsilon * c.energy() - float(values[:count].sum())
    stored = strongest.indices[: smallest_rank(strongest.values, missing)]
    return Selection(vectors[:, :count], sorted(stored.tolist()))


def alg1(basis: Tensor, c: Representation, epsilon: float) -> Selection:
    """Represent the class by as many directions as it needs on its own (Algorithm 1).

    In the paper the count exceeds that of `plain` where energy is spread thinly over the stored
    directions; here it is limited, so refining never protects more than not refining.
    """
    delta, values, vectors = c.split_by(basis)
    own_rank = smallest_rank(c.energies(), epsilon * c.energy())
    enough = smallest_rank(values, epsilon * c.energy() - float(delta.sum()))
    stored, count = _first_of_joint_list(delta, values, own_rank)
    return Selection(vectors[:, : min(count, enough)], stored)


def joint(basis: Tensor, c: Representation, epsilon: float) -> Selection:
    """Represent the class by the strongest directions, stored or new, that hold ε (TRGP)."""
    delta, values, vectors = c.split_by(basis)
    ordered = torch.cat([delta, values]).sort(descending=True, stable=True).values
    stored, count = _first_of_joint_list(
        delta, values, smallest_rank(ordered, epsilon * c.energy())
    )
    return Selection(vectors[:, :count], stored)


def official(basis: Tensor, c: Representation, epsilon: float, group: list[int]) -> Selection:
    """Count against one group, choose from the joint list: the released CIFAR-100 script.

    m residual directions would be needed; the first m of the joint list are taken, most of which
    are stored ones, so the class often adds no new direction at all.
    """
    group_basis = basis[:, group]
    delta, values, vectors = c.split_by(group_basis)
    needed = smallest_rank(values, epsilon * c.energy() - float(delta.sum()))
    stored, count = _first_of_joint_list(delta, values, needed)
    return Selection(vectors[:, :count], [group[index] for index in stored])


def _first_of_joint_list(delta: Tensor, values: Tensor, count: int) -> tuple[list[int], int]:
    """Take the first `count` of sorted [δ, σ²]; return which stored ones, and how many new ones."""
    order = torch.cat([delta, values]).sort(descending=True, stable=True).indices[:count]
    stored = order[order < len(delta)]
    return sorted(stored.tolist()), len(order) - len(stored)
