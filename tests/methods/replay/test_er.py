"""Experience replay: the joint loss, the reservoir in training, and its state at any time."""

import copy
import dataclasses

import pytest
import torch

from classgrad.errors import UserError
from classgrad.methods import ER
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.loop import fit, validation_loss
from oracles.replay import QUICK, backward, begun_step, learnt, permuted, sample_losses
from streams import blobs


def test_the_loss_is_the_mean_over_both_batches_each_sample_on_its_own_head_and_transform():
    stream, _ = permuted()
    run = learnt("er", stream, 2, memory=40, memory_batch=1000)
    step = begun_step(run, 2, torch.arange(10))
    kept = run.method._memory.parts
    assert sum(len(part) for part in kept.values()) == 40
    assert len(kept[0]) != len(kept[1])
    losses = sample_losses(run.net, stream[2].train, 2, stream[2].transform)
    losses = losses[:10]
    for task, part in kept.items():
        losses += sample_losses(run.net, part, task, stream[task].transform)
    assert len(losses) == 50
    assert backward(run, step) == pytest.approx(sum(losses).item() / 50, rel=1e-12)
    assert all(p.grad is not None for task in range(3) for p in run.net.head_parameters(task))


def test_a_batch_from_the_memory_is_as_large_as_the_current_one_unless_set():
    run = learnt("er", permuted()[0], 2, memory=96)
    step = begun_step(run, 2, torch.arange(18))
    assert [len(p.index) for p in run.method.draw(step)] == [9, 9]
    run.method.memory_batch = 30
    assert [len(p.index) for p in run.method.draw(step)] == [15, 15]


@pytest.mark.parametrize("replay_current", [False, True])
def test_the_current_task_is_replayed_only_when_asked_to(replay_current):
    stream, calls = permuted()
    run = learnt("er", stream, 1, replay_current=replay_current, memory_batch=16)
    # The generator decides where samples go, the transforms used show what is replayed.
    for number in range(6):
        index = torch.arange(8) + 8 * number
        step = begun_step(run, 1, index, number=number, per_epoch=6)
        calls.clear()
        backward(run, step)
        run.method.after_step(run.net, step)
        assert calls == ([0, 1] if replay_current and number else [0])


def test_samples_are_offered_in_the_first_epoch_only_and_each_once():
    stream = blobs(2)
    run = learnt("er", stream, 1, epochs=3, memory=200)
    memory = run.method._memory
    assert memory.seen == len(memory) == len(stream[0].train) == 48
    assert len(memory.parts[0].images.flatten(1).unique(dim=0)) == 48
    fit(run.net, run.method, [stream[1]], run.plan.training, seed=1)
    assert memory.seen == len(memory) == 96
    assert memory.parts[1].images.dtype == torch.uint8
    assert sorted(memory.parts[1].labels.tolist()) == sorted(stream[1].train.labels.tolist())


def test_the_memory_stays_within_its_size_and_its_bytes_are_counted():
    run = learnt("er", blobs(3), 3, memory=20)
    memory = run.method._memory
    assert (len(memory), memory.seen) == (20, 144)
    # a uint8 image of 8 x 8, an int64 label and an int64 place
    assert run.method.memory_bytes() == 20 * (64 + 8 + 8)


def test_float_images_are_kept_as_they_are():
    stream = blobs(2)
    for task in stream:
        part = dataclasses.replace(task.train, images=task.train.images.float() / 255)
        object.__setattr__(task, "train", part)
    run = learnt("er", stream, 1, memory=10)
    assert run.method._memory.parts[0].images.dtype == torch.float32
    assert run.method.memory_bytes() == 10 * (4 * 64 + 8 + 8)
    assert float(run.method._memory.parts[0].images.max()) <= 1


