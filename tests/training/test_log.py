"""The log of training: which lines there are, when, and what they say."""

import json
import logging
import time

import pytest
import torch

import classgrad
from classgrad.learner.learner import Learner
from classgrad.training.config import Training
from classgrad.training.log import TrainingLog, as_message, handled, logger, note
from classgrad.training.loop import Progress
from streams import blobs

FAST = {"values": {"epochs": 2, "batch_size": 24}}


@pytest.fixture
def clock(monkeypatch):
    """A clock that only the test moves."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def logged():
    """What is logged in the test, as messages with their levels."""
    records = []
    with handled(records.append, logging.DEBUG):
        yield lambda level=logging.DEBUG: [as_message(r) for r in records if r.levelno >= level]


def train(log, clock, seconds, epochs, per_epoch=2, number=0, tasks=2):
    """Take the steps of a task, each of so many seconds."""
    for epoch in range(epochs):
        for step in range(1, per_epoch + 1):
            clock[0] += seconds
            at = epoch * per_epoch + step
            last = step == per_epoch
            progress = Progress(number, epoch, at, epochs * per_epoch, 0.5, 0.1, epochs, last)
            log.step(progress, "birds", (number + at / (epochs * per_epoch)) / tasks)


def test_nothing_is_shown_unless_the_program_asks_for_it(capfd):
    assert [type(handler) for handler in logger.handlers] == [logging.NullHandler]
    classgrad.run(blobs(2), "gpm", **FAST)
    note("damaged", level=logging.WARNING)
    assert capfd.readouterr() == ("", "")


def test_a_run_logs_its_tasks_and_in_detail_its_epochs(caplog):
    with caplog.at_level(logging.DEBUG, logger="classgrad"):
        record = classgrad.run(blobs(2), "gpm", **FAST)
    levels = [(entry.levelname, entry.values["event"]) for entry in caplog.records]
    one = [("DEBUG", "epoch")] * 2 + [("INFO", "task")]
    assert levels == one * 2
    assert caplog.messages[1].startswith("gpm: task 1/2, epoch 2/2: loss ")
    assert caplog.messages[1].endswith(", 50 % done")
    figures = f"ACC {record.average_accuracy:.2f} %, BWT {record.backward_transfer:+.2f}"
    assert caplog.messages[-1].startswith("gpm: task 2/2 learnt in ")
    assert caplog.messages[-1].endswith(f" s: {figures}")


def test_a_log_changes_nothing(logged):
    def timeless(record):
        values = json.loads(record.to_json())
        del values["seconds"]
        return values

    with_log = classgrad.run(blobs(2), "cgp", **FAST)
    assert logged()
    logger.setLevel(logging.CRITICAL)
    assert timeless(classgrad.run(blobs(2), "cgp", **FAST)) == timeless(with_log)


def test_a_method_that_learns_all_tasks_at_once_has_one_line(caplog):
    with caplog.at_level(logging.INFO, logger="classgrad"):
        classgrad.run(blobs(2), "multitask", values={**FAST["values"], "epoch_factor": 1})
    (line,) = caplog.messages
    assert line.startswith("multitask: task 2/2 learnt in ")


def test_a_resumed_and_a_finished_run_say_so(caplog, tmp_path):
    with caplog.at_level(logging.INFO, logger="classgrad"):
        for _ in range(2):
            classgrad.run(blobs(2), "gpm", out=tmp_path, **FAST)
    assert caplog.messages[-1] == "gpm: finished before"
    assert caplog.records[-1].values["hint"] == "fresh"


def test_a_learner_logs_its_tasks(caplog):
    rng = torch.Generator().manual_seed(1)
    x = torch.rand(40, 3, 8, 8, generator=rng)
    learner = Learner(network="mlp", size=8, training=Training(epochs=2))
    with caplog.at_level(logging.DEBUG, logger="classgrad"):
        learner.learn("light\n", (x, (x.mean((1, 2, 3)) > 0.5).long()))
    *epochs, last = caplog.records
    assert [entry.values["epoch"] for entry in epochs] == [0, 1]
    name, accuracy = "task ''light\\n''", learner.tasks[0].accuracy
    assert caplog.messages[0].startswith(f"{name}, epoch 1/2: loss ")
    assert caplog.messages[-1].startswith(f"{name} learnt in ")
    assert caplog.messages[-1].endswith(f" s: accuracy {accuracy:.2f} %")
    assert (last.values["tasks"], last.values["accuracy"]) == (None, accuracy)


@pytest.mark.parametrize(
    ("seconds", "lines"),  # of one step; two are an epoch
    [
        (0.001, 0),
        (1.5, 2),  # after 12 and after 24 of 30 seconds
        (5.0, 10),
        (30.0, 10),
        (60.0, 20),  # one within each epoch, too
    ],
)
def test_short_epochs_share_a_line_and_long_ones_have_several(clock, logged, seconds, lines):
    log = TrainingLog("gpm", tasks=2)
    log.begin_task()
    train(log, clock, seconds, epochs=10)
    assert len(logged(logging.INFO)) == lines
    assert sum(message["event"] == "epoch" for message in logged()) == 10


def test_the_time_left_is_that_of_the_whole_run(clock, logged):
    log = TrainingLog("gpm", tasks=2)
    log.begin_task()
    train(log, clock, seconds=30.0, epochs=2)
    first, second = logged(logging.INFO)
    assert (first["done"], first["left"]) == (0.25, 180.0)  # 30 s for an eighth of it
    assert first["text"] == "task 1/2, epoch 1/2: loss 0.500, 25 % done, 3.0 min left"
    assert (second["done"], second["left"]) == (0.5, 120.0)
    clock[0] += 15.0
    log.accuracy = 98.765
    log.end_task(0, "birds", done=0.5)
    (*_, task) = logged(logging.INFO)
    assert task["text"] == "task 1/2 learnt in 2.2 min: ACC 98.77 %, 2.3 min left"
    assert (task["seconds"], task["left"], task["accuracy"]) == (135.0, 140.0, 98.765)


def test_the_loss_of_a_line_is_the_mean_of_its_epoch(clock, logged):
    log = TrainingLog("gpm", tasks=1)
    for step, loss in enumerate([1.0, 2.0, 5.0, 7.0], start=1):
        epoch, place = divmod(step - 1, 2)
        log.step(Progress(0, epoch, step, 4, loss, 0.1, 2, place == 1), "birds", step / 4)
    assert [message["loss"] for message in logged()] == [1.5, 6.0]


def test_features_that_are_only_computed_have_images_and_no_loss(clock, logged):
    log = TrainingLog()
    for step in (640, 1280):
        clock[0] += 60.0
        log.step(Progress(0, 0, step, 5120, float("nan"), 0.0), "birds", step / 5120)
    first, second = logged()
    assert first["event"] == "progress"
    assert first["text"] == "task 'birds': 640/5,120 images, 12 % done"
    assert second["text"] == "task 'birds': 1,280/5,120 images, 25 % done, 6.0 min left"
    assert {first["loss"], first["epoch"], first["epochs"]} == {None}


def test_what_other_modules_log_is_a_note(logged):
    logging.getLogger("classgrad").warning("%s of %s", "one", "two")
    (message,) = logged()
    assert {key: message[key] for key in ("event", "text", "level", "hint", "tell")} == {
        "event": "note",
        "text": "one of two",
        "level": "warning",
        "hint": None,
        "tell": "one of two",
    }
