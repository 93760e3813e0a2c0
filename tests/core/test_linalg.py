"""The kernels against plain singular value decompositions and definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from classgrad.core import linalg
from oracles.bases import directions, energies_along, outside
from oracles.models import normal
from oracles.projection import random_basis, without

seeds = st.integers(0, 2**32 - 1)
shapes = st.tuples(st.integers(1, 30), st.integers(1, 15))


def rows_of(shape: tuple[int, int], seed: int, decay: float = 1.0) -> Tensor:
    """Rows (n x d) whose columns shrink by `decay` from one to the next, then turned."""
    rng = np.random.default_rng(seed)
    dimension = shape[1]
    turn = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    rows = rng.standard_normal(shape) * decay ** np.arange(dimension)
    return torch.from_numpy(rows @ turn)


def orthonormality(basis: Tensor) -> float:
    return float((basis.T @ basis - torch.eye(basis.shape[1])).abs().max()) if basis.numel() else 0


def unheld(basis: Tensor, vectors: Tensor) -> float:
    """Largest share of a column's length that is outside the basis."""
    rest = np.linalg.norm(outside(vectors.numpy(), basis.numpy()), axis=0)
    return float((rest / vectors.norm(dim=0).clamp(min=1e-300).numpy()).max())


def test_half_of_a_symmetric_matrix() -> None:
    matrix = torch.tensor([[1.0, 2.0, 3.0], [2.0, 5.0, 6.0], [3.0, 6.0, 9.0]])
    half = linalg.upper_half(matrix)
    assert half.tolist() == [1.0, 2.0, 3.0, 5.0, 6.0, 9.0]
    assert torch.equal(linalg.from_upper_half(half, 3), matrix)


@settings(deadline=None, max_examples=60)
@given(shape=shapes, seed=seeds, decay=st.sampled_from([1.0, 0.5, 0.1]))
def test_spectrum_equals_the_svd_on_both_sides(
    shape: tuple[int, int], seed: int, decay: float
) -> None:
    rows = rows_of(shape, seed, decay)
    values, vectors = linalg.spectrum(rows)
    expected, _ = directions(rows.T.numpy())
    total = expected.sum()
    assert values.tolist() == sorted(values.tolist(), reverse=True)
    assert np.abs(values.numpy() - expected[: len(values)]).max() < 1e-13 * total
    assert expected[len(values) :].sum() < 1e-12 * total  # only rounding is left out
    assert orthonormality(vectors) < 1e-10
    moved = linalg.gram(rows) @ vectors
    assert float((moved - vectors * values).abs().max()) < 1e-12 * total


def test_spectrum_leaves_out_directions_that_are_rounding() -> None:
    thin = rows_of((4, 12), 0)
    wide = torch.cat([thin] * 5)
    for rows in (thin, torch.cat([thin, thin]), wide):
        values, vectors = linalg.spectrum(rows)
        assert len(values) == vectors.shape[1] == 4
    assert [len(part) for part in linalg.spectrum(torch.zeros(3, 5))] == [0, 5]
    assert linalg.spectrum(torch.zeros(0, 5))[1].shape == (5, 0)


def test_weak_directions_of_few_rows_stay_orthonormal() -> None:
    rows = rows_of((12, 40), 0, decay=0.2)
    assert orthonormality(linalg.spectrum(rows)[1]) < 1e-12


