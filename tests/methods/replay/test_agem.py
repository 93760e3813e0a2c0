"""A-GEM: the projection against its formula, and what its memory holds."""

import copy

import numpy as np
import pytest
import torch

from classgrad.errors import UserError
from classgrad.methods import AGEM
from classgrad.methods.flat import gram, inner
from classgrad.methods.replay.agem import spare
from classgrad.methods.replay.base import correct_
from oracles.models import normal
from oracles.replay import (
    backward,
    begun_step,
    flat,
    learnt,
    mean_gradient,
    named_gradients,
    permuted,
)
from streams import blobs


def spared(gradient, reference):
    """The gradient after a correction, in two parts, and whether it was corrected."""
    result = gradient.clone()
    parts, rows = [result[:1], result[1:]], [reference[:1], reference[1:]]
    factors = spare(inner([rows], parts), gram([rows]))
    return result, correct_(parts, [rows], factors)


def test_the_projection_equals_its_formula():
    turned = 0
    for seed in range(50):
        g, reference = normal(30, seed=2 * seed), normal(30, seed=2 * seed + 1)
        result, corrected = spared(g, reference)
        assert corrected == (float(g @ reference) < 0)
        if not corrected:
            assert torch.equal(result, g)
            continue
        turned += 1
        a, b = g.numpy(), reference.numpy()
        assert result.numpy() == pytest.approx(a - (a @ b) / (b @ b) * b, rel=1e-12, abs=1e-14)
        assert float(result @ reference) == pytest.approx(0, abs=1e-12)
    assert 10 < turned < 40


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1.0, 1e30])
def test_the_length_of_the_reference_does_not_matter(size):
    reference = torch.tensor([0.0, -size, -size])
    result, corrected = spared(torch.tensor([1.0, 1.0, 3.0]), reference)
    assert corrected
    assert result.tolist() == pytest.approx([1.0, -1.0, 1.0], rel=1e-6)


@pytest.mark.parametrize("size", [0.0, 1e-200])
def test_no_reference_no_change(size):
    g = normal(5).abs()
    result, corrected = spared(g, torch.full((5,), -size, dtype=torch.float64))
    assert not corrected
    assert torch.equal(result, g)


@pytest.mark.parametrize("heads", ["task", "shared"])
def test_steps_of_a_network_equal_a_plain_computation(heads):
    """The whole memory is in every batch, so its gradient is not random."""
    stream, _ = permuted()
    run = learnt("agem", stream, 2, memory=24, memory_batch=1000, heads=heads)
    turned = kept = 0
    for number in range(20):
        index = torch.randperm(48, generator=torch.Generator().manual_seed(number))[:6]
        step = begun_step(run, 2, index)
        backward(run, step)
        before = named_gradients(run.net)
        reference = sum(
            mean_gradient(run.net, run.method._memory.parts[t], t, stream[t].transform) / 2
            for t in (0, 1)
        )
        run.method.adjust_gradients(run.net, step)
        after = named_gradients(run.net)
        g, result = flat(run.net, before), flat(run.net, after)
        along = float(g @ reference)
        if along >= 0:
            kept += 1
            for name, value in before.items():
                same = after[name]
                assert same is None if value is None else torch.equal(same, value)
        else:
            turned += 1
            expected = g - along / (reference @ reference) * reference
            assert result == pytest.approx(expected, rel=1e-9, abs=1e-12)
            assert result @ reference == pytest.approx(0, abs=1e-9 * np.abs(reference).max())
            if heads == "task":
                assert torch.equal(after["heads.2.weight"], before["heads.2.weight"])
                assert before["heads.0.weight"] is None
                assert after["heads.0.weight"].any()
        step.optimizer.step()
    assert turned > 2
    assert kept > 0


def test_only_finished_tasks_are_looked_at():
    stream, calls = permuted()
    run = learnt("agem", stream, 0)
    for task in range(3):
        step = begun_step(run, task)
        backward(run, step)
        before = named_gradients(run.net)
        state = step.generator.get_state()
        calls.clear()
        run.method.adjust_gradients(run.net, step)
        assert calls == list(range(task))
        if task == 0:
            assert torch.equal(step.generator.get_state(), state)
            for name, value in named_gradients(run.net).items():
                assert torch.equal(value, before[name])
        run.method.end_task(run.net, stream[task], torch.Generator().manual_seed(task))
        if task < 2:
            run.net.add_task(3)


def test_shares_are_equal_after_every_task_and_bytes_are_counted():
    stream = blobs(4)
    run = learnt("agem", stream, 0, memory=50)
    for task, share in enumerate([48, 25, 16, 12]):  # a task has 48 training samples
        run.learn(task)
        parts = run.method._memory.parts
        assert {t: len(part) for t, part in parts.items()} == dict.fromkeys(range(task + 1), share)
        assert run.method.memory_bytes() == share * (task + 1) * (64 + 8)
        for t, part in parts.items():
            counts = torch.bincount(part.labels, minlength=3)
            assert counts.max() - counts.min() <= 1
            own = {tuple(image.flatten().tolist()) for image in stream[t].train.images}
            assert all(tuple(image.flatten().tolist()) in own for image in part.images)


def test_images_of_another_shape_go_through_the_transform_of_their_task():
    stream = blobs(2)
    small = stream[0]
    for split in (small.train, small.valid, stream.test(0)):
        object.__setattr__(split, "images", split.images[:, :, 1:7, 1:7].contiguous())
    padded = torch.nn.functional.pad
    object.__setattr__(small, "transform", lambda images: padded(images, [1] * 4))
    record = learnt("agem", stream, 2, memory=10).record
    assert record.complete is False
    assert len(record.accuracy_matrix) == 2


def test_state_of_the_middle_of_a_task_resumes_alike():
    stream, _ = permuted()
    run = learnt("agem", stream, 1, memory=20)

    def go(run, numbers):
        for number in numbers:
            step = begun_step(run, 1, torch.arange(8) + 8 * number, seed=number)
            backward(run, step)
            run.method.adjust_gradients(run.net, step)
            step.optimizer.step()

    go(run, range(3))
    again = copy.copy(run)
    again.session = copy.copy(run.session)
    again.session.net, again.session.method = copy.deepcopy(run.net), run.method.replace()
    again.method.wrap(again.net, stream, 1)
    again.method.load_state_dict(run.method.state_dict(), again.net)
    for one in (run, again):
        go(one, range(3, 6))
    for a, b in zip(run.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("options", "least"), [({}, 3), ({"batch_norm": True}, 6)])
def test_a_memory_too_small_for_every_task_is_refused(options, least):
    assert learnt("agem", blobs(3), 3, memory=least, **options).record.accuracy_matrix
    with pytest.raises(UserError, match=f"memory={least - 1} .* at least {least}") as caught:
        learnt("agem", blobs(3), 0, memory=least - 1, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["agem", "gem"])
def test_a_loss_of_kept_samples_that_is_no_number_ends_the_run_in_one_line(name):
    run = learnt(name, blobs(2), 1)
    step = begun_step(run, 1)
    backward(run, step)
    with torch.no_grad():
        run.net.heads[0].weight.fill_(torch.nan)
    with pytest.raises(UserError, match="kept samples is nan: lower learning_rate"):
        run.method.adjust_gradients(run.net, step)


@pytest.mark.parametrize("values", [{"memory": 0}, {"memory_batch": 0}, {"memory_batch": "many"}])
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError, match=next(iter(values))) as caught:
        AGEM(**values)
    assert "\n" not in str(caught.value)
