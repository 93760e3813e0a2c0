"""Learners that earlier versions have saved are loaded, predict what they did, and learn on.

What they are compared with is stored beside them, so that nothing is compared with itself.
"""

import json
import re
import shutil

import pytest
import torch

from classgrad import Learner
from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.files import SCHEMA_VERSION
from classgrad.checkpoints.manager import FOLDER
from classgrad.errors import UserError
from classgrad.learner import card
from classgrad.learner.learner import KEYED
from classgrad.methods import METHODS
from learner.stored_states import (
    DATA,
    KINDS,
    LEARNT_ON,
    PREDICTED,
    learn_on,
    loaded,
    points,
    told,
    trunk,
)
from photos import timeless

STORED = sorted(path.parent for path in DATA.glob(f"*/*/{PREDICTED}"))
TAKEN = [name for name, method in METHODS.items() if method.rehearsal_free]
# Another processor rounds otherwise. Noise of 1e-6 in all weights, or the kernels of a processor
# without AVX, moved no probability by more than 3e-6, also after learning on.
ROUNDING = 1e-4

of_every_state = pytest.mark.parametrize(
    "folder", STORED, ids=lambda folder: f"{folder.parent.name}-{folder.name}"
)


def schema(folder):
    (path,) = (folder / FOLDER).glob("*/manifest.json")
    return json.loads(path.read_text())["schema"]


def assert_same(now, then, classes):
    """Compare predictions, in which each image has so many classes, and perhaps a p-value."""
    assert now.keys() == then.keys()
    for by, lines in then.items():
        assert len(now[by]) == len(lines)
        for one, other in zip(now[by], lines, strict=True):
            assert len([name for name in other if name != "p-value"]) == classes
            assert one == pytest.approx(other, abs=ROUNDING)


@of_every_state
def test_a_stored_learner_predicts_what_it_did_and_learns_on_as_it_did(folder, tmp_path):
    state, kind = shutil.copytree(folder, tmp_path / "state"), folder.name
    learner = loaded(state, kind)
    result, expected = told(learner), json.loads((folder / PREDICTED).read_text())
    if "statistics" not in expected:  # older versions kept none, and none are made up
        assert learner.classifier is None
    assert_same(result, expected, classes=5)  # of two tasks, without the forgotten one

    now, then = learn_on(learner), json.loads((folder / LEARNT_ON).read_text())
    assert_same(now["told"], then["told"], classes=8)
    assert now["ranks"] == then["ranks"]
    for bound, known in zip(now["drift"], then["drift"], strict=True):
        assert bound == (known if known is None else pytest.approx(known, rel=1e-3))
    assert now["correct"] == pytest.approx(then["correct"], abs=1.7)  # 1 of 60 points

    learner.save(state)
    again = loaded(state, kind)
    assert [task.name for task in again.tasks] == ["task 0", "task 1", "task 2"]
    assert told(again) == told(learner)


@of_every_state
def test_the_cards_of_a_stored_learner_are_still_its_cards(folder):
    files = sorted(folder.glob("card_*.json"))
    schemas = [int(re.findall(r"\d+", file.name)[0]) for file in files]
    assert schemas[-1] == card.SCHEMA
    for number, file in zip(schemas, files, strict=True):
        assert json.loads(file.read_text())["card"] == number
        assert card.check(folder, file) == card.NOT_COVERED.get(number, "")


def test_what_is_stored_tells_another_way_of_learning_from_that_of_then():
    """The figures can differ: 19 epochs instead of 20 are noticed."""
    for name in ("gpm", "tuned", "own", "masks"):
        folder = DATA / "0.1.0" / name
        learner, then = loaded(folder, name), json.loads((folder / LEARNT_ON).read_text())
        learner.training = learner.training.model_copy(update={"epochs": 19})
        now = learn_on(learner)["told"]["confidence"]
        moved = max(
            abs(one[key] - other[key])
            for one, other in zip(now, then["told"]["confidence"], strict=True)
            for key in other
        )
        assert moved > 20 * ROUNDING


def without_key(path):
    """Tell whether a stored learner is of a version whose digests of data had no key."""
    return '"keyed:' not in next((path / FOLDER).glob("*/state.json")).read_text()


