"""Bases are stored in the precision of the weights, and computed with in float64."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.core.linalg import reorthonormalised
from classgrad.core.subspace import Subspace
from classgrad.methods.projection.base import Projected
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from oracles.models import normal
from oracles.projection import random_basis
from streams import blobs

STREAM = blobs(tasks=3)
QUICK = {"epochs": 1, "batch_size": 12, "width": 24, "contrast": 0}
METHODS = {"gpm": {}, "sgp": {}, "trgp": {}, "cgp": {}, "released": {"reading": "released"}}


def plan_of(name):
    values = {**QUICK, **METHODS[name]}
    if name in ("gpm", "sgp", "trgp"):
        del values["contrast"]
    return make_plan(STREAM, "cgp" if name == "released" else name, values=values)


def orthonormal_up_to(tolerance, basis):
    return float((basis.T @ basis - torch.eye(basis.shape[1])).norm()) < tolerance


@settings(deadline=None, max_examples=40)
@given(dimension=st.integers(1, 40), rank=st.integers(0, 40), seed=st.integers(0, 2**32 - 1))
def test_rounded_columns_become_orthonormal_and_stay_where_they_were(dimension, rank, seed):
    exact = random_basis(dimension, min(rank, dimension), seed)
    rounded = exact.float()
    basis = reorthonormalised(rounded)
    assert basis.dtype == torch.float64
    assert orthonormal_up_to(1e-13, basis)
    assert torch.allclose(basis, exact, atol=1e-6, rtol=0)
    # Their span is that of the rounded columns, and the first ones do not depend on later ones.
    rest = rounded.double() - basis @ (basis.T @ rounded.double())
    assert float(rest.abs().sum()) < 1e-13 * (1 + basis.numel())
    half = exact.shape[1] // 2
    first = reorthonormalised(rounded[:, :half])
    assert torch.allclose(first, basis[:, :half], atol=1e-14, rtol=0)
    assert reorthonormalised(exact) is exact


def test_columns_that_were_stored_keep_their_bits():
    stored = Subspace(random_basis(20, 7, 1)).stored(torch.float32)
    more = stored.extended(normal(20, 3, seed=2)).extended(normal(20, 2, seed=3))
    assert more.columns.dtype == torch.float64
    assert more.rank == 12
    again = more.stored(torch.float32)
    assert torch.equal(again.columns[:, :7], stored.columns)
    assert again.rounded is None
    assert torch.allclose(again.basis, more.basis, atol=1e-6)
    assert stored.memory_bytes == 4 * 20 * 7
    assert stored.stored(torch.float32) is stored
    assert stored.exact().stored(torch.float32).columns.equal(stored.columns)
    assert more.reduced([0, 9]).stored(torch.float32).rank == 2


@pytest.mark.parametrize("name", METHODS)
def test_a_run_keeps_float32_and_decides_ranks_as_with_float64(name, monkeypatch):
    plan = plan_of(name)
    running, seen = Run(plan, STREAM), []
    for number in range(3):
        running.learn(number)
        seen.append(copy.deepcopy(running.method.state_dict()))
    for layer, columns in seen[-1]["bases"].items():
        assert columns.dtype == torch.float32
        before = seen[0]["bases"][layer]
        assert torch.equal(columns[:, : before.shape[1]], before), "old directions moved"
        assert orthonormal_up_to(1e-5, columns.double())
        assert orthonormal_up_to(1e-13, running.method.subspaces[layer].basis)
        rank = running.method.subspaces[layer].rank
        assert running.method.subspaces[layer].memory_bytes == 4 * rank * len(columns)
    if name == "released":
        groups = running.method.groups["fc1"]
        assert {basis.dtype for basis in groups.bases} == {torch.float32}
        assert all(orthonormal_up_to(1e-13, basis) for basis in groups.exact_bases())
    monkeypatch.setattr(Projected, "stored_type", lambda self, site: torch.float64)
    exact = Run(plan, STREAM)
    record = exact.execute()
    assert [layer.ranks for layer in record.layers] == [
        layer.ranks for layer in running.record.layers
    ]
    for layer, columns in exact.method.state_dict()["bases"].items():
        assert columns.dtype == torch.float64
        ours = running.method.subspaces[layer].basis
        assert float((ours @ (ours.T @ columns) - columns).norm(dim=0).max()) < 1e-2


def test_a_state_of_an_earlier_version_is_continued():
    """Its bases are in float64, until the next task ends."""
    plan = plan_of("gpm")
    running = Run(plan, STREAM)
    running.learn(0)
    state = copy.deepcopy(running.state_dict())
    bases = {n: s.basis for n, s in running.method.subspaces.items()}
    state["method"]["bases"] = bases
    again = Run(plan, STREAM)
    again.load_state_dict(state)
    for name, subspace in again.method.subspaces.items():
        assert torch.equal(subspace.basis, bases[name])
    for one in (running, again):
        one.learn(1)
    for name, subspace in again.method.subspaces.items():
        assert subspace.columns.dtype == torch.float32
        assert subspace.rank == running.method.subspaces[name].rank


def test_weights_of_double_precision_have_bases_of_it():
    running = Run(plan_of("gpm"), STREAM)
    running.net.double()
    method = running.method
    method.attach(running.net.protected())
    running.learn(0)
    assert {s.columns.dtype for s in method.subspaces.values()} == {torch.float64}
