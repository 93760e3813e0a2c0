"""A growing subspace against the same rules in plain loops, and with directions left out."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from classgrad.core import selection
from classgrad.core.subspace import Representation, Subspace
from classgrad.methods.projection.growing_subspace import GrowingSubspace
from oracles.bases import LayerMemory, held, projector

RULES = ["plain", "own", "capped", "missing", "joint"]


def inputs(rng: np.random.Generator, dimension: int, count: int, decay: float) -> np.ndarray:
    """C (d x n), whose energy falls along directions of its own."""
    turn = np.linalg.qr(rng.standard_normal((dimension, dimension)))[0]
    scale = decay ** np.arange(dimension)[:, None]
    return turn @ (scale * rng.standard_normal((dimension, count)))


@pytest.mark.parametrize("rule", RULES)
@settings(deadline=None, max_examples=40)
@given(
    dimension=st.integers(2, 14),
    share=st.floats(0, 1),
    counts=st.lists(st.integers(1, 20), min_size=1, max_size=4),
    epsilon=st.floats(0.3, 0.999),
    seed=st.integers(0, 2**32 - 1),
)
def test_growing_class_by_class_equals_plain_svd_loops(
    rule: str, dimension: int, share: float, counts: list[int], epsilon: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    memory = LayerMemory(dimension)
    rank = int(share * dimension)
    memory.append(np.linalg.qr(rng.standard_normal((dimension, dimension)))[0][:, :rank])
    memory.margins.clear()
    growing = GrowingSubspace(Subspace(torch.from_numpy(memory.basis)))
    for count in counts:
        c = inputs(rng, dimension, count, 0.6)
        memory.append(getattr(memory, rule)(c, epsilon))
        assume(min(memory.margins) > 1e-6)
        representation = Representation.of(torch.from_numpy(c.T))
        new = growing.choose(getattr(selection, rule), representation, epsilon).new
        growing.add(new)
        assert growing.rank == memory.basis.shape[1]
    basis = growing.subspace.basis.numpy()
    assert np.abs(projector(basis) - projector(memory.basis)).max() < 1e-9
    assert np.abs(basis.T @ basis - np.eye(basis.shape[1])).max(initial=0) < 1e-11


def test_directions_that_were_not_chosen_are_added_outside_what_is_stored() -> None:
    growing = GrowingSubspace(Subspace(torch.eye(5, dtype=torch.float64)[:, :3]))
    new = growing.choose(selection.plain, Representation.of(torch.eye(5)[3:4]), 0.9).new
    assert new.abs().flatten().tolist() == pytest.approx([0, 0, 0, 1, 0], abs=1e-12)
    growing.add(torch.tensor([[1.0, 0, 0, 1, 0], [0, 1, 0, 0, 0]], dtype=torch.float64).T)
    expected = np.diag([1.0, 1, 1, 1, 0])
    assert np.abs(projector(growing.subspace.basis.numpy()) - expected).max() < 1e-12


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("stored", [0, 20, 150])
def test_wide_layers_get_as_many_directions_within_one_as_by_all_eigenvectors(
    rule: str, stored: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(stored)
    c = inputs(rng, 256, 400, 0.6)
    start = Subspace(torch.from_numpy(np.linalg.qr(rng.standard_normal((256, stored)))[0]))
    choose = getattr(selection, rule)
    exact = (
        GrowingSubspace(start).choose(choose, Representation.of(torch.from_numpy(c.T)), 0.95).new
    )
    monkeypatch.setattr("classgrad.core.subspace.WIDE", 64)
    all_eigenvectors = []
    decompose = torch.linalg.eigh
    monkeypatch.setattr(
        "torch.linalg.eigh", lambda a: (all_eigenvectors.append(len(a) > 64), decompose(a))[1]
    )
    new = GrowingSubspace(start).choose(choose, Representation.of(torch.from_numpy(c.T)), 0.95).new
    assert not any(all_eigenvectors)
    assert abs(new.shape[1] - exact.shape[1]) <= 1
    if rule == "plain":
        assert 0 < new.shape[1] <= 8
        assert held(c, np.hstack([start.basis.numpy(), new.numpy()])) >= 0.95 - 1e-12
