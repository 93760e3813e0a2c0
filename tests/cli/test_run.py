"""The command run: its progress as lines of JSON, and results at a URL."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from classgrad.checkpoints import Lock
from classgrad.experiments import jobs
from classgrad.runs.record import RunRecord
from classgrad.training.loop import Loop
from commands import SRC, one_line, refused

SMALL = {"tasks": 2, "train_per_class": 10, "batch_size": 10, "epochs": 1}


def words(method="gpm", **values):
    """Return the words of a small run."""
    pairs = [("--set", f"{name}={value}") for name, value in {**SMALL, **values}.items()]
    return ["run", "split-digits", "-m", method, *(word for pair in pairs for word in pair)]


@pytest.fixture
def follow(call):
    """Run the command with --progress json; return exit code, messages and standard error."""

    def run(*given):
        code, out, err = call(*given, "--progress", "json")
        return code, [json.loads(line) for line in out.splitlines()], err

    return run


def folder_in(place):
    (folder,) = (place / "runs").iterdir()
    return folder


def test_it_says_where_it_is_and_what_came_out(follow, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "MESSAGE_INTERVAL", 0.0)
    code, (first, *steps, end), err = follow(*words())
    assert (code, err) == (0, "")
    assert tmp_path / first["folder"] == folder_in(tmp_path)
    record = RunRecord.load(folder_in(tmp_path))
    assert record.complete
    figures = {"accuracy": record.average_accuracy, "transfer": record.backward_transfer}
    assert {**end, "end": "done", "done": 1.0, **figures} == end
    learnt = [at for at in steps if at["event"] == "task"]
    assert [(at["task"], at["done"]) for at in learnt] == [(0, 0.5), (1, 1.0)]
    steps = [at for at in steps if at["event"] == "progress"]
    assert [(at["task"], at["tasks"]) for at in steps] == [(0, 2)] * 5 + [(1, 2)] * 5
    assert [at["done"] for at in steps] == pytest.approx([n / 10 for n in range(1, 11)])
    assert {at["accuracy"] for at in steps[:5]} == {None}
    assert {at["accuracy"] for at in steps[5:]} == {record.accuracy_matrix[0][0]}


def test_methods_that_learn_all_tasks_at_once_do_not_begin_at_the_end(follow, monkeypatch):
    monkeypatch.setattr(jobs, "MESSAGE_INTERVAL", 0.0)
    _, sent, _ = follow(*words("multitask", epoch_factor=1))
    done = [at["done"] for at in sent if at["event"] == "progress"]
    assert done == pytest.approx([n / 10 for n in range(1, 11)])
    (learnt,) = [at for at in sent if at["event"] == "task"]
    assert (learnt["task"], learnt["done"]) == (1, 1.0)


def test_it_does_not_speak_too_often(follow):
    _, sent, _ = follow(*words(epochs=20))
    assert len(sent) < 100


def test_a_finished_run_is_reported_at_once(follow):
    _, first, _ = follow(*words())
    code, (_, line, end), _ = follow(*words())
    assert code == 0
    assert (line["tell"], line["hint"]) == ("gpm: finished before", "fresh")
    assert {**end, "time": ""} == {**first[-1], "time": ""}


def test_a_failed_run_says_why(follow, tmp_path):
    code, sent, err = follow(*words(learning_rate=1e30))
    assert code == 2
    assert sent[-1]["end"] == "failed"
    assert sent[-1]["why"].startswith("the loss is ")
    one_line(err, sent[-1]["why"])
    assert not RunRecord.load(folder_in(tmp_path)).complete


def test_a_run_that_another_process_holds_is_busy(follow, tmp_path):
    follow(*words())
    with Lock(folder_in(tmp_path)):
        code, (_, end), _ = follow(*words())
    assert (code, end["end"]) == (2, "busy")
    assert f"is in use by process {os.getpid()} " in end["why"]


def test_asked_to_stop_it_saves_and_resumes_the_next_time(follow, monkeypatch):
    step, seen = Loop.step, []

    def stopping(self, *given):
        seen.append(1)
        if len(seen) == 7:
            signal.raise_signal(signal.SIGTERM)
        return step(self, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", stopping)
        code, sent, _ = follow(*words())
    assert (code, sent[-1]["end"]) == (143, "stopped")
    code, sent, _ = follow(*words())
    assert (code, sent[-1]["end"]) == (0, "done")
    assert "gpm: resuming with task 2" in [at.get("tell") for at in sent]


# Learns the first task, and then takes a minute to measure it.
SLOW = """
import sys, time
from classgrad import cli
from classgrad.runs.run import Run

