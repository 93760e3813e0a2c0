"""Methods of a user's own, named as MODULE:NAME."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from classgrad.errors import UserError
from classgrad.experiments.executors.local import arguments
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import jobs_of_plans
from classgrad.experiments.spec import load
from classgrad.experiments.tune import Study, with_choice
from classgrad.methods import CGP, METHODS, own
from classgrad.runs.load import load_run
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan
from commands import one_line, refused, started

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_method.py"
QUICK = {"epochs": 1, "tasks": 2, "train_per_class": 10}
SET = [word for name, value in QUICK.items() for word in ("--set", f"{name}={value}")]
TABLE = """
title = "Mine"
source = "mine"
benchmark = "split-digits"
tolerance = 1.0
[[lines]]
label = "pulled back"
method = "own_method:Anchor"
values = { epochs = 1, tasks = 2, train_per_class = 10 }
"""
MODULE = """
from typing import ClassVar
from classgrad.methods import GPM, Method

class Nameless(Method):
    pass

class Taken(GPM):
    pass

class Slashed(GPM):
    name: ClassVar[str] = "a/b"

def helper():
    pass

class Outer:
    class Inner(GPM):
        name: ClassVar[str] = "inner"

class Second(GPM):
    name: ClassVar[str] = "inner"
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with modules, which are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    shutil.copy(EXAMPLE, tmp_path)
    (tmp_path / "mine.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("raise OSError('no\\nlicence')")
    (tmp_path / "leaving.py").write_text("import sys; sys.exit(3)")
    (tmp_path / "empty.py").touch()
    yield tmp_path
    for name in ("own_method", "mine", "broken", "leaving", "empty"):
        sys.modules.pop(name, None)


def test_a_run_says_where_its_method_came_from(place, call):
    words = ["run", "split-digits", "--method", "own_method:Anchor,cgp", *SET]
    code, out, _ = call(*words, "--set", "strength=0.5")
    assert (code, "anchor" in out) == (0, True)
    records = {r.method_name: r for r in map(RunRecord.load, (place / "runs").glob("*/"))}
    assert records["anchor"].method == {"name": "anchor", "strength": 0.5}
    assert records["anchor"].method_source == "own_method:Anchor"
    assert records["cgp"].method_source is None
    code, out, _ = call(*words, "--set", "strength=0.5", "--resume")
    assert (code, out.count("finished before")) == (0, 2)


def test_no_code_is_imported_because_a_record_names_it(place, call):
    assert (
        call("run", "split-digits", "--method", "own_method:Anchor", "--keep", "last", *SET)[0] == 0
    )
    (folder,) = (place / "runs").glob("*anchor*")
    method = own.find("own_method:Anchor")
    del sys.modules["own_method"]
    with pytest.raises(UserError, match="own_method:Anchor: give its class as method"):
        load_run(folder)
    assert "own_method" not in sys.modules
    assert load_run(folder, method=method).method.name == "anchor"


def test_an_old_record_says_nothing_of_its_method(place, call):
    call("run", "--method", "gpm", *SET, "--json")
    (folder,) = (place / "runs").iterdir()
    written = json.loads((folder / "record.json").read_text())
    del written["method_source"]
    (folder / "record.json").write_text(json.dumps(written))
    assert RunRecord.load(folder).method_source is None


def test_a_process_of_a_job_is_told_the_class(place, call):
    plan = make_plan("split-digits", "own_method:Anchor", values={**QUICK, "strength": 0.5})
    (job,) = jobs_of_plans([("mine", plan)], place / "runs")
    words = arguments(job, Options(threads=1))
    assert words[words.index("--method") + 1] == "own_method:Anchor"
    code, out, _ = call("run", *words)
    messages = [json.loads(line) for line in out.splitlines()]
    assert (code, messages[-1]["end"]) == (0, "done")
    assert messages[0]["plan"] == plan.folder_name()
    assert job.state() == "done"


@pytest.mark.slow
def test_sweeps_start_processes_with_it(place):
    words = ["--method", "own_method:Anchor", "--over", "strength=0.5", "--jobs", "2", *SET]
    process = started(place, "sweep", "--benchmark", "split-digits", *words)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, ""), out
    (record,) = map(RunRecord.load, (place / "runs").glob("*/"))
    assert (record.complete, record.method_source) == (True, "own_method:Anchor")


def test_an_experiment_of_your_own_names_it(place, call):
    (place / "table.toml").write_text(TABLE)
    assert load("table.toml").plans("fast", [1])["pulled back"][0].method.name == "anchor"
    code, out, _ = call("reproduce", "table.toml", "--dry-run")
    assert (code, "pulled back" in out) == (0, True)


def test_its_settings_are_tuned_and_written_under_its_name(place, call):
    words = ["--method", "own_method:Anchor", "--over", "strength=0.1,1", "--dry-run"]
    code, out, _ = call("tune", "split-digits", *words)
    assert (code, "strength=0.1" in out) == (0, True)
    study = Study("split-digits", "own_method:Anchor", {"strength": [0.1, 1]}, [101])
    text = with_choice('description = "mine"\nnetwork = "mlp"\n', study, {"strength": 0.1}, "f")
    (place / "tuned.toml").write_text(text)
    plan = make_plan("split-digits", "own_method:Anchor", recipe="tuned.toml")
    assert plan.method.strength == 0.1


def test_a_class_inside_of_another_is_found(place):
    assert own.find("mine:Outer.Inner").name == "inner"
    assert own.source(own.find("mine:Outer.Inner")) == "mine:Outer.Inner"
    assert [own.source(method) for method in METHODS.values()] == [None] * len(METHODS)
    assert own.find("cgp") is CGP


WRONG = {
    "no name": ("mine:", "is not MODULE:NAME"),
    "no module": (":Anchor", "is not MODULE:NAME"),
    "a path": ("../mine.py:Anchor", "is not MODULE:NAME"),
    "not there": ("nowhere:Anchor", "cannot be imported (ModuleNotFoundError: No module named"),
    "broken": ("broken:Anchor", "(OSError: no licence): its module must be in the working"),
    "ends": ("leaving:Anchor", "cannot be imported (SystemExit: 3)"),
    "misspelt": ("own_method:Ancor", "in module 'own_method' 'Ancor': did you mean 'Anchor'?"),
    "nothing": ("empty:Anchor", "module 'empty' has no method"),
    "no class": ("mine:helper", "'mine:helper' is no method"),
    "nameless": ("mine:Nameless", "'mine:Nameless' has no name of letters"),
    "slashed": ("mine:Slashed", "'mine:Slashed' has no name of letters"),
    "taken": ("mine:Taken", "has the name 'gpm' of another method"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_method_is_refused(place, case):
    name, message = WRONG[case]
    with pytest.raises(UserError) as caught:
        own.find(name)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refusals_in_a_terminal(place, call):
    files = sorted(path.name for path in place.iterdir())
    code, _, err = call("run", "--method", "mine:Taken")
    assert code == 2
    one_line(err, "has the name 'gpm' of another method")
    words = ["run", "--method", "mine:Outer.Inner,mine:Outer.Inner"]
    assert "twice" in call(*words)[2]
    words = ["run", "--method", "mine:Outer.Inner,mine:Second"]
    assert "names two methods that are called 'inner'" in call(*words)[2]
    assert sorted(p.name for p in place.iterdir() if p.name != "__pycache__") == files


def test_learners_take_methods_of_the_table_only(call):
    words = ["learn", "state", "--task", "a", "--images", ".", "--method", "mine:Own"]
    refused(call, words, "unknown method 'mine:Own'")
