"""The command line on several processes: stopped, resumed by others, killed, refused."""

import importlib
import json
from datetime import timedelta
from unittest import mock

import pytest
from torch import distributed

import classgrad
from classgrad.distributed.world import Speaker
from distributed import processes

VALUES = {"epochs": 1, "samples": 20, "train_per_class": 100, "tasks": 2}
SETTINGS = [word for name, value in VALUES.items() for word in ("--set", f"{name}={value}")]
WORDS = ["run", "split-digits", "--method", "gpm", *SETTINGS]
DRIVEN = str(processes.HERE / "driven.py")

pytestmark = pytest.mark.slow


def record(out):
    (result,) = out.glob("*/record.json")
    return json.loads(result.read_text())


def lines(said):
    """Return what the command itself says, of all that is on standard error."""
    return [
        line for _, _, err in said for line in err.splitlines() if line.startswith("classgrad:")
    ]


def same_result(result):
    """Tell whether this is what one process learns."""
    expected = json.loads(classgrad.run("split-digits", "gpm", values=VALUES).to_json())
    assert result["complete"]
    assert result["processes"] == 2
    assert result["data"] == expected["data"]
    assert result["average_accuracy"] == pytest.approx(expected["average_accuracy"], abs=1)
    ranks = [[layer["ranks"] for layer in one["layers"]] for one in (result, expected)]
    assert ranks[0] == ranks[1]


def test_a_run_resumes_with_any_number_of_processes_however_it_was_cut_short(tmp_path):
    words = [DRIVEN, *WORDS, "--save-steps", "5", "--out", str(tmp_path)]
    # Stopped: the signal reaches one of two processes only, and not the first.
    both = processes.ended(processes.start(2, words, DRIVEN="SIGTERM 1 12"))
    assert [code for code, _, _ in both] == [143, 143], both
    assert lines(both) == ["classgrad: stopped; the same command resumes it"]
    assert list(tmp_path.glob("*/checkpoints/*"))
    # One process, stopped.
    (one,) = processes.ended(processes.start(1, words, DRIVEN="SIGTERM 0 10"))
    assert one[0] == 143
    assert "resuming with task" in one[1]
    # Two again, of which one is killed.
    both = processes.ended(processes.start(2, words, DRIVEN="SIGKILL 1 8"))
    assert [code for code, _, _ in both] == [2, -9], both
    assert "resuming with task" in both[0][1]
    assert both[1][1] == ""
    (line,) = lines(both)
    assert "another process of this run has ended" in line
    assert "Traceback" not in both[0][2]
    # torchrun, which forgets what was learnt before.
    command = ["--nproc-per-node=2", *words, "--fresh"]
    (end,) = processes.ended([processes.start_torchrun(command, DRIVEN="SIGTERM 0 0")])
    assert end[0] == 0, end[2]
    assert "resuming with task" not in end[1]
    same_result(record(tmp_path))
    assert not list(tmp_path.glob("*/checkpoints"))
    assert not list(tmp_path.glob("*/lock.json"))


@pytest.mark.faults
def test_torchrun_starts_all_again_when_the_first_is_killed_which_leaves_its_lock(tmp_path):
    words = [DRIVEN, *WORDS, "--save-steps", "5", "--out", str(tmp_path)]
    command = ["--nproc-per-node=2", "--max-restarts=3", *words]
    (end,) = processes.ended([processes.start_torchrun(command, DRIVEN="SIGKILL 0 8")])
    assert end[0] == 0, end[2]
    assert end[1].count("resuming with task") == 1  # not what was learnt in the first start
    same_result(record(tmp_path))
    assert not list(tmp_path.glob("*/checkpoints"))
    assert not list(tmp_path.glob("*/lock.json"))


def test_wrong_words_are_said_once_on_a_machine_and_other_commands_are_refused(call, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("LOCAL_RANK", rank)
        code, _, err = call("run", "--no-such-option")
        assert (code, err.count("\n")) == (2, 1 if rank == "0" else 0)
        code, _, err = call("sweep", "--over", "seed=1,2")
        assert code == 2
        assert (err == "") == (rank == "1")
        if rank == "0":
            assert err == "classgrad: only 'run' is for torchrun: start 'sweep' without it\n"
    assert call("watch", "runs")[0] == 2
    monkeypatch.delenv("WORLD_SIZE")  # something else has given the process a number
    assert call("run", "--no-such-option")[2].count("\n") == 1


def test_one_speaks_for_a_main_process_that_does_not(monkeypatch):
    world = importlib.import_module("classgrad.distributed.world")  # not the function
    monkeypatch.setattr(world, "PATIENCE", timedelta(seconds=0.01))
    store = distributed.HashStore()
    assert [Speaker(rank, 4, store).speaks() for rank in (2, 1, 3)] == [True, False, False]

    def gone(*given):
        raise RuntimeError("the store is gone")

    store = mock.Mock(wait=gone, add=gone)
    assert [Speaker(rank, 4, store).speaks() for rank in (2, 1, 3)] == [False, True, False]
    result = []
    for rank in (4, 5, 6):  # of the second machine, when the first is gone
        monkeypatch.setenv("LOCAL_RANK", str(rank - 4))
        result.append(Speaker(rank, 7, store).speaks())
    assert result == [True, False, False]


def test_a_refusal_is_said_once_and_every_process_ends_with_2(tmp_path):
    words = [DRIVEN, "run", "split-digits", "--method", "gem", "--out", str(tmp_path)]
    said = processes.ended(processes.start(2, words, DRIVEN="SIGTERM 0 0"))
    assert [code for code, _, _ in said] == [2, 2]
    (line,) = lines(said)
    assert "method 'gem' cannot be trained by several processes" in line
    assert not list(tmp_path.iterdir())
