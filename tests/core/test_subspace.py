"""A representation answers as its full matrix does, however it came in; a subspace stays itself."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from classgrad.core.subspace import Representation, Subspace
from oracles.bases import directions, energies_along, energy, held, outside, projector
from oracles.models import normal
from oracles.projection import random_basis

seeds = st.integers(0, 2**32 - 1)


def span(vectors: Tensor) -> np.ndarray:
    return projector(vectors.numpy())


@settings(deadline=None, max_examples=60)
@given(count=st.integers(0, 25), dimension=st.integers(1, 12), seed=seeds, data=st.data())
def test_outputs_are_those_of_the_full_matrix_on_both_sides(
    count: int, dimension: int, seed: int, data: st.DataObject
) -> None:
    rows = normal(count, dimension, seed=seed)
    basis = random_basis(dimension, data.draw(st.integers(0, dimension)), seed + 1)
    c, s = rows.T.numpy(), basis.numpy()
    result = Representation.of(rows)
    total = energy(c)
    assert (result.count, result.dimension) == (count, dimension)
    assert result.energy() == pytest.approx(total, rel=1e-12)
    delta = energies_along(c, s)
    assert result.energy_along(basis).tolist() == pytest.approx(delta.tolist(), abs=1e-12 * total)
    assert result.held_energy(basis) == pytest.approx(held(c, s) if count else 1, abs=1e-12)
    for values, matrix in ((result.spectrum(), c), (result.spectrum(basis), outside(c, s))):
        expected = directions(matrix)[0] if count else np.zeros(0)
        real = expected[expected > 1e-13 * total]
        assert values[0].tolist() == pytest.approx(real.tolist(), abs=1e-13 * total)


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 8), min_size=1, max_size=6),
    dimension=st.integers(1, 12),
    seed=seeds,
)
def test_neither_order_nor_size_of_the_parts_matters(
    sizes: list[int], dimension: int, seed: int
) -> None:
    rows = normal(sum(sizes), dimension, seed=seed)
    whole, streamed = Representation.of(rows), Representation(dimension)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    for part in rows[order].split(sizes):
        streamed.add(part)
    pooled = Representation.pooled([Representation.of(part) for part in rows.split(sizes)])
    values, vectors = whole.spectrum()
    by_products = Representation(dimension)
    for number, part in enumerate(rows.split(sizes)):
        if number % 2:
            by_products.add_gram(part.T @ part, len(part))
        else:
            by_products.add(part)
    for other in (streamed, pooled, by_products):
        assert other.count == whole.count
        assert other.energy() == pytest.approx(whole.energy(), rel=1e-12)
        again, turned = other.spectrum()
        assert again.tolist() == pytest.approx(values.tolist(), abs=1e-12 * whole.energy())
        assert np.abs(span(turned) - span(vectors)).max() < 1e-6


def test_pooling_leaves_the_parts_as_they_were() -> None:
    parts = [Representation.of(normal(count, 6, seed=count)) for count in (2, 9, 3)]
    before = [part.energy() for part in parts]
    pooled = Representation.pooled(parts)
    pooled.add(normal(5, 6))
    assert pooled.count == 19
    assert [part.energy() for part in parts] == before
    assert [part.count for part in parts] == [2, 9, 3]


def test_rows_are_held_in_double_precision_and_without_their_graph() -> None:
    rows = normal(3, 5).float().requires_grad_()
    result = Representation.of(rows * 2)
    values, vectors = result.spectrum()
    assert values.dtype == vectors.dtype == torch.float64
    assert not vectors.requires_grad


def test_zero_inputs_have_no_direction_and_are_held_by_any_basis() -> None:
    for count in (0, 2, 9):
        result = Representation.of(torch.zeros(count, 4))
        assert result.energy() == 0
        assert result.spectrum()[1].shape == (4, 0)
        assert result.held_energy(torch.zeros(4, 0, dtype=torch.float64)) == 1


def test_what_a_basis_holds_leaves_no_direction_of_rounding() -> None:
    for count in (4, 30):
        rows = normal(count, 3) @ random_basis(10, 3).T * 1e3
        values, vectors = Representation.of(rows).spectrum(random_basis(10, 3))
        assert (len(values), vectors.shape) == (0, (10, 0))


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
