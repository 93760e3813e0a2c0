"""Files of an earlier version outlive new, renamed and removed settings, and new defaults.

`data/0.1.0` holds what version 0.1.0 wrote: a run that was cut short in the middle of a task, a
finished one, a learner of two tasks, and learners that were cut short in their second and in their
first task. They stay as they are.
"""

import inspect
import json
import shutil
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from classgrad import CGP, Learner, defaults, run
from classgrad.errors import UserError
from classgrad.experiments.jobs import jobs_of_plans
from classgrad.learner import learner as learner_module
from classgrad.runs import spec
from classgrad.runs.record import RunRecord
from classgrad.runs.run import run_folder
from classgrad.training import config
from defaults_table import changes, of_code
from learner.stored_states import points

DATA = Path(__file__).parent / "data" / "0.1.0"
FOLDER = "split-digits-cgp-seed3-a228f313"  # as 0.1.0 named it
VALUES = {"width": 12, "epochs": 2, "batch_size": 50, "samples": 10, "contrast": 0}
STEPS = 60  # of the whole run

NO_DECAY, DECAY = (f"weight_decay: float = Field(default={value}" for value in (0.0, 0.01))
NESTEROV = '    nesterov: bool = Field(default=False, description="Nesterov\'s form of momentum")\n'


def evolved(*changed: tuple[str, str], renamed=None, removed=None) -> type[config.Training]:
    """Return the settings of training as they would be after some changes of their source."""
    source = inspect.getsource(config.Training)
    for old, new in changed:
        assert old in source, old
        source = source.replace(old, new)
    space = {**vars(config), "ClassVar": ClassVar, "RENAMED": renamed, "REMOVED": removed}
    source = source.replace(
        '    kind = "training setting"\n',
        '    kind = "training setting"\n    renamed: ClassVar = RENAMED or {}\n',
    )
    source = source.replace(
        "removed: ClassVar[dict[str, Migration]] = {", "removed: ClassVar = {**(REMOVED or {}), "
    )
    exec(compile(source, "evolved", "exec", dont_inherit=True), space)
    made: type[config.Training] = space["Training"]
    return made


EVOLUTIONS = {
    "today": (lambda: config.Training, {}),
    "new": (
        lambda: evolved(
            ("    warmup: int", "    gravity: float = Field(default=9.8)\n    warmup: int")
        ),
        {"gravity": 9.8},
    ),
    "default": (
        lambda: evolved((NO_DECAY, DECAY)),
        {"weight_decay": 0.01},
    ),
    "renamed": (
        lambda: evolved(
            ("warmup: int", "warm_steps: int"),
            ("self.warmup", "self.warm_steps"),
            renamed={"warmup": "warm_steps"},
        ),
        {"warm_steps": 0},
    ),
    "removed": (
        lambda: evolved(
            (NESTEROV, ""),
            ("self.nesterov and self.momentum > 0", "self.momentum > 0"),
            removed={"nesterov": lambda value: {}},
        ),
        {},
    ),
}


@pytest.fixture(params=EVOLUTIONS)
def evolution(request, monkeypatch):
    """The version after today's, with one change in the settings of training."""
    make, new_defaults = EVOLUTIONS[request.param]
    training = make()
    versions, before = defaults.tables()
    after = (
        {**versions, max(versions) + 1: {"training": new_defaults}} if new_defaults else versions
    )
    monkeypatch.setattr(defaults, "tables", lambda: (after, before))
    for module in (config, spec, learner_module):
        monkeypatch.setattr(module, "Training", training)
    usual = learner_module.DEFAULT_TRAINING.model_dump()
    usual.pop("warmup")
    usual.pop("nesterov")
    monkeypatch.setattr(learner_module, "DEFAULT_TRAINING", training(**usual))
    return request.param, training


def stored(name: str, tmp_path: Path) -> Path:
    shutil.copytree(DATA / name, tmp_path / name)
    return tmp_path / name


