"""The quadratic programme of GEM against every active set, and by its optimality conditions."""

import numpy as np
import pytest
import torch

from classgrad.methods.replay.quadratic import minimise_above
from oracles.replay import least_above


def problem(seed):
    """A Gram matrix of few or many vectors, some almost the same, plus a ridge; any scale."""
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(1, 6)), int(rng.integers(1, 8))
    rows = rng.standard_normal((n, d)) * 10.0 ** rng.integers(-3, 4)
    if n > 1 and rng.random() < 0.4:
        rows[-1] = rows[0] * (1 + 1e-6 * rng.standard_normal())
    g = rng.standard_normal(d)
    ridge = 10.0 ** rng.integers(-8, 0)
    return rows @ rows.T + ridge * np.eye(n), rows @ g, float(rng.choice([0.0, 0.5, 2.0]))


def solved(q, c, lower):
    return minimise_above(torch.from_numpy(q), torch.from_numpy(c), lower).numpy()


def assert_optimal(q, c, lower, v, tolerance=1e-11):
    """v >= lower; the slope is zero where v is above it and does not fall where it is not."""
    slope = q @ v + c
    scale = tolerance * (np.abs(q) @ np.abs(v) + np.abs(c)).max()
    assert (v >= lower).all()
    assert (slope >= -scale).all()
    assert np.abs(slope[v > lower]).max(initial=0) <= scale


def test_equals_the_best_of_all_active_sets():
    bound = 0
    for seed in range(300):
        q, c, lower = problem(seed)
        v, best = solved(q, c, lower), least_above(q, c, lower)
        value, least = (v @ q @ v / 2 + c @ v), (best @ q @ best / 2 + c @ best)
        scale = np.abs(v) @ np.abs(q) @ np.abs(v) + np.abs(c) @ np.abs(v)
        assert value <= least + 1e-12 * scale, seed
        if np.linalg.cond(q) < 1e6:
            assert np.abs(v - best).max() < 1e-8 * (1 + np.abs(best).max()), seed
        assert_optimal(q, c, lower, v)
        bound += int((v == lower).any() and (v > lower).any())
    assert bound > 50  # cases that are neither free nor all at the bound


@pytest.mark.parametrize("ridge", [1e-3, 1e-8, 1e-12])
@pytest.mark.parametrize("rank", [1, 3, 19, 40])
def test_many_nearly_dependent_constraints(ridge, rank):
    for seed in range(10):
        rng = np.random.default_rng([seed, rank])
        rows = rng.standard_normal((19, rank)) @ rng.standard_normal((rank, 60))
        q, c = rows @ rows.T + ridge * np.eye(19), rows @ rng.standard_normal(60)
        assert_optimal(q, c, 0.5, solved(q, c, 0.5), tolerance=1e-9)


def test_singular_without_any_ridge():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = np.repeat(rng.standard_normal((3, 8)), 4, axis=0)
        q, c = rows @ rows.T, rows @ rng.standard_normal(8)
        assert_optimal(q, c, 0.5, solved(q, c, 0.5), tolerance=1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1e9, 1e30])
def test_the_scale_of_the_problem_does_not_matter(scale):
    q, c, _ = problem(4)
    assert solved(q * scale, c * scale, 0.5) == pytest.approx(solved(q, c, 0.5), rel=1e-9)


def test_all_at_the_bound_and_all_free():
    q = np.eye(3) * 2
    assert solved(q, np.ones(3), 0.0).tolist() == [0, 0, 0]
    assert solved(q, np.zeros(3), 0.0).tolist() == [0, 0, 0]
    assert solved(q, np.array([-2.0, -4.0, -6.0]), 0.0).tolist() == [1, 2, 3]
    assert solved(q, np.array([-2.0, -4.0, -6.0]), 2.5).tolist() == [2.5, 2.5, 3]
