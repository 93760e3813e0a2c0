"""The commands reproduce and sweep, some of it with processes that really learn."""

import json
import re
import signal
import time

import pytest
import torch

from classgrad.checkpoints.lock import start_of
from classgrad.cli import experiments
from classgrad.experiments.executors import local
from classgrad.runs.record import RunRecord
from commands import refused, started

TINY = {"tasks": 2, "train_per_class": 10, "batch_size": 10, "epochs": 1}
TABLE = """
title = "Tiny"
source = "a test"
benchmark = "split-digits"
tolerance = 100
[[lines]]
label = "GPM"
method = "gpm"
values = VALUES
paper = { accuracy = 50.0, transfer = -0.1, transfer_unit = "fraction" }
[[lines]]
label = "plain"
method = "finetune"
values = VALUES
""".replace("VALUES", "{ tasks = 2, train_per_class = 10, batch_size = 10, epochs = 1 }")
SETTINGS = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
LONG = ["--method", "finetune", *SETTINGS[:-1], "epochs=150"]  # a second or two
SWEEP = ["sweep", "-b", "split-digits", *LONG, "--threads", "1", "--save-minutes", "0.001"]


@pytest.fixture(autouse=True)
def one_thread():
    """What is computed here is compared with what processes with one thread compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def without_seconds(folder):
    record = json.loads((folder / "record.json").read_text())
    del record["seconds"]
    return record


def saved(place):
    """Return the folders of runs that have saved something."""
    return [path.parents[2] for path in place.glob("runs/*/checkpoints/0*/manifest.json")]


def complete(place):
    """Return the records of runs that came to their ends."""
    result = [RunRecord.load(path) for path in place.glob("runs/*/record.json")]
    return [record for record in result if record.complete]


def owner_when_saved(process, place):
    """Wait until a run has saved something; return the number of its process."""
    end = time.monotonic() + 60
    while not saved(place):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.01)
    (lock,) = place.glob("runs/*/lock.json")
    return json.loads(lock.read_text())["pid"]


def until_gone(pid):
    end = time.monotonic() + 30
    while start_of(pid):
        assert time.monotonic() < end
        time.sleep(0.02)


def test_runs_at_once_equal_runs_one_after_the_other(call, tmp_path):
    (tmp_path / "tiny.toml").write_text(TABLE, encoding="utf-8")
    code, out, err = call("reproduce", "tiny.toml", "--jobs", "2")
    assert code == 0, err
    assert "2 of 2 runs to do: about " in out
    assert "with 2 in parallel" in out
    call("run", "split-digits", "--method", "gpm,finetune", *SETTINGS, "--out", "alone")
    folders = [path for path in (tmp_path / "alone").iterdir() if path.is_dir()]
    assert len(folders) == 2
    for folder in folders:
        assert without_seconds(folder) == without_seconds(tmp_path / "runs" / folder.name)
    record = RunRecord.load(next((tmp_path / "alone").glob("*-gpm-*")))
    line = re.search(r"^ GPM +([\d.]+) +([-+.\d]+) +50.00 +-10.00 +open +([-+.\d]+)", out, re.M)
    assert line is not None, out
    assert [float(cell) for cell in line.groups()] == pytest.approx(
        [record.average_accuracy, record.backward_transfer, record.average_accuracy - 50], abs=0.006
    )
    assert max(len(line) for line in out.splitlines()) <= 80


def test_what_failed_is_named_in_one_line_and_missing_in_the_table(call, worker, tmp_path):
    (tmp_path / "tiny.toml").write_text(TABLE, encoding="utf-8")
    worker(
        "import json, sys\n"
        "how, hint = ('failed', 'other_run') if 'gpm' in sys.argv else ('busy', None)\n"
        "print(json.dumps({'text': 'it is damaged', 'hint': 'fetch:mnist'}))\n"
        "print(json.dumps({'end': how, 'why': 'this and that', 'hint': hint}))\n"
        "sys.exit(2)\n"
    )
    code, out, err = call("reproduce", "tiny.toml")
    assert code == 2
    assert err == (
        "classgrad: 2 of 2 runs did not finish: GPM, seed 1: this and that (--out names another "
        "folder); plain, seed 1: this and that\n"
    )
    assert "GPM, seed 1: it is damaged (classgrad data fetch mnist)\n" in out
    why = r"this and that \(--out names another folder\)"
    assert re.search(rf"^GPM, seed 1: failed after [\d.]+ s: {why}$", out, re.M)
    assert re.search(r"^plain, seed 1: busy after [\d.]+ s: this and that$", out, re.M)
    assert re.search(r"^ GPM +- +- +50.00 +-10.00 +- +- *$", out, re.M)


def test_what_is_done_is_shown_and_not_run_again(call, tmp_path, monkeypatch):
    (tmp_path / "tiny.toml").write_text(TABLE, encoding="utf-8")
    call("run", "split-digits", "--method", "gpm,finetune", *SETTINGS, "--seed", "1,2")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    monkeypatch.setattr(local, "Worker", None)  # nothing may start
    code, out, _ = call("reproduce", "tiny.toml", "--seeds", "1,2")
    assert code == 0
    assert re.search(r"^ GPM +gpm +1, 2 +done ", out, re.M)
    assert "all runs are done" in out
    assert "±" in out
    code, out, _ = call("reproduce", "tiny.toml", "--seeds", "1,2,3", "--dry-run")
    assert code == 0
    assert re.search(r"^ GPM +gpm +3 +missing ", out, re.M)
    assert re.search(r"2 of 6 runs to do: about [\d.]+ s\n", out)
    assert "paper" not in out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_asked_to_stop_it_saves_and_the_same_command_resumes(call, tmp_path, monkeypatch):
    asked = []

    def stop_when_saved(show, statuses):
        if saved(tmp_path) and not asked:
            asked.append(1)
            signal.raise_signal(signal.SIGTERM)

    with monkeypatch.context() as patch:
        patch.setattr(experiments.LineDisplay, "tick", stop_when_saved)
        code, out, err = call(*SWEEP)
    assert code == 143
    assert err == "classgrad: stopped; the same command resumes it\n"
    assert "stopped after" in out
    assert saved(tmp_path)
    assert not complete(tmp_path)
    code, out, err = call(*SWEEP)
    assert code == 0, err
    assert re.search(r"^ finetune +finetune +1 +cut ", out, re.M)
    assert re.search(r"^finetune, seed 1: resuming with task [12]$", out, re.M)
    assert re.search(r"^split-digits, recipe fast, .*, seed 1 *$", out, re.M)
    call("run", "split-digits", *LONG, "--out", "alone")
    (folder,) = (tmp_path / "alone").iterdir()
    assert without_seconds(folder) == without_seconds(tmp_path / "runs" / folder.name)


def test_killed_it_leaves_no_process_behind_and_the_run_is_saved(tmp_path):
    process = started(tmp_path, *SWEEP)
    pid = owner_when_saved(process, tmp_path)
    process.kill()
    process.communicate()
    until_gone(pid)
    (folder,) = (tmp_path / "runs").iterdir()
    assert not complete(tmp_path)  # it did not reach its end
    assert not (folder / "lock.json").exists()  # it was not killed
    assert saved(tmp_path)


def test_a_recipe_that_changes_meanwhile_does_not_pass_for_the_same(call, tmp_path, monkeypatch):
    recipe = tmp_path / "mine.toml"
    text = 'description = "a test"\nnetwork = "mlp"\ntraining.epochs = 1\n'
    recipe.write_text(text)
    start = local.LocalPool.start

    def start_later(pool, status):
        recipe.write_text(text.replace("epochs = 1", "epochs = 2"))
        return start(pool, status)

    monkeypatch.setattr(local.LocalPool, "start", start_later)
    words = ["sweep", "-b", "split-digits", "-m", "gpm", *SETTINGS[:-2], "--recipe", "mine.toml"]
    code, _, err = call(*words)
    assert code == 2
    assert local.CHANGED in err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    code, _, err = call(*words)
    assert code == 0, err
    (record,) = complete(tmp_path)
    assert record.training["epochs"] == 2


def test_a_run_in_a_folder_of_another_name_is_resumed_there(call, stopped, tmp_path):
    stopped(7, "run", "split-digits", "-m", "gpm", *SETTINGS)
    (folder,) = (tmp_path / "runs").iterdir()
    former = folder.rename(folder.with_name("split-digits-gpm-seed1-00000000"))
    code, out, err = call("sweep", "-b", "split-digits", "-m", "gpm", *SETTINGS)
    assert code == 0, err
    assert "gpm, seed 1: resuming with task 2\n" in out
    assert list((tmp_path / "runs").iterdir()) == [former]
    assert RunRecord.load(former).complete


def test_a_crash_has_another_exit_code(call, worker, tmp_path):
    worker("raise RuntimeError('this is a fault')")
    code, _, err = call("sweep", "-b", "split-digits", "-m", "gpm", *SETTINGS)
    assert code == 1
    (trace,) = tmp_path.glob("runs/*/crash.txt")
    assert err == (
        "classgrad: 1 of 1 runs did not finish: gpm, seed 1: RuntimeError: this is a fault; see "
        f"'{trace.relative_to(tmp_path)}'\n"
    )


def test_a_grid_is_every_combination_once(call, tmp_path):
    words = ["-m", "cgp,gpm", "--over", "eta=0.5,0.7", "--over", "seed=2,1", "--dry-run"]
    code, out, _ = call("sweep", *words, *SETTINGS)
    assert code == 0
    assert re.search(r"^ cgp eta=0.5 +cgp +2, 1 +missing ", out, re.M)
    assert re.search(r"^ cgp eta=0.7 +cgp +2, 1 +missing ", out, re.M)
    assert re.search(r"^ gpm +gpm +2, 1 +missing ", out, re.M)
    assert "6 of 6 runs to do: about " in out
    assert list(tmp_path.iterdir()) == []


WRONG = {
    "unknown experiment": (["reproduce", "etta"], "unknown experiment 'etta': did you mean 'eta'?"),
    "no experiment": (["reproduce", ","], "no experiment is named"),
    "unknown recipe": (["reproduce", "eta", "--recipe", "quick"], "unknown recipe 'quick'"),
    "bad seeds": (["reproduce", "eta", "--seeds", "1,1"], "--seeds names a seed twice"),
    "missing data": (["reproduce", "eta", "--data-dir", "."], "CIFAR-100 is missing"),
    "missing in a dry run": (
        ["reproduce", "all", "--data-dir", ".", "--dry-run"],
        "is missing",
    ),
    "no jobs": (["reproduce", "eta", "--jobs", "0"], "--jobs"),
    "unknown setting": (["sweep", "--over", "etta=1,2"], "did you mean 'eta'?"),
    "bad value": (["sweep", "--over", "eta=0.5,2"], "eta must be less than or equal to 1"),
    "no value": (["sweep", "--over", "eta=,"], "--over gives 'eta' no value"),
    "empty list": (["sweep", "--over", "eta=[]"], "--over gives 'eta' no value"),
    "no equals": (["sweep", "--over", "eta"], "--over takes NAME=VALUE,VALUE"),
    "value twice": (["sweep", "--over", "eta=0.5,0.50"], "'eta' the value 0.5 twice"),
    "setting twice": (["sweep", "--over", "eta=0", "--over", "eta=1"], "gives 'eta' twice"),
    "word and letter": (["sweep", "--over", "eta=0", "--over", "similarity=1"], "the same setting"),
    "set and over": (["sweep", "--set", "eta=0", "--over", "eta=1,0"], "both give 'eta'"),
    "bad seed": (["sweep", "--over", "seed=a"], "seed must be a whole number"),
    "method twice": (["sweep", "-m", "cgp,cgp"], "--method names 'cgp' twice"),
    "small images": (["sweep", "--network", "alexnet5"], "network 'alexnet5' needs images"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_one_line_code_2_nothing_written(call, case):
    refused(call, *WRONG[case])


def test_help_has_examples(call):
    for command in ("reproduce", "sweep"):
        code, out, _ = call(command, "--help")
        assert code == 0
        assert "Example" in out