def again(out: Path, **more):
    seen = []
    record = run(
        "split-digits", "cgp", seed=3, values={**VALUES, **more}, out=out, observer=seen.append
    )
    return record, seen


def test_a_run_that_was_cut_short_is_resumed_with_the_values_it_has(evolution, tmp_path):
    out = stored("cut-short", tmp_path)
    kept = json.loads((out / FOLDER / "checkpoints" / "000010" / "state.json").read_text())
    record, seen = again(out)
    assert [path.name for path in out.iterdir()] == [FOLDER]
    assert 0 < len(seen) < STEPS / 2  # of the steps before it was cut none is taken again
    assert record.complete
    expected = RunRecord.load(DATA / "finished" / FOLDER)
    assert record.average_accuracy == pytest.approx(expected.average_accuracy, abs=1)
    assert record.training["weight_decay"] == kept["plan"]["training"]["weight_decay"] == 0
    assert record.training["momentum"] == expected.training["momentum"]
    assert again(out)[1] == []  # it is finished now


def test_a_finished_run_is_found_and_shown(evolution, tmp_path, call):
    out = stored("finished", tmp_path)
    record, seen = again(out)
    assert (seen, record) == ([], RunRecord.load(DATA / "finished" / FOLDER))
    code, shown, _ = call("show", str(out / FOLDER))
    assert code == 0
    assert f"{record.average_accuracy:.2f}" in shown
    assert spec.make_plan("split-digits", "cgp", seed=3, values=VALUES).describes(record.settings())


def test_other_settings_are_another_run(evolution, tmp_path):
    out = stored("finished", tmp_path)
    record, seen = again(out, batch_size=49)
    assert len(seen) >= STEPS
    assert len(list(out.iterdir())) == 2
    assert record.training["batch_size"] == 49


def test_a_learner_predicts_as_before_and_learns_on(evolution, tmp_path):
    folder = stored("learner", tmp_path)
    learner = Learner.load(folder)
    assert (learner.training.weight_decay, learner.training.batch_size) == (0, 8)
    told = [one.ranking for one in learner.predict(points(0)[0])]
    learner.learn("task 2", points(2), classes=["2a", "2b", "2c"], checkpoint_dir=folder)
    assert len(told) == 30
    loaded = Learner.load(folder)
    assert [task.name for task in loaded.tasks] == ["task 0", "task 1", "task 2"]
    assert loaded.training == learner.training


@pytest.mark.parametrize("first", [False, True], ids=["second", "first"])
def test_a_learner_that_was_cut_short_is_resumed_with_the_values_it_has(evolution, first, tmp_path):
    _, training = evolution
    folder = stored("learner-cut-short-at-first" if first else "learner-cut-short", tmp_path)
    if first:
        learner = Learner(
            network="mlp",
            network_options={"width": 6},
            method=CGP(contrast=0, samples=10),
            training=training(epochs=6, batch_size=8, learning_rate=0.1),
        )
    else:
        learner = Learner.load(folder)
    number, seen = len(learner.tasks), []
    names = [f"{number}{letter}" for letter in "abc"]
    learner.learn(
        f"task {number}",
        points(number),
        classes=names,
        checkpoint_dir=folder,
        observer=seen.append,
    )
    assert 0 < len(seen) < 6 * 4 / 1.5
    assert learner.training.weight_decay == 0
    whole = Learner.load(DATA / "learner").net.state_dict()
    for name, value in learner.net.state_dict().items():
        if not first:  # the same task, cut short and not
            torch.testing.assert_close(value, whole[name], atol=1e-3, rtol=1e-3)


def test_a_value_that_can_no_longer_be_had_is_refused_by_name(tmp_path, monkeypatch):
    def gone(value):
        raise UserError(f"nesterov={value} can no longer be had")

    training = evolved(
        (NESTEROV, ""),
        ("self.nesterov and self.momentum > 0", "self.momentum > 0"),
        removed={"nesterov": gone},
    )
    for module in (config, spec, learner_module):
        monkeypatch.setattr(module, "Training", training)
    out = stored("cut-short", tmp_path)
    record = RunRecord.load(out / FOLDER)
    assert spec.identity(record.settings())["training"]["nesterov"] is True  # it can be told
    with pytest.raises(UserError, match="nesterov=True can no longer be had"):
        spec.Plan.from_dict(record.settings())


