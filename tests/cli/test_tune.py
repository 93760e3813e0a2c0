"""The command tune: trials that really learn, repeated, and what it refuses."""

import json
import re
import tomllib

import pytest
import torch

from classgrad.experiments.executors import local
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan
from commands import one_line, refused

TINY = ["--set", "train_per_class=8", "--set", "batch_size=8"]
TUNE = ["tune", "split-digits", "--method", "gpm", *TINY, "--seeds", "101", "--threads", "1"]
GRID = ["--over", "epochs=1,4"]
FILE = "results/tuning/split-digits-gpm.json"
RECIPE = """\
# Mine, with remarks.
description = "mine"
network = "mlp"

[benchmarks.split-digits.methods]
"gpm,cgp" = { energy = 0.98 }  # both
gpm = { samples = 20, training = { epochs = 2, momentum = 0.5 } }  # why
"""


@pytest.fixture(autouse=True)
def one_thread():
    """What is computed here is compared with what processes with one thread compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_trials(call, *values, method="gpm", seeds="101"):
    """Run trials with `classgrad run`, where tune looks for them; no process is started."""
    words = [word for value in ("held_out=0.2", *values) for word in ("--set", value)]
    code, _, err = call(
        *("run", "split-digits", "--method", method, "--seed", seeds, *TINY, *words),
        *("--out", "results/tuning/runs"),
    )
    assert code == 0, err


def test_it_runs_what_is_missing_once_and_writes_the_choice(call, tmp_path, monkeypatch):
    run_trials(call, "epochs=1")
    (done,) = (tmp_path / "results/tuning/runs").glob("*/record.json")
    before = done.stat().st_mtime_ns
    code, out, err = call(*TUNE, *GRID, "--dry-run")
    assert (code, err) == (0, "")
    assert re.search(r"^ gpm epochs=1 +gpm +101 +done ", out, re.M)
    assert "1 of 2 runs to do: about " in out
    assert not (tmp_path / FILE).exists()
    code, out, err = call(*TUNE, *GRID, "--jobs", "2")
    assert (code, err) == (0, "")
    assert "gpm epochs=4, seed 101: started" in out
    assert "gpm epochs=1, seed 101: started" not in out
    assert done.stat().st_mtime_ns == before
    assert len(list((tmp_path / "results/tuning/runs").glob("*/record.json"))) == 2
    content = json.loads((tmp_path / FILE).read_text())
    records = []
    for point in content["points"]:
        (folder,) = point["folders"].values()
        record = RunRecord.load(tmp_path / "results" / "tuning" / folder)
        assert record.complete
        assert record.training["epochs"] == point["values"]["epochs"]
        assert record.data_notes == ["judged on held-out training images"]
        assert point["average_accuracy"] == {"101": record.average_accuracy}
        assert point["backward_transfer"] == {"101": record.backward_transfer}
        records.append(record)
    best = max(record.average_accuracy for record in records)
    first = next(r for r in records if best - r.average_accuracy < 0.1)
    assert content["choice"] == {"epochs": first.training["epochs"]}
    assert content["command"] == " ".join(["classgrad", *TUNE, *GRID, "--jobs", "2"])
    line = re.search(r"^ epochs=(\d) +([\d.]+) +[-+−\d.]+ +chosen *$", out, re.M)
    assert (int(line[1]), float(line[2])) == (
        first.training["epochs"],
        pytest.approx(first.average_accuracy, abs=0.006),
    )
    assert f"rule      {content['rule']}" in out
    assert max(map(len, out.splitlines()[:-1])) <= 80

    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr(local, "Worker", None)  # nothing may start
        code, out, err = call(*TUNE, *GRID, "--jobs", "2")
    assert (code, err) == (0, "")
    assert "all runs are done" in out
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_edge_is_told_and_the_recipe_gets_the_choice_with_all_its_remarks(call, tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE)
    words = ["--recipe", "mine.toml", "--over", "epochs=1,4", "--write", "mine.toml"]
    for epochs in (1, 4):
        call(
            *("run", "split-digits", "--method", "gpm", "--seed", "101", *TINY),
            *("--recipe", "mine.toml", "--set", f"epochs={epochs}", "--set", "held_out=0.2"),
            *("--out", "results/tuning/runs"),
        )
    code, out, err = call(*TUNE, *words)
    assert (code, err) == (0, "")
    choice = json.loads((tmp_path / FILE).read_text())["choice"]
    assert choice == {"epochs": 4}  # one epoch is far too few
    assert "epochs=4 is at the edge of the grid: try epochs=16 beyond" in out
    new = (tmp_path / "mine.toml").read_text()
    old_lines, new_lines = RECIPE.splitlines(), new.splitlines()
    assert new_lines[:-1] == old_lines[:-1]
    assert new_lines[-1] == (
        "gpm = { samples = 20, training = { epochs = 4, momentum = 0.5 } }  "
        f"# why; tuned: {FILE}"
    )
    assert tomllib.loads(new)["description"] == "mine"
    values = {"train_per_class": 8, "batch_size": 8, "held_out": 0.2}
    (chosen,) = [
        point
        for point in json.loads((tmp_path / FILE).read_text())["points"]
        if point["values"] == choice
    ]
    record = RunRecord.load(tmp_path / "results/tuning" / chosen["folders"]["101"])
    plan = make_plan("split-digits", "gpm", recipe="mine.toml", seed=101, values=values)
    assert plan.describes(record.settings())


def test_every_method_has_a_file_and_only_its_own_settings(call, tmp_path):
    run_trials(call, "epochs=1", "energy=0.9")
    run_trials(call, "epochs=1", "energy=0.99")
    run_trials(call, "epochs=1", "strength=10", method="ewc")
    code, out, err = call(
        *("tune", "split-digits", "--method", "gpm,ewc", *TINY, "--seeds", "101"),
        *("--set", "epochs=1", "--over", "energy=0.9,0.99", "--over", "strength=10", "--json"),
    )
    assert code == 0, err
    gpm, ewc = json.loads(out)
    assert (gpm["method"], gpm["grid"]) == ("gpm", {"energy": [0.9, 0.99]})
    assert (ewc["method"], ewc["choice"]) == ("ewc", {"strength": 10})
    for content in (gpm, ewc):
        path = tmp_path / f"results/tuning/split-digits-{content['method']}.json"
        assert json.loads(path.read_text()) == content


def test_a_diverged_trial_is_a_result_and_a_failed_one_is_not(call, worker, tmp_path):
    run_trials(call, "learning_rate=0.01")
    words = [*TUNE, "--over", "learning_rate=0.01,9"]
    fail = "import json\nprint(json.dumps({'end': 'failed', 'why': 'WHY', 'diverged': HOW}))\n"
    worker(fail.replace("WHY", "the disk is full").replace("HOW", "False"))
    code, out, err = call(*words)
    assert code == 2
    one_line(err, "1 of 1 runs did not finish: gpm learning_rate=9, seed 101: the disk is full")
    assert not (tmp_path / FILE).exists()
    worker(fail.replace("WHY", "the loss is nan at task 1").replace("HOW", "True"))
    code, out, err = call(*words)
    assert (code, err) == (0, "")
    assert re.search(r"^ learning_rate=9 +diverged", out, re.M)
    content = json.loads((tmp_path / FILE).read_text())
    assert content["choice"] == {"learning_rate": 0.01}
    code, out, err = call(*TUNE, "--over", "learning_rate=9")
    assert code == 2
    one_line(err, "every trial of gpm diverged: try other values")
    assert json.loads((tmp_path / FILE).read_text())["choice"] is None


def test_training_that_diverges_is_recognised(call, tmp_path):
    code, _, err = call(*TUNE, "--over", "learning_rate=1000000", "--set", "epochs=1")
    assert code == 2
    one_line(err, "every trial of gpm diverged")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "Missing option '--over'"),
        (["--over", "energy"], "--over takes NAME=VALUE,VALUE"),
        (["--over", "energy=0.9", "--seeds", "1,2"], "seeds below 100 are for tables (got 1)"),
        (["--over", "energy=0.9", "--held-out", "1"], "held_out must be less than 1 (got 1.0)"),
        (["--over", "energy=0.9,2"], "energy must be less than or equal to 1 (got 2)"),
        (["--over", "engery=0.9"], "did you mean 'energy'?"),
        (["--over", "tasks=2,5"], "'tasks' is an option of the benchmark"),
        (["--over", "seed=101,102"], "'seed' is no setting"),
        (["--over", "energy=0.9", "--set", "energy=0.8"], "'energy' is both fixed and to be tried"),
        (["--over", "energy=0.9", "--method", "gpm,finetune"], "no setting of finetune"),
        (["--over", "energy=0.9", "--by", "chance"], "unknown way to choose a class 'chance'"),
        (
            ["--over", "energy=0.9", "--by", "statistics", "--set", "task_free=never"],
            "a choice by statistics needs task_free=end (got never)",
        ),
        (["--over", "energy=0.9", "--out", "s3://a/b"], "--out takes a folder"),
        (["--over", "energy=0.9", "--write", "none.toml"], "recipe "),
        (["--over", "energy=0.9", "--write", "none.txt"], "--write takes a recipe file"),
    ],
)
def test_wrong_input_is_refused_in_one_line_and_nothing_is_written(call, words, message):
    refused(call, ["tune", "split-digits", "--method", "gpm", *words], message)


def test_a_recipe_that_cannot_hold_the_choice_is_refused_before_anything_is_run(call, tmp_path):
    (tmp_path / "mine.toml").write_text(RECIPE)
    code, out, err = call(*TUNE, "--over", "width=8,16", "--write", "mine.toml")
    assert (code, out) == (2, "")
    one_line(err, "a recipe has no width for one method alone: write it there by hand")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.toml"]
    assert (tmp_path / "mine.toml").read_text() == RECIPE
