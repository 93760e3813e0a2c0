"""The rules that choose new directions, against the same rules in plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from classgrad.core import selection
from classgrad.core.subspace import Representation
from oracles.bases import LayerMemory, energy, held, projector

RULES = ["plain", "own", "capped", "missing", "joint"]
problems = st.tuples(
    st.integers(2, 14),  # dimension
    st.floats(0.05, 1),  # how much of the basis
    st.integers(1, 25),  # inputs
    st.floats(0.3, 0.9999),  # threshold
    st.sampled_from([1.0, 0.6, 0.2]),  # decay
    st.integers(0, 2**32 - 1),
)
Problem = tuple[int, float, int, float, float, int]


def setup(problem: Problem) -> tuple[LayerMemory, np.ndarray, float]:
    """Return a memory whose basis leans to the strong directions of C; C and ε."""
    dimension, share, count, epsilon, decay, seed = problem
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    c = turn @ (decay ** np.arange(dimension)[:, None] * rng.standard_normal((dimension, count)))
    memory = LayerMemory(dimension)
    rank = int(share * dimension)
    near = turn[:, :rank] + 0.3 * rng.standard_normal((dimension, rank))
    memory.append(near / np.linalg.norm(near, axis=0))
    memory.margins.clear()
    return memory, c, epsilon


def chosen(
    rule: str, memory: LayerMemory, c: np.ndarray, epsilon: float, **options: bool
) -> selection.Selection:
    representation = Representation.of(torch.from_numpy(c.T))
    choose = getattr(selection, rule)
    return choose(torch.from_numpy(memory.basis), representation, epsilon, **options)


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_new_directions_equal_those_of_a_plain_svd_loop(rule: str, problem: Problem) -> None:
    memory, c, epsilon = setup(problem)
    expected = getattr(memory, rule)(c, epsilon)
    assume(min(memory.margins) > 1e-6)
    new = chosen(rule, memory, c, epsilon).new.numpy()
    assert new.shape == expected.shape
    assert np.abs(projector(new) - projector(expected)).max() < 1e-9 if new.size else True


@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_plain_and_joint_hold_the_share_and_plain_with_no_direction_to_spare(
    problem: Problem,
) -> None:
    memory, c, epsilon = setup(problem)
    for rule in ("plain", "joint"):
        new = chosen(rule, memory, c, epsilon).new.numpy()
        assert held(c, np.concatenate([memory.basis, new], axis=1)) >= epsilon - 1e-12
    new = chosen("plain", memory, c, epsilon).new.numpy()
    if new.shape[1]:
        assert held(c, np.concatenate([memory.basis, new[:, :-1]], axis=1)) < epsilon + 1e-12


@settings(deadline=None, max_examples=100)
@given(problem=problems)
def test_joint_never_adds_fewer_than_plain_and_capped_never_more(problem: Problem) -> None:
    memory, c, epsilon = setup(problem)
    count = {rule: chosen(rule, memory, c, epsilon).new.shape[1] for rule in RULES}
    memory.plain(c, epsilon)
    memory.joint(c, epsilon)
    assume(min(memory.margins) > 1e-9)
    assert max(count["capped"], count["missing"]) <= count["plain"] <= count["joint"]
    assert count["capped"] == min(count["own"], count["plain"])


def test_own_and_missing_can_add_less_than_plain_and_leave_the_share_unheld() -> None:
    memory, c, _ = setup((12, 0.5, 40, 0.97, 0.6, 0))
    count = {rule: chosen(rule, memory, c, 0.97).new.shape[1] for rule in RULES}
    assert count["missing"] <= count["own"] < count["plain"] <= count["joint"]
    new = chosen("own", memory, c, 0.97).new.numpy()
    assert 0.5 < held(c, np.concatenate([memory.basis, new], axis=1)) < 0.97


def test_capped_stops_at_plain_where_the_own_rank_would_take_more() -> None:
    # A plane of two equal directions; S holds it but for a little, along two thin directions each.
    memory = LayerMemory(4)
    tilt = 0.3
    memory.append(np.array([[1, 0, tilt, 0]]).T / np.hypot(1, tilt))
    c = np.diag([1.0, 0.98, 0.9, 0.0])
    for epsilon in (0.6, 0.9, 0.99):
        plain = chosen("plain", memory, c, epsilon).new.shape[1]
        assert chosen("capped", memory, c, epsilon).new.shape[1] <= plain


@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_the_stored_columns_are_the_strongest_of_the_joint_list(problem: Problem) -> None:
    memory, c, epsilon = setup(problem)
    result = chosen("joint", memory, c, epsilon)
    represented = np.concatenate([memory.basis[:, result.stored], result.new.numpy()], axis=1)
    assert held(c, represented) >= epsilon - 1e-12
    weakest = min(float(v @ c @ c.T @ v) for v in represented.T)
    others = [i for i in range(memory.basis.shape[1]) if i not in result.stored]
    assert all(
        float(memory.basis[:, i] @ c @ c.T @ memory.basis[:, i]) <= weakest + 1e-12 * energy(c)
        for i in others
    )
    assert chosen("plain", memory, c, epsilon).stored == []


@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_of_the_residual_less_is_protected_as_the_equation_is_printed(problem: Problem) -> None:
    memory, c, epsilon = setup(problem)
    new = chosen("plain", memory, c, epsilon, of_residual=True).new.numpy()
    rest = 1 - held(c, memory.basis)
    share = held(c, np.concatenate([memory.basis, new], axis=1))
    assert share >= epsilon * rest - 1e-12
    if new.shape[1]:
        fewer = np.concatenate([memory.basis, new[:, :-1]], axis=1)
        assert held(c, fewer) < epsilon * rest + 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_a_class_of_zeros_adds_nothing(rule: str) -> None:
    memory = LayerMemory(4)
    memory.append(np.eye(4)[:, :2])
    assert chosen(rule, memory, np.zeros((4, 6)), 0.97).new.shape == (4, 0)


@settings(deadline=None)
@given(problem=problems, uncounted=st.integers(0, 3))
def test_uncounted_directions_are_held_besides_the_share_of_the_rest(
    problem: Problem, uncounted: int
) -> None:
    _, c, epsilon = setup(problem)
    values = np.sort(np.linalg.svd(c, compute_uv=False))[::-1] ** 2
    representation = Representation.of(torch.from_numpy(c.T.copy()))
    share = selection.share_of_whole(representation, epsilon, uncounted)
    expected = values[:uncounted].sum() + epsilon * values[uncounted:].sum()
    assert share * values.sum() == pytest.approx(expected, rel=1e-9)
    assert share >= epsilon or share == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize("rule", ["plain", "own", "capped", "joint"])
def test_one_channel_drowns_the_rest_unless_it_is_not_counted(rule: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((40, 8))
    rows[:, 3] += 1000
    c = Representation.of(torch.from_numpy(rows))
    none = torch.zeros(8, 0, dtype=torch.float64)
    choose = getattr(selection, rule)
    assert choose(none, c, 0.99).new.shape[1] == 1
    assert choose(none, c, selection.share_of_whole(c, 0.99, 1)).new.shape[1] == 8