def test_values_that_are_defaults_by_now_are_those_of_the_same_run(monkeypatch):
    """A recipe gives momentum 0.9; when that becomes the default, nothing is orphaned."""
    values = {**VALUES, "reading": "pooled"}  # the default of then
    before = spec.make_plan("split-digits", "cgp", seed=3, values=values)
    assert spec.identity(before.as_dict())["training"]["momentum"] == 0.9
    versions, old = defaults.tables()
    after = {**versions, max(versions) + 1: {"training": {"momentum": 0.9}}}
    monkeypatch.setattr(defaults, "tables", lambda: (after, old))
    now = spec.make_plan("split-digits", "cgp", seed=3, values=values)
    assert "momentum" not in now.identity()["training"]
    assert now.describes(before.as_dict())
    assert now.folder_name() == before.folder_name() == FOLDER


def test_after_a_new_default_the_old_value_and_the_new_are_two_runs(monkeypatch):
    versions, old = defaults.tables()
    after = {**versions, max(versions) + 1: {"training": {"weight_decay": 0.01}}}
    training = evolved((NO_DECAY, DECAY))
    monkeypatch.setattr(defaults, "tables", lambda: (after, old))
    for module in (config, spec):
        monkeypatch.setattr(module, "Training", training)
    values = {**VALUES, "reading": "pooled"}  # the default of then
    usual = spec.make_plan("split-digits", "cgp", seed=3, values=values)
    explicit = spec.make_plan("split-digits", "cgp", seed=3, values={**values, "weight_decay": 0.0})
    assert usual.folder_name() != explicit.folder_name() == FOLDER
    assert not usual.describes(explicit.as_dict())


def test_the_newest_version_of_the_table_has_the_defaults_of_the_code():
    assert changes() == {}, "run python tests/defaults_table.py, and commit what it writes"
    assert of_code()["training"]["batch_size"] == defaults.of("training")["batch_size"] == 64


def test_the_first_version_stays_as_it_was_released():
    record = RunRecord.load(DATA / "finished" / FOLDER)
    first = defaults.tables()[0][1]
    for part, values in (
        ("training", record.training),
        ("method cgp", {n: v for n, v in record.method.items() if n != "name"}),
        ("network mlp", record.network_options),
        ("benchmark split-digits", record.benchmark_options),
    ):
        assert first[part].keys() == values.keys()


def test_a_file_of_newer_defaults_is_refused(tmp_path):
    out = stored("cut-short", tmp_path)
    record = RunRecord.load(out / FOLDER)
    with pytest.raises(UserError, match="update classgrad"):
        spec.Plan.from_dict({**record.settings(), "defaults": 99})
    with pytest.raises(UserError, match="damaged"):
        spec.Plan.from_dict({**record.settings(), "defaults": "two"})


def test_tables_take_no_run_that_was_started_with_other_defaults(tmp_path):
    """The same command finds such a run, but in a table it would be another line."""
    shutil.copytree(DATA / "finished" / FOLDER, tmp_path / FOLDER)
    plan = spec.make_plan("split-digits", "cgp", seed=3, values=VALUES)
    record = RunRecord.load(tmp_path / FOLDER)
    assert plan.describes(record.settings())
    assert run_folder(tmp_path, plan).name == FOLDER
    assert not plan.has_values(record.settings())
    (job,) = jobs_of_plans([("now", plan)], tmp_path)
    assert job.folder.name != FOLDER
    assert job.state() == "missing"
    then = spec.make_plan("split-digits", "cgp", seed=3, values={**VALUES, "reading": "pooled"})
    (job,) = jobs_of_plans([("then", then)], tmp_path)
    assert (job.folder.name, job.state()) == (FOLDER, "done")
