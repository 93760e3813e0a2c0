"""GEM: the closest gradient within the constraints, by brute force and in training."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from classgrad.errors import Diverged, UserError
from classgrad.methods import GEM
from classgrad.methods.flat import gram, inner
from classgrad.methods.replay.base import correct_
from classgrad.methods.replay.gem import closest_within, minimise_above
from oracles.models import normal
from oracles.replay import (
    backward,
    begun_step,
    flat,
    learnt,
    least_above,
    mean_gradient,
    named_gradients,
    onto_cone,
    permuted,
)
from streams import blobs

TINY = 1e-13


def case(seed):
    """A gradient and the gradients of one to five tasks, in few or many dimensions."""
    rng = np.random.default_rng(seed)
    count, size = int(rng.integers(1, 6)), int(rng.integers(2, 12))
    return rng.standard_normal(size), rng.standard_normal((count, size))


def corrected(gradient, rows, margin, ridge):
    """The gradient after a correction, and whether it was left alone."""
    result = gradient.clone()
    rows = [[row] for row in rows]
    factors = closest_within(inner(rows, [result]), gram(rows), margin, ridge)
    return result, not correct_([result], rows, factors)


def found_for(g, rows, margin, ridge):
    result, same = corrected(torch.from_numpy(g), torch.from_numpy(rows), margin, ridge)
    return result.numpy(), same


def test_without_margin_it_is_the_projection_onto_the_cone():
    turned = 0
    for seed in range(150):
        g, rows = case(seed)
        result, same = found_for(g, rows, 0.0, TINY)
        if (rows @ g >= 0).all():
            assert same
            continue
        turned += 1
        assert (rows @ result >= -1e-6).all(), seed
        assert result == pytest.approx(onto_cone(g, rows), abs=1e-5), seed
    assert turned > 80


def test_margin_and_ridge_are_those_of_the_dual():
    for seed in range(60):
        g, rows = case(seed)
        if (rows @ g >= 0).all():
            continue
        for margin, ridge in ((0.5, 1e-3), (0.0, 0.3), (2.0, 10.0)):
            v = least_above(rows @ rows.T + ridge * np.eye(len(rows)), rows @ g, margin)
            result, _ = found_for(g, rows, margin, ridge)
            assert result == pytest.approx(rows.T @ v + g, rel=1e-9, abs=1e-9)


def test_with_a_margin_the_step_lowers_the_loss_of_a_violated_task():
    g, row = np.array([1.0, 0.0]), np.array([[-1.0, 0.5]])
    result, _ = found_for(g, row, 0.5, TINY)
    assert result == pytest.approx(g + 0.8 * row[0])  # v = 0.8 already exceeds the margin
    result, _ = found_for(g, row, 2.0, TINY)
    assert result == pytest.approx(g + 2.0 * row[0])
    assert row[0] @ result > 1


def test_constraints_that_hold_leave_the_gradient_alone_whatever_the_margin():
    g, row = np.array([1.0, 1.0]), np.array([[1.0, -1.0], [2.0, 0.0]])
    assert found_for(g, row, 5.0, 1e-3)[1]


def test_equal_and_tiny_gradients_of_tasks_do_no_harm():
    for size in (1e-30, 1e-3, 1e4):
        rows = (normal(1, 6).repeat(4, 1) * size).float()
        result, _ = corrected(-rows[0] / size, rows, 0.5, 1e-3)
        assert result.isfinite().all()
        assert result.norm() <= 10 * (1 + 2 * size)


@pytest.mark.parametrize("heads", ["task", "shared"])
@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_steps_of_a_network_equal_a_plain_computation(heads, margin):
    """With memory_batch=0 all samples are in every step, so nothing is left to chance."""
    stream, _ = permuted()
    values = {"memory": 24, "memory_batch": 0, "margin": margin, "heads": heads}
    run = learnt("gem", stream, 2, ridge=TINY if margin == 0 else 1e-3, **values)
    turned = kept = 0
    for number in range(16):
        index = torch.randperm(48, generator=torch.Generator().manual_seed(number))[:6]
        step = begun_step(run, 2, index)
        backward(run, step)
        before = named_gradients(run.net)
        parts = run.method._memory.parts
        assert [len(parts[t]) for t in (0, 1)] == [12, 12]
        rows = np.stack([mean_gradient(run.net, parts[t], t, stream[t].transform) for t in (0, 1)])
        run.method.adjust_gradients(run.net, step)
        after = named_gradients(run.net)
        g, result = flat(run.net, before), flat(run.net, after)
        if (rows @ g >= 0).all():
            kept += 1
            for name, value in before.items():
                same = after[name]
                assert same is None if value is None else torch.equal(same, value)
        else:
            turned += 1
            if margin == 0:
                lengths = np.linalg.norm(rows, axis=1)
                assert (rows @ result >= -1e-7 * lengths * np.linalg.norm(g)).all()
                assert result == pytest.approx(onto_cone(g, rows), abs=1e-7)
            else:
                v = least_above(rows @ rows.T + 1e-3 * np.eye(2), rows @ g, margin)
                assert result == pytest.approx(rows.T @ v + g, rel=1e-8, abs=1e-10)
        step.optimizer.step()
    assert turned > 2
    assert kept > 0


def test_a_step_looks_at_some_samples_of_every_finished_task():
    stream, calls = permuted()
    run = learnt("gem", stream, 2, memory=48)
    sizes = []
    rows = run.method._memory.rows
    run.method._memory.rows = lambda *args: sizes.append(len(rows(*args))) or rows(*args)
    for batch, size in ((5, 5), (1, 1), (0, 24), (1000, 24)):
        run.method.memory_batch = batch
        step = begun_step(run, 2)
        backward(run, step)
        calls.clear()
        sizes.clear()
        run.method.adjust_gradients(run.net, step)
        assert calls == [0, 1]
        assert sizes == [size, size]


def test_one_sample_per_task_becomes_two_where_batches_have_statistics():
    run = learnt("gem", blobs(2), 2, memory=48, memory_batch=1, batch_norm=True)
    assert len(run.record.accuracy_matrix) == 2


def test_the_first_task_has_no_constraint_and_draws_no_random_numbers():
    run = learnt("gem", blobs(2), 0)
    step = begun_step(run, 0)
    backward(run, step)
    before, state = named_gradients(run.net), step.generator.get_state()
    run.method.adjust_gradients(run.net, step)
    for name, value in named_gradients(run.net).items():
        assert torch.equal(value, before[name])
    assert torch.equal(step.generator.get_state(), state)


def test_bytes_are_those_of_the_samples():
    run = learnt("gem", blobs(3), 3, memory=50)
    assert run.method.memory_bytes() == 3 * 16 * (64 + 8)


@pytest.mark.parametrize(
    "values", [{"memory": 0}, {"memory_batch": -1}, {"margin": -0.1}, {"gamma": -1}, {"ridge": 0}]
)
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError, match=next(iter(values))) as caught:
        GEM(**values)
    assert "\n" not in str(caught.value)


def test_the_margin_goes_by_its_alias_too():
    assert GEM(gamma=0.2).margin == 0.2


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_no_numbers_are_refused_in_one_line(bad):
    gradient, rows = torch.tensor([1.0, -1.0]), torch.tensor([[-1.0, 0.0], [0.0, bad]])
    with pytest.raises(Diverged, match="lower learning_rate"):
        corrected(gradient, rows, margin=0.5, ridge=1e-3)


# The quadratic programme, against every active set and by its optimality conditions


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
    """v >= lower; the slope is zero where v is above it and does not fall where it is not.

    Slopes are measured in units in which all gradients have length 1, since their sizes differ.
    """
    unit = 1 / np.sqrt(np.diag(q))
    slope = unit * (q @ v + c)
    scale = tolerance * (unit * (np.abs(q) @ np.abs(v) + np.abs(c))).max()
    assert (v >= lower).all()
    assert (slope >= -scale).all()
    assert np.abs(slope[v > lower]).max(initial=0) <= scale


@st.composite
def problems(draw):
    """Gradients of one to five tasks, each of its own size, some almost the same; any ridge."""
    n, d = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    numbers = st.integers(-100, 100).map(lambda number: number / 100)
    rows = np.array([[draw(numbers) for _ in range(d)] for _ in range(n)])
    rows *= 10.0 ** np.array([draw(st.integers(-4, 4)) for _ in range(n)])[:, None]
    if draw(st.booleans()):
        rows[-1] = rows[0] * (1 + draw(st.sampled_from([0, 1e-12, 1e-6])))
    g = np.array([draw(numbers) for _ in range(d)])
    ridge = 10.0 ** draw(st.integers(-8, 0))
    q = rows @ rows.T + ridge * np.eye(n)
    size = np.sqrt(np.diag(q))
    assume(np.linalg.cond(q / np.outer(size, size)) < 1e13)  # else rounding has lost the ridge
    return q, rows @ g, draw(st.sampled_from([0.0, 0.5, 2.0]))


@settings(max_examples=300, deadline=None)
@given(problems())
def test_no_active_set_is_better_and_the_best_one_is_no_worse(case):
    q, c, lower = case
    v, best = solved(q, c, lower), least_above(q, c, lower)
    value, least = (v @ q @ v / 2 + c @ v), (best @ q @ best / 2 + c @ best)
    scale = np.abs(v) @ np.abs(q) @ np.abs(v) + np.abs(c) @ np.abs(v)
    scale += np.abs(best) @ np.abs(q) @ np.abs(best) + np.abs(c) @ np.abs(best)
    assert abs(value - least) <= 1e-11 * scale + 1e-30  # both may be zero but for rounding
    assert_optimal(q, c, lower, v)


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
    assert solved(q, np.array([-2.0, -4.0, -6.0]), 0.0) == pytest.approx([1, 2, 3], rel=1e-14)
    *bound, free = solved(q, np.array([-2.0, -4.0, -6.0]), 2.5)
    assert bound == [2.5, 2.5]
    assert free == pytest.approx(3, rel=1e-14)
