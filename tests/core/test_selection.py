"""The rules that choose new directions, against the same rules in plain loops."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from classgrad.core import selection
from classgrad.core.subspace import Representation
from oracles.bases import LayerMemory, energy, held, projector

RULES = ["plain", "alg1", "joint", "official"]
problems = st.tuples(
    st.integers(2, 14),  # dimension
    st.floats(0.05, 1),  # how much of the basis
    st.integers(1, 25),  # inputs
    st.floats(0.3, 0.9999),  # threshold
    st.sampled_from([1.0, 0.6, 0.2]),  # decay
    st.integers(0, 2**32 - 1),
)
Problem = tuple[int, float, int, float, float, int]


def setup(problem: Problem) -> tuple[LayerMemory, np.ndarray, float, list[int]]:
    """Return a memory whose basis leans to the strong directions of C; C, ε and a group."""
    dimension, share, count, epsilon, decay, seed = problem
    rng = np.random.default_rng(seed)
    turn = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    c = turn @ (decay ** np.arange(dimension)[:, None] * rng.standard_normal((dimension, count)))
    memory = LayerMemory(dimension)
    rank = int(share * dimension)
    near = turn[:, :rank] + 0.3 * rng.standard_normal((dimension, rank))
    memory.append(near / np.linalg.norm(near, axis=0))
    group = sorted(rng.permutation(memory.basis.shape[1])[: rng.integers(0, rank + 1)].tolist())
    memory.margins.clear()
    return memory, c, epsilon, group


def chosen(
    rule: str, memory: LayerMemory, c: np.ndarray, epsilon: float, group: list[int]
) -> selection.Selection:
    extra = [group] if rule == "official" else []
    basis = torch.from_numpy(memory.basis)
    return getattr(selection, rule)(
        basis, Representation.of(torch.from_numpy(c.T)), epsilon, *extra
    )


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_new_directions_equal_those_of_a_plain_svd_loop(rule: str, problem: Problem) -> None:
    memory, c, epsilon, group = setup(problem)
    extra = [group] if rule == "official" else []
    expected = getattr(memory, rule)(c, epsilon, *extra)
    assume(min(memory.margins) > 1e-6)
    new = chosen(rule, memory, c, epsilon, group).new.numpy()
    assert new.shape == expected.shape
    assert np.abs(projector(new) - projector(expected)).max() < 1e-9 if new.size else True


@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_plain_and_joint_hold_the_share_and_plain_with_no_direction_to_spare(
    problem: Problem,
) -> None:
    memory, c, epsilon, group = setup(problem)
    for rule in ("plain", "joint"):
        new = chosen(rule, memory, c, epsilon, group).new.numpy()
        assert held(c, np.concatenate([memory.basis, new], axis=1)) >= epsilon - 1e-12
    new = chosen("plain", memory, c, epsilon, group).new.numpy()
    if new.shape[1]:
        assert held(c, np.concatenate([memory.basis, new[:, :-1]], axis=1)) < epsilon + 1e-12


@settings(deadline=None, max_examples=100)
@given(problem=problems)
def test_joint_never_adds_fewer_than_plain_and_alg1_never_more(problem: Problem) -> None:
    memory, c, epsilon, group = setup(problem)
    count = {rule: chosen(rule, memory, c, epsilon, group).new.shape[1] for rule in RULES}
    memory.plain(c, epsilon)
    memory.joint(c, epsilon)
    assume(min(memory.margins) > 1e-9)
    assert count["alg1"] <= count["plain"] <= count["joint"]


def test_alg1_and_official_can_add_less_than_plain_and_leave_the_share_unheld() -> None:
    memory, c, _, _ = setup((12, 0.5, 40, 0.97, 0.6, 0))
    everything = list(range(memory.basis.shape[1]))
    count = {rule: chosen(rule, memory, c, 0.97, everything).new.shape[1] for rule in RULES}
    assert count["official"] <= count["alg1"] < count["plain"] <= count["joint"]
    new = chosen("alg1", memory, c, 0.97, everything).new.numpy()
    assert 0.5 < held(c, np.concatenate([memory.basis, new], axis=1)) < 0.97


def test_alg1_stops_at_plain_where_the_own_rank_would_take_more() -> None:
    # A plane of two equal directions; S holds it but for a little, along two thin directions each.
    memory = LayerMemory(4)
    tilt = 0.3
    memory.append(np.array([[1, 0, tilt, 0]]).T / np.hypot(1, tilt))
    c = np.diag([1.0, 0.98, 0.9, 0.0])
    for epsilon in (0.6, 0.9, 0.99):
        plain = chosen("plain", memory, c, epsilon, []).new.shape[1]
        assert chosen("alg1", memory, c, epsilon, []).new.shape[1] <= plain


@settings(deadline=None, max_examples=60)
@given(problem=problems)
def test_the_stored_columns_are_the_strongest_of_the_joint_list(problem: Problem) -> None:
    memory, c, epsilon, group = setup(problem)
    result = chosen("joint", memory, c, epsilon, group)
    represented = np.concatenate([memory.basis[:, result.stored], result.new.numpy()], axis=1)
    assert held(c, represented) >= epsilon - 1e-12
    weakest = min(float(v @ c @ c.T @ v) for v in represented.T)
    others = [i for i in range(memory.basis.shape[1]) if i not in result.stored]
    assert all(
        float(memory.basis[:, i] @ c @ c.T @ memory.basis[:, i]) <= weakest + 1e-12 * energy(c)
        for i in others
    )
    assert set(chosen("official", memory, c, epsilon, group).stored) <= set(group)
    plain, complete = (chosen(rule, memory, c, epsilon, group) for rule in ("plain", "complete"))
    assert plain.stored == []
    assert torch.equal(plain.new, complete.new)
    own = np.concatenate([memory.basis[:, complete.stored], complete.new.numpy()], axis=1)
    assert held(c, own) >= epsilon - 1e-12
    if complete.stored:  # with none to spare
        energies = {i: np.linalg.norm(memory.basis[:, i] @ c) for i in complete.stored}
        weakest = min(energies, key=energies.get)
        without = [i for i in complete.stored if i != weakest]
        less = np.concatenate([memory.basis[:, without], complete.new.numpy()], axis=1)
        assert held(c, less) < epsilon + 1e-12


@pytest.mark.parametrize("rule", RULES)
def test_a_class_of_zeros_adds_nothing(rule: str) -> None:
    memory = LayerMemory(4)
    memory.append(np.eye(4)[:, :2])
    assert chosen(rule, memory, np.zeros((4, 6)), 0.97, [0]).new.shape == (4, 0)
