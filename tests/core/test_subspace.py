"""The protected directions of a layer."""

import pytest
import torch

from classgrad.core.subspace import Subspace
from oracles.models import normal
from oracles.projection import random_basis


def test_an_empty_subspace_has_its_dimension_and_no_rank() -> None:
    empty = Subspace.empty(5)
    assert (empty.dimension, empty.rank, empty.memory_bytes) == (5, 0, 0)
    assert empty.basis.dtype == torch.float64


def test_extending_gives_a_new_subspace_and_leaves_the_old_one() -> None:
    first = Subspace.empty(6).extended(random_basis(6, 2, 0))
    second = first.extended(normal(6, 3).float())
    assert (first.rank, second.rank, second.dimension) == (2, 5, 6)
    assert torch.equal(second.basis[:, :2], first.basis)
    assert second.memory_bytes == 6 * 5 * 8


def test_a_subspace_never_exceeds_its_dimension() -> None:
    full = Subspace.empty(3).extended(normal(3, 9))
    assert full.rank == 3
    assert full.extended(normal(3, 2, seed=1)) == full


def test_a_subspace_cannot_be_changed_in_place() -> None:
    with pytest.raises(AttributeError):
        Subspace.empty(3).basis = torch.eye(3)
