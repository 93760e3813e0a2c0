"""Learners that earlier versions have saved are loaded, and predict what they did."""

import json
import shutil

import pytest

from classgrad import Learner
from classgrad.checkpoints.files import SCHEMA_VERSION
from classgrad.checkpoints.manager import FOLDER
from classgrad.methods import METHODS
from learner.stored_states import DATA, PREDICTED, points, told

STORED = sorted(path.parent for path in DATA.glob(f"*/*/{PREDICTED}"))
TAKEN = [name for name, method in METHODS.items() if method.rehearsal_free]


def schema(folder):
    (path,) = (folder / FOLDER).glob("*/manifest.json")
    return json.loads(path.read_text())["schema"]


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_stored_learner_predicts_what_it_did_when_it_was_saved(folder):
    expected = json.loads((folder / PREDICTED).read_text())
    result = told(Learner.load(folder))
    assert result.keys() == expected.keys()
    for by, lines in expected.items():
        assert len(result[by]) == len(lines) == 6
        for now, then in zip(result[by], lines, strict=True):
            assert len(then) == 5  # classes of two tasks, without the forgotten one
            assert now == pytest.approx(then, abs=1e-4)  # another processor rounds otherwise


@pytest.mark.parametrize("folder", STORED, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_a_stored_learner_learns_on_and_is_saved_again(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "state")
    learner = Learner.load(tmp_path / "state")
    learner.learn(
        "task 2", points(2), classes=["2a", "2b", "2c"], checkpoint_dir=tmp_path / "state"
    )
    again = Learner.load(tmp_path / "state")
    assert [task.name for task in again.tasks] == ["task 0", "task 1", "task 2"]
    assert told(again) == told(learner)


def test_of_the_present_form_there_is_a_state_for_every_method_a_learner_takes():
    present = {folder.name for folder in STORED if schema(folder) == SCHEMA_VERSION}
    assert present == set(TAKEN)


def test_the_stored_states_are_small_and_hold_what_a_method_can_keep():
    for folder in STORED:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len(files) == 4, folder
        assert sum(path.stat().st_size for path in files) < 20_000, folder
    for folder in STORED:
        if folder.name == "cgp":
            assert Learner.load(folder).method.held()  # it has a limit, which made it drop some