def measure(self, *given):
    print("measuring")
    time.sleep(60)

Run.measure = measure
cli.main()
"""


def test_without_a_reader_it_saves_and_ends_even_if_it_has_nothing_to_say(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW, *words(), "--save-minutes", "0", "--progress", "json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(SRC)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr.readline() == "measuring\n"  # what is printed does not mix with JSON
        process.stdout.close()
        assert process.wait(20) == 143
    finally:
        process.kill()
    one_line(process.communicate()[1], "stopped; the same command resumes it")
    folder = folder_in(tmp_path)
    assert [path.name for path in folder.iterdir()] == ["checkpoints"]  # and no lock
    assert list(folder.glob("checkpoints/0*/manifest.json"))


def test_results_at_a_url_are_those_in_a_folder(call, stopped, tmp_path):
    url = f"file://{tmp_path}/there"
    stopped(7, *words(), "--out", url)
    assert list(tmp_path.glob("there/*/checkpoints/0*/manifest.json"))
    code, out, err = call(*words(), "--out", url, "--resume")
    assert code == 0, err
    assert "gpm: resuming with task 2\n" in out
    call(*words())
    folder = folder_in(tmp_path)
    assert f"records   {url}/{folder.name}\n" in out
    assert "picture" not in out
    left = [path.name for path in (tmp_path / "there").rglob("*") if path.is_file()]
    assert left == ["record.json"]
    result, expected = (
        json.loads((place / folder.name / "record.json").read_text())
        for place in (tmp_path / "there", tmp_path / "runs")
    )
    del result["seconds"], expected["seconds"]
    assert result == expected


def test_the_number_of_threads_is_set(call):
    before = torch.get_num_threads()
    try:
        call(*words(), "--threads", str(before + 1), "--json")
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


WRONG = {
    "unknown progress": (["--progress", "dots"], "--progress takes bar or json (got 'dots')"),
    "no threads": (["--threads", "0"], "--threads"),
    "fresh at a URL": (["--fresh", "--out", "file:///nowhere"], "need a folder for the results"),
    "curves at a URL": (["--tensorboard", "--out", "file:///nowhere"], "need a folder"),
    "nothing at the URL": (["--resume", "--out", "file:///nowhere"], "nothing to resume in 'file"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_code_2_nothing_written(call, case):
    given, message = WRONG[case]
    refused(call, [*words(), *given], message)


@pytest.mark.parametrize("given", [["--seed", "1,2"], ["-m", "gpm,cgp"], ["--json"]])
def test_the_progress_of_several_runs_is_refused(follow, tmp_path, given):
    code, (end,), err = follow(*words(), *given)
    assert (code, end["end"]) == (2, "failed")
    one_line(err, end["why"], "--progress json is for one run")
    assert list(tmp_path.iterdir()) == []


def test_a_run_can_have_a_name_of_its_own(call, tmp_path):
    assert call(*words(), "--name", "mine")[0] == 0
    assert RunRecord.load(folder_in(tmp_path)).complete
    assert folder_in(tmp_path).name == "mine"
    code, out, _ = call(*words(), "--name", "mine")
    assert (code, "gpm: finished before" in out) == (0, True), out
    code, _, err = call(*words(epochs=2), "--name", "mine")
    assert code == 2
    one_line(err, "epochs")
    for wrong in (["--name", "a/b"], ["--name", ".."], ["--name", "mine", "--seed", "1,2"]):
        code, _, err = call(*words(), *wrong)
        assert code == 2
        one_line(err, "--name is the name of one run's folder")