@settings(deadline=None, max_examples=40)
@given(shape=shapes, seed=seeds, data=st.data())
def test_residual_and_energies_equal_their_definitions(
    shape: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    rows = rows_of(shape, seed)
    basis = random_basis(shape[1], data.draw(st.integers(0, shape[1])), seed)
    c, s = rows.T.numpy(), basis.numpy()
    rest = outside(c, s)
    size = float(rows.square().sum())
    assert torch.allclose(linalg.residual(rows, basis), torch.from_numpy(rest.T), atol=1e-12)
    result = linalg.residual_gram(linalg.gram(rows), basis)
    assert np.abs(result.numpy() - rest @ rest.T).max() < 1e-13 * size
    assert torch.equal(result, result.T)
    for delta in (
        linalg.energy_along(rows, basis),
        linalg.energy_along_gram(linalg.gram(rows), basis),
    ):
        assert delta.tolist() == pytest.approx(energies_along(c, s).tolist(), abs=1e-12 * size)


def test_gram_is_taken_in_double_precision() -> None:
    rows = torch.full((1, 2), 1 + 2**-12)
    assert linalg.gram(rows).dtype == torch.float64
    assert float(linalg.gram(rows)[0, 1]) == (1 + 2**-12) ** 2  # float32 would round 2^-24 away


@pytest.mark.parametrize("dimension", [1, 128, 129, 300, 600])
def test_gram_by_blocks_is_the_whole_product(dimension: int) -> None:
    rows = normal(40, dimension)
    result = linalg.gram(rows)
    assert torch.allclose(result, rows.T @ rows, atol=1e-12)
    assert torch.allclose(result, result.T, rtol=0, atol=1e-13)


@settings(deadline=None, max_examples=200)
@given(
    energies=st.lists(st.floats(0, 10), max_size=8),
    target=st.one_of(st.floats(-1, 60), st.sampled_from([0.0, 1.0])),
)
def test_smallest_rank_is_the_first_prefix_that_suffices(
    energies: list[float], target: float
) -> None:
    prefixes = np.concatenate([[0.0], np.cumsum(energies)])
    enough = [k for k, total in enumerate(prefixes) if total >= target]
    expected = enough[0] if enough else len(energies)
    assert linalg.smallest_rank(torch.tensor(energies, dtype=torch.float64), target) == expected


def test_smallest_rank_adds_up_in_double_precision() -> None:
    energies = torch.tensor([1.0, 2**-25, 2**-25])
    assert linalg.smallest_rank(energies, 1 + 2**-25) == 2


@settings(deadline=None, max_examples=60)
@given(seed=seeds, data=st.data())
def test_extending_keeps_the_old_columns_and_holds_the_new_ones(
    seed: int, data: st.DataObject
) -> None:
    dimension = data.draw(st.integers(1, 15))
    rank = data.draw(st.integers(0, dimension))
    count = data.draw(st.integers(0, 6))
    basis = random_basis(dimension, rank, seed)
    vectors = normal(dimension, count, seed=seed)
    result = linalg.extend(basis, vectors)
    assert torch.equal(result[:, :rank], basis)
    assert result.shape[1] == min(dimension, rank + count)
    assert orthonormality(result) < 1e-12
    if count:
        assert unheld(result, vectors) < 1e-7


@settings(deadline=None, max_examples=60)
@given(seed=seeds, copies=st.lists(st.integers(0, 3), min_size=2, max_size=8))
def test_extending_by_columns_that_repeat_each_other_still_holds_them_all(
    seed: int, copies: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    pool = torch.from_numpy(rng.standard_normal((6, 4)))
    basis = random_basis(6, 1, seed + 1)
    vectors = pool[:, copies] * torch.from_numpy(rng.uniform(0.5, 2, len(copies)))
    result = linalg.extend(basis, vectors)
    assert result.shape[1] == 1 + len(set(copies))
    assert orthonormality(result) < 1e-12
    assert unheld(result, vectors) < 1e-7


@pytest.mark.parametrize("distance", [0.0, 1e-12, 1e-9, 1e-6, 1e-3])
def test_a_hundred_extensions_by_nearly_dependent_columns_stay_orthonormal(
    distance: float,
) -> None:
    rng = np.random.default_rng(0)
    basis = torch.zeros(150, 0, dtype=torch.float64)
    held = []
    for _ in range(100):
        fresh = rng.standard_normal((150, 1))
        near = basis.numpy() @ rng.standard_normal((basis.shape[1], 1))
        near = near + distance * rng.standard_normal((150, 1))
        vectors = torch.from_numpy(np.concatenate([fresh, near + fresh, near], axis=1))
        basis = linalg.extend(basis, vectors)
        held.append(vectors)
        assert orthonormality(basis) < 1e-10
    assert 100 <= basis.shape[1] <= 150
    assert unheld(basis, torch.cat(held, 1)) < 2e-7


def test_extending_by_nothing_new_gives_the_same_basis() -> None:
    basis = random_basis(7, 3)
    inside = basis @ normal(3, 4)
    for vectors in (inside, torch.zeros(7, 2), torch.zeros(7, 0)):
        assert torch.equal(linalg.extend(basis, vectors), basis)
    full = random_basis(4, 4)
    assert torch.equal(linalg.extend(full, normal(4, 3)), full)


@pytest.mark.parametrize("rank", [0, 1, 3, 6, 7])
def test_the_complement_is_orthonormal_and_all_that_is_left(rank: int) -> None:
    basis = random_basis(7, rank)
    rest = linalg.complement(basis)
    assert rest.shape == (7, 7 - rank)
    assert rest.dtype == torch.float64
    assert orthonormality(torch.cat([basis, rest], dim=1)) < 1e-12


@settings(deadline=None, max_examples=40)
@given(shape=shapes, seed=seeds, data=st.data())
def test_remove_and_keep_are_the_two_parts_of_a_matrix(
    shape: tuple[int, int], seed: int, data: st.DataObject
) -> None:
    matrix = rows_of(shape, seed)
    basis = random_basis(shape[1], data.draw(st.integers(0, shape[1])), seed)
    expected = without(matrix, basis)
    before = matrix.clone()
    assert torch.allclose(linalg.remove(matrix, basis), expected, atol=1e-12)
    assert torch.allclose(linalg.keep(matrix, basis), matrix - expected, atol=1e-12)
    assert torch.allclose(linalg.keep(matrix, linalg.complement(basis)), expected, atol=1e-12)
    assert torch.equal(matrix, before)


def test_orthonormal_keeps_each_column_on_its_side() -> None:
    vectors = -torch.eye(5, dtype=torch.float64)[:, :3] + 0.01 * rows_of((5, 3), 0)
    result = linalg.orthonormal(vectors)
    assert orthonormality(result) < 1e-12
    assert bool(((result * vectors).sum(0) > 0.9).all())


@pytest.mark.parametrize(("count", "dimension"), [(3, 9), (9, 9), (20, 9), (0, 4)])
def test_rows_of_a_gram_matrix_are_as_many_as_its_rank_and_have_its_spectrum(count, dimension):
    rng = torch.Generator().manual_seed(count)
    strengths = 10.0 ** -torch.arange(count, dtype=torch.float64)[:, None].clamp(max=5)
    c = strengths * torch.randn(count, dimension, generator=rng, dtype=torch.float64)
    gram = c.T @ c
    rows = linalg.rows_of_gram(gram)
    assert len(rows) == min(count, dimension)
    assert torch.allclose(rows.T @ rows, gram, rtol=0, atol=1e-13)
    expected = torch.linalg.eigvalsh(gram).clamp(min=0)
    result = torch.linalg.eigvalsh(rows.T @ rows).clamp(min=0)
    assert torch.allclose(result, expected, rtol=1e-6, atol=1e-14)


@settings(deadline=None, max_examples=40)
@given(
    seed=seeds,
    decay=st.sampled_from([0.5, 0.9, 0.97, 1.0]),
    share=st.sampled_from([0.3, 0.9, 0.99, 0.999999]),
)
def test_leading_directions_hold_the_energy_and_are_at_most_one_too_many(
    seed: int, decay: float, share: float
) -> None:
    rows = rows_of((150, 128), seed, decay)
    c_ct = rows.T @ rows
    exact = np.linalg.svd(rows.numpy(), compute_uv=False) ** 2
    energy = share * exact.sum()
    found = linalg.leading_spectrum(c_ct, energy)
    needed = 1 + int(np.argmax(np.cumsum(exact) >= energy))
    if found is None:
        assert needed > 4 or decay > 0.5
        return
    values, vectors = found
    rank = linalg.smallest_rank(values, energy)
    assert needed <= rank <= needed + 1
    assert orthonormality(vectors) < 1e-12
    along = energies_along(rows.T.numpy(), vectors.numpy())
    assert np.abs(values.numpy() - along).max() < 1e-10 * exact.sum()
    assert along[:rank].sum() > energy * (1 - 1e-12)


def test_a_bound_of_the_other_eigenvalues_is_proved_only_if_it_is_one() -> None:
    rotation = random_basis(6, 6)
    values = torch.tensor([9.0, 8, 3, 2, 1, 0], dtype=torch.float64)
    c_ct = (rotation * values) @ rotation.T
    known = rotation[:, :2], values[:2]
    assert linalg._bounds_rest(torch.tensor(3.001), c_ct, *known)
    assert not linalg._bounds_rest(torch.tensor(2.999), c_ct, *known)