@pytest.mark.parametrize("name", ["ewc", "gpm", "statistics"])
def test_a_task_of_a_stored_learner_is_recognised_and_its_digest_gets_a_key(name, tmp_path):
    folder = DATA / "0.1.0" / name
    assert without_key(folder)
    learner, data = loaded(folder, name), {"classes": ["1a", "1b", "1c"]}
    plain = learner.tasks[1].data.removeprefix(KEYED)
    for again in (False, True):
        if again:
            learner.save(tmp_path / "state")
            learner = loaded(tmp_path / "state", name)
        before = told(learner), learner.tasks[1].samples
        learner.learn("task 1", points(1), **data)
        assert (told(learner), learner.tasks[1].samples) == before
        if learner.classifier is None:
            with pytest.raises(UserError, match="from other data"):
                learner.learn("task 1", points(9), **data)
            with pytest.raises(UserError, match="from data with a forgotten class"):
                learner.learn("task 0", points(0), classes=["0a", "0b", "0c"])
    assert learner.tasks[0].data == ""  # of its class that was forgotten
    assert learner.tasks[1].data.startswith(KEYED)
    assert len(learner.secret) == 32
    if name == "ewc":  # it had no key, and the digest as it was is gone
        text = next((tmp_path / "state" / FOLDER).glob("*/state.json")).read_text()
        assert plain not in text
    assert told(learner) == told(loaded(folder, name))


@pytest.mark.parametrize("name", ["ewc", "gpm"])
def test_what_a_stored_learner_has_begun_is_resumed(name, tmp_path):
    class Cut(Exception):
        pass

    def observer(progress):
        if progress.step == 9:
            raise Cut

    state, data = shutil.copytree(DATA / "0.1.0" / name, tmp_path / "state"), points(2)
    straight = loaded(state, name)
    straight.learn("task 2", data)
    with pytest.raises(Cut):
        loaded(state, name).learn(
            "task 2",
            data,
            checkpoint_dir=state,
            checkpoints=CheckpointManager(state / "learning", steps=4),
            observer=observer,
        )
    assert without_key(state)  # nothing was saved but the task that was begun
    learner, steps = loaded(state, name), []
    with pytest.raises(UserError, match="cut short with another data"):
        loaded(state, name).learn("task 2", points(3), checkpoint_dir=state)
    observer = lambda progress: steps.append(progress.step)  # noqa: E731
    learner.learn("task 2", data, checkpoint_dir=state, observer=observer)
    assert steps[0] == 9
    assert timeless(learner) == timeless(straight)


def test_other_code_of_a_stored_trunk_is_noticed():
    folder = DATA / "0.1.0" / "statistics"
    other = trunk("statistics")
    other[1] = torch.nn.Tanh()
    with pytest.raises(UserError, match="its code has changed"):
        Learner.load(folder, other)


def test_of_the_present_form_there_is_a_state_for_every_method_and_kind_of_learner():
    present = {folder.name for folder in STORED if schema(folder) == SCHEMA_VERSION}
    assert present == {*TAKEN, *KINDS}


def test_the_stored_states_are_small_and_hold_what_a_learner_can_keep():
    for folder in STORED:
        files = [path for path in folder.rglob("*") if path.is_file()]
        assert len([path for path in files if not path.name.startswith("card_")]) == 5, folder
        assert sum(path.stat().st_size for path in files) < 40_000, folder
    assert sum(path.stat().st_size for path in DATA.rglob("*") if path.is_file()) < 700_000
    for folder in STORED:
        learner = loaded(folder, folder.name)
        if folder.name == "cgp":
            assert learner.method.held()  # it has a limit, which made it drop some
        if folder.name in ("statistics", "tuned"):
            assert learner.ways[0] == "statistics"
            assert int(learner.classifier.statistics.counts.sum()) > 20
        if folder.name == "tuned":
            assert learner.drift()[0].bound > 0
        if folder.name == "statistics":  # images were added later, some of which it knew
            assert learner.tasks[0].samples > learner.tasks[1].samples
        assert (learner.trunk is None) == (trunk(folder.name) is None)