def test_past_images_come_from_the_memory_only():
    results = []
    for destroy in (False, True):
        stream = blobs(2)
        run = learnt("er", stream, 1)
        if destroy:
            stream[0].train.images.zero_()
        fit(run.net, run.method, [stream[1]], run.plan.training, seed=1)
        results.append([p.detach().clone() for p in run.net.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("task", [0, 1])
def test_a_state_taken_in_the_middle_of_a_task_resumes_alike(task):
    stream = blobs(2)
    run = learnt("er", stream, task, memory=30)

    def go(run, numbers):
        for number in numbers:
            index = (torch.arange(8) + 8 * number) % 48
            step = begun_step(run, task, index, number=number, per_epoch=6, seed=number)
            backward(run, step)
            step.optimizer.step()
            run.method.after_step(run.net, step)

    go(run, range(4))
    assert 0 < run.method._memory.seen - 48 * task < 48
    state = copy.deepcopy(run.method.state_dict())
    again = copy.copy(run)
    again.session = copy.copy(run.session)
    again.session.net, again.session.method = copy.deepcopy(run.net), run.method.replace()
    again.method.wrap(again.net, stream, 1)
    again.method.load_state_dict(state, again.net)
    for one in (run, again):
        go(one, range(4, 10))
    assert again.method._memory.seen == run.method._memory.seen == 48 * (task + 1)
    for a, b in zip(run.net.parameters(), again.net.parameters(), strict=True):
        assert torch.equal(a, b)
    left, right = run.method._memory, again.method._memory
    for number in left.parts:
        assert torch.equal(left.parts[number].images, right.parts[number].images)
        assert torch.equal(left.places[number], right.places[number])


def test_a_single_sample_of_a_task_is_left_out_where_batches_have_statistics():
    for options in ({}, {"batch_norm": True}, {"batch_norm": True, "norm": "stored"}):
        stream, calls = permuted()
        run = learnt("er", stream, 2, memory=40, **options)
        memory = run.method._memory
        memory.parts[0] = dataclasses.replace(
            memory.parts[0], images=memory.parts[0].images[:1], labels=memory.parts[0].labels[:1]
        )
        memory.places[0] = memory.places[0][:1]
        step = begun_step(run, 2, torch.arange(16))
        calls.clear()
        backward(run, step)
        assert calls == ([1] if options else [0, 1])


def test_a_memory_that_holds_one_sample_works():
    run = learnt("er", blobs(2), 2, memory=1)
    assert len(run.method._memory) == 1
    with pytest.raises(UserError, match="memory=1 is too small for a network with BatchNorm"):
        learnt("er", blobs(2), 2, memory=1, batch_norm=True)


@pytest.mark.parametrize("name", ["er", "agem", "gem"])
def test_stored_statistics_of_old_tasks_follow_the_trunk_once_per_pass(name):
    stream, _ = permuted()
    values = {"batch_norm": True, "norm": "stored", "memory_batch": 1000}
    run = learnt(name, stream, 2, memory=60, **values)
    step = begun_step(run, 2, torch.arange(16))
    norm, first = run.net.trunk.bn1, run.net.trunk.fc1
    expected = {}
    for task in (0, 1):
        kept = run.method._memory.parts[task]
        seen = first(stream[task].transform(kept.images.double() / 255).flatten(1)).detach()
        old = getattr(norm, f"mean_{task}"), getattr(norm, f"variance_{task}")
        expected[task] = 0.9 * old[0] + 0.1 * seen.mean(0), 0.9 * old[1] + 0.1 * seen.var(0)
    backward(run, step)
    run.method.adjust_gradients(run.net, step)
    for task, (mean, variance) in expected.items():
        assert torch.allclose(getattr(norm, f"mean_{task}"), mean, rtol=1e-10, atol=1e-12)
        assert torch.allclose(getattr(norm, f"variance_{task}"), variance, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["er", "agem", "gem"])
@pytest.mark.parametrize(
    "options",
    [
        {"heads": "shared"},
        {"batch_norm": True, "affine": "task", "norm": "stored"},
        {"optimizer": "adam", "learning_rate": 0.01},
        {"momentum": 0.8, "weight_decay": 1e-3},
    ],
)
def test_old_tasks_end_with_less_loss_than_with_finetune(name, options):
    losses = []
    for method, size in ((name, {"memory": 36}), ("finetune", {})):
        stream, _ = permuted(per_class=12)
        values = {"epochs": 10, "learning_rate": 0.1, **size, **options}
        net = learnt(method, stream, 3, **values).net
        losses.append(sum(validation_loss(net, [stream[task]], 64) for task in (0, 1)))
    assert losses[0] < losses[1]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"memory": 0}, "memory must be greater"),
        ({"memory": 1.5}, "memory must be a valid integer"),
        ({"memory_batch": 0}, "memory_batch must be greater"),
        ({"replay": True}, "replay_current"),
    ],
)
def test_bad_settings_are_refused_in_one_line(values, message):
    with pytest.raises(UserError, match=message) as caught:
        ER(**values)
    assert "\n" not in str(caught.value)


def test_settings_that_were_passed_stay_a_description():
    method, stream = ER(memory=5), blobs(2)
    run = Run(make_plan(stream, method, values=QUICK), stream)
    run.execute()
    assert len(run.method._memory) == 5
    assert method._memory is None
    assert run.plan.method._memory is None
