"""What a process says of the run it does."""

import os
import signal

import pytest

from classgrad.checkpoints import Lock
from classgrad.experiments.executors import worker
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import jobs_of_plans
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan
from classgrad.training.loop import Loop


@pytest.fixture
def done(tmp_path):
    """Return what does a small job; returns the messages and the folder."""

    def do(method="gpm", **values):
        small = {"tasks": 2, "train_per_class": 10, "batch_size": 10, "epochs": 1}
        plan = make_plan("split-digits", method, values={**small, **values})
        (job,) = jobs_of_plans([("a", plan)], tmp_path)
        sent = []
        worker.run_job(worker.to_json(job, Options()), sent.append)
        return sent, job.folder

    return do


def test_it_tells_where_it_is_and_what_came_out(done, monkeypatch):
    monkeypatch.setattr(worker, "MESSAGE_INTERVAL", 0.0)
    sent, folder = done()
    record = RunRecord.load(folder)
    assert record.complete
    *steps, end = sent
    assert end == {
        "end": "done",
        "done": 1.0,
        "accuracy": record.average_accuracy,
        "transfer": record.backward_transfer,
    }
    assert [(at["task"], at["tasks"]) for at in steps] == [(0, 2)] * 5 + [(1, 2)] * 5
    assert [at["done"] for at in steps] == pytest.approx([n / 10 for n in range(1, 11)])
    assert {at["accuracy"] for at in steps[:5]} == {None}
    assert {at["accuracy"] for at in steps[5:]} == {record.accuracy_matrix[0][0]}


def test_methods_that_learn_all_tasks_at_once_do_not_begin_at_the_end(done, monkeypatch):
    monkeypatch.setattr(worker, "MESSAGE_INTERVAL", 0.0)
    sent, _ = done("multitask")
    assert [at["done"] for at in sent[:-1]] == pytest.approx([n / 10 for n in range(1, 11)])


def test_it_does_not_speak_too_often(done):
    sent, _ = done(epochs=20)
    assert len(sent) < 100


def test_a_finished_run_is_told_of_at_once(done):
    first, _ = done()
    (line, end), _ = done()
    assert line["tell"].startswith("gpm: finished before")
    assert end == first[-1]


def test_a_failed_run_says_why(done):
    sent, folder = done(learning_rate=1e30)
    assert sent[-1]["end"] == "failed"
    assert sent[-1]["why"].startswith("the loss is ")
    assert not RunRecord.load(folder).complete


def test_a_run_that_another_process_holds_is_busy(done):
    _, folder = done()
    with Lock(folder):
        (end,), _ = done()
    assert end["end"] == "busy"
    assert f"is in use by process {os.getpid()} " in end["why"]


def test_asked_to_stop_it_saves_and_goes_on_the_next_time(done, monkeypatch):
    step, seen = Loop.step, []

    def stopping(self, *given):
        seen.append(1)
        if len(seen) == 7:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", stopping)
        sent, _ = done()
    assert sent[-1] == {"end": "stopped"}
    sent, _ = done()
    assert sent[-1]["end"] == "done"
    assert {"tell": "gpm: resuming with task 2"} in sent
