"""Every method: asked to stop, a full disk, damaged checkpoints, bad values, and odd data."""

import errno
import logging
import random
import signal
from dataclasses import replace
from functools import cache

import pytest
import torch

from classgrad.checkpoints import CheckpointManager, files
from classgrad.errors import Stopped, UserError
from classgrad.methods import METHODS
from classgrad.runs.run import Run, run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, TaskStream
from streams import blobs

STREAM = blobs(tasks=2)
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.8, "width": 24}
FEWER = {"rcl": {"trials": 2, "child_epochs": 2}}
DAMAGES = ["flipped", "cut", "missing", "unnamed"]  # two for every method

# All tests of a method one after another: they share what a run left alone learns.
pytestmark = pytest.mark.parametrize("name", METHODS, scope="module")


def settings(name):
    return {**QUICK, **FEWER.get(name, {})}


def start(name, folder, stream=STREAM):
    plan = make_plan(stream, name, values=settings(name))
    return Run(plan, stream, folder, CheckpointManager(folder, steps=3))


@pytest.fixture(scope="module")
def alone():
    """How each method ends when nothing happens to it."""
    known = {}

    def end_of(name, folder):
        if name not in known:
            running = start(name, folder / "alone")
            known[name] = ended(running.resume(), running)
        return known[name]

    return end_of


def ended(record, running):
    weights = torch.cat([p.detach().flatten() for p in running.net.parameters()])
    return record.model_dump(exclude={"seconds"}), weights.tolist()


@cache
def moment(name):
    """A step of the run, another for every method."""
    total = []
    Run(make_plan(STREAM, name, values=settings(name)), STREAM).execute(total.append)
    return random.Random(name).randint(4, max(4, len(total) - 1))


def test_asked_to_stop_it_saves_at_once_and_resumes_later(name, tmp_path, alone):
    number = signal.SIGINT if list(METHODS).index(name) % 2 else signal.SIGTERM
    expected = alone(name, tmp_path)
    running = start(name, tmp_path)
    when, seen = moment(name), []

    def observer(_at):
        seen.append(1)
        if len(seen) == when:
            signal.raise_signal(number)

    with running.checkpoints.handle_stop_signals(), pytest.raises(Stopped) as stopped:
        running.resume(observer)
    assert stopped.value.number == number
    assert len(seen) == when  # not a step more
    again, steps = start(name, tmp_path), []
    assert ended(again.resume(steps.append), again) == expected
    first = again.checkpoints.store.folder
    assert not first.exists()


def test_a_full_disk_is_one_line_and_costs_nothing(name, tmp_path, alone, monkeypatch):
    expected = alone(name, tmp_path)
    running, saves, write = start(name, tmp_path), [], files.write

    def full(folder, counter, state):
        saves.append(counter)
        if len(saves) == 3:
            folder.mkdir()
            (folder / "state.json").write_text("{")
            raise OSError(errno.ENOSPC, "No space left on device")
        write(folder, counter, state)

    monkeypatch.setattr(files, "write", full)
    with pytest.raises(UserError, match="No space left on device; free some space") as caught:
        running.resume()
    assert "\n" not in str(caught.value)
    assert "is intact" in str(caught.value)
    running.method.close()
    again = start(name, tmp_path)
    assert ended(again.resume(), again) == expected


@pytest.mark.parametrize("number", [0, 1])
def test_damage_to_the_newest_checkpoint_is_found_and_the_one_before_is_used(
    name, number, tmp_path, alone, caplog
):
    damage = DAMAGES[(2 * list(METHODS).index(name) + number) % len(DAMAGES)]
    expected = alone(name, tmp_path)
    running = start(name, tmp_path)
    when, seen = max(8, moment(name)), []

    def observer(_at):
        seen.append(1)
        if len(seen) == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        running.resume(observer)
    running.method.close()
    newest = max((tmp_path / "checkpoints").iterdir())
    rng = random.Random(f"{name} {damage}")
    file = rng.choice(sorted(newest.iterdir()))
    if damage == "flipped":
        content = bytearray(file.read_bytes())
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        file.write_bytes(content)
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[: rng.randrange(file.stat().st_size)])
    elif damage == "missing":
        file.unlink()
    else:  # as after a power cut before the rename
        newest.rename(newest.with_name(f".part-{newest.name}"))
    again = start(name, tmp_path)
    with caplog.at_level(logging.WARNING, logger="classgrad"):
        assert ended(again.resume(), again) == expected
    if damage != "unnamed":
        assert "is damaged" in caplog.messages[0]
        assert file.name in caplog.messages[0]


def test_a_value_that_is_no_number_is_named_and_the_state_before_it_is_kept(name, tmp_path):
    first, second = STREAM[0], STREAM[1]
    images = second.train.images.float() / 255
    images[7, 0, 2, 2] = torch.nan
    bad = replace(second, train=Split(images, second.train.labels))
    as_floats = Split(first.train.images.float() / 255, first.train.labels)
    stream = TaskStream(
        "bad", [replace(first, train=as_floats), bad], [STREAM.test(0), STREAM.test(1)]
    )
    running = start(name, tmp_path, stream)
    with pytest.raises(UserError) as caught:
        running.resume()
    message = str(caught.value)
    assert "\n" not in message
    assert "sample 7 " in message
    assert "task 2 ('blobs 1'), epoch 1, step" in message
    if not METHODS[name].joint:
        assert start(name, tmp_path, stream).checkpoints.load() is not None
        assert (tmp_path / "record.json").exists()


def odd(kind):
    """A stream of two tasks with something odd about the second."""
    shape = (1, 1, 1) if kind == "tiny" else (1, 8, 8)
    tasks, tests = [], []
    source = blobs(tasks=2, classes=2, shape=shape)
    for task in source:
        train, names = task.train, task.class_names
        test, valid = source.test(task.id), task.valid
        if task.id == 1:
            images, labels = train.images.clone(), train.labels.clone()
            if kind == "one sample":
                keep = torch.cat([(labels == 0).nonzero().flatten()[:1], labels.nonzero()[:, 0]])
                images, labels = images[keep], labels[keep]
            elif kind == "constant":
                images[labels == 1] = 0
            elif kind == "identical":
                images[:] = images[0]
            elif kind == "one class":
                keep = labels == 0
                images, labels, names = images[keep], labels[keep], names[:1]
                test = Split(test.images[test.labels == 0], test.labels[test.labels == 0])
                valid = Split(valid.images[valid.labels == 0], valid.labels[valid.labels == 0])
            train = Split(images, labels)
        tasks.append(Task(task.id, task.name, names, train, valid))
        tests.append(test)
    return TaskStream(kind, tasks, tests)


@pytest.mark.parametrize("kind", ["one sample", "constant", "identical", "tiny", "one class"])
def test_odd_data_work_or_are_refused_in_one_line(name, kind):
    refusal = None
    try:
        record = run(odd(kind), name, values=settings(name))
    except UserError as error:
        refusal = str(error)
    if refusal is None:
        assert record.complete
        assert record.average_accuracy is not None
    else:
        assert "\n" not in refusal
