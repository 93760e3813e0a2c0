"""Earlier states of a learner, requirements on a task, and what differs between two states."""

import pytest
import torch
from torch import nn

from classgrad import GPM, Learner, UserError
from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import Store
from classgrad.errors import RequirementNotMet
from classgrad.learner.history import compare, undo
from classgrad.learner.info import read
from classgrad.learner.learner import LEARNING
from classgrad.networks.network import preserved_rng
from classgrad.training.config import Training
from photos import timeless

QUICK = Training(epochs=3, batch_size=16, learning_rate=0.05)


def data(task, noise=0.0):
    rng = torch.Generator().manual_seed(task)
    x = torch.randn(60, 6, generator=rng)
    labels = (x[:, task % 6] + noise * torch.randn(60, generator=rng) > 0).long()
    return x, labels


def trunk():
    with preserved_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 8))


def new(**options):
    return Learner(trunk(), GPM(), training=QUICK, **options)


def learn(learner, task, noise=0.0, **options):
    return learner.learn(f"t{task}", data(task, noise), classes=["minus", "plus"], **options)


def test_undo_returns_to_the_state_before(tmp_path):
    learner = new(kept_states=4)
    states = []
    for task in range(4):
        learn(learner, task, checkpoint_dir=tmp_path)
        states.append(timeless(learner))
    for number in (2, 1, 0):
        undo(tmp_path)
        assert timeless(Learner.load(tmp_path, trunk())) == states[number]
    with pytest.raises(UserError, match="no earlier state"):
        undo(tmp_path)
    assert timeless(Learner.load(tmp_path, trunk())) == states[0]


def test_a_learner_that_was_undone_elsewhere_is_not_saved_over(tmp_path):
    learner = new()
    for task in range(2):
        learn(learner, task, checkpoint_dir=tmp_path)
    undo(tmp_path)
    assert learner.changed()
    with pytest.raises(UserError, match="learnt more since"):
        learner.save(tmp_path)
    other = Learner.load(tmp_path, trunk())
    learn(other, 2, checkpoint_dir=tmp_path)
    assert [task.name for task in Learner.load(tmp_path, trunk()).tasks] == ["t0", "t2"]
    assert learner.changed()


def test_undo_passes_over_a_damaged_state(tmp_path):
    learner = new(kept_states=3)
    for task in range(3):
        learn(learner, task, checkpoint_dir=tmp_path)
    for file in (tmp_path / FOLDER / "000002").iterdir():
        file.write_bytes(b"damaged")
    undo(tmp_path)
    assert [task.name for task in Learner.load(tmp_path, trunk()).tasks] == ["t0"]


def test_undo_waits_for_a_task_that_was_cut_short(tmp_path):
    learner = new()
    for task in range(2):
        learn(learner, task, checkpoint_dir=tmp_path)

    class Cut(Exception):
        """Stops in the middle of a task."""

    def observer(progress):
        if progress.step > 3:
            raise Cut

    with pytest.raises(Cut):
        learn(
            learner,
            2,
            checkpoint_dir=tmp_path,
            checkpoints=CheckpointManager(tmp_path / LEARNING, steps=1),
            observer=observer,
        )
    with pytest.raises(UserError, match="'t2' was cut short: finish it"):
        undo(tmp_path)


@pytest.mark.parametrize(("keep", "left"), [(2, [4, 5]), (4, [2, 3, 4, 5])])
def test_so_many_states_are_kept(tmp_path, keep, left):
    store = Store(tmp_path)
    for number in range(5):
        store.save({"number": number}, keep)
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == left


def test_fewer_than_two_states_are_refused():
    with pytest.raises(UserError, match="at least 2 states"):
        new(kept_states=1)


def test_a_task_that_is_not_accurate_enough_is_not_learnt(tmp_path):
    learner = new()
    learn(learner, 0, checkpoint_dir=tmp_path, require=60)
    before = timeless(learner)
    with pytest.raises(RequirementNotMet, match=r"balanced accuracy is .* but 99 % is required"):
        learn(learner, 1, noise=5.0, checkpoint_dir=tmp_path, require=99)
    assert timeless(learner) == timeless(Learner.load(tmp_path, trunk())) == before
    learn(learner, 1, checkpoint_dir=tmp_path)  # no trace of it is left that would be resumed
    assert timeless(learner) == timeless(Learner.load(tmp_path, trunk())) != before


def test_an_accuracy_that_is_unknown_does_not_suffice():
    learner = new(valid_fraction=0.0, prototypes=False)
    with pytest.raises(RequirementNotMet, match="is unknown"):
        learn(learner, 0, require=10)
    assert learner.tasks == []


def test_predictions_for_reference_images_may_change_only_so_much(tmp_path):
    reference = data(9)[0]
    learner, free = new(), new()
    for one in (learner, free):
        learn(one, 0)
    old = [one.name + one.task for one in free.predict(reference)]
    learn(free, 1)
    now = [one.name + one.task for one in free.predict(reference)]
    share = 100 * sum(a != b for a, b in zip(old, now, strict=True)) / len(old)
    assert 0 < share < 100
    before = timeless(learner)
    with pytest.raises(RequirementNotMet, match=r"of 60 predictions .* change"):
        learn(learner, 1, reference=reference, may_change=share - 0.1)
    assert timeless(learner) == before
    learn(learner, 1, reference=reference, may_change=share + 0.1)
    assert timeless(learner) == timeless(free)


def test_what_differs_between_two_states(tmp_path):
    learner = new()
    learn(learner, 0, checkpoint_dir=tmp_path / "a")
    other = Learner.load(tmp_path / "a", trunk())
    learn(other, 1)
    other.forget_class("t0", "minus")
    other.training = QUICK.replace(epochs=5)
    other.save(tmp_path / "b")
    found = compare(read(tmp_path / "a"), read(tmp_path / "b"))
    assert (found.removed, found.added) == (["t0/minus"], ["t1/minus", "t1/plus"])
    assert found.settings == {"training.epochs": (3, 5)}
    same = compare(read(tmp_path / "a"), read(tmp_path / "a"))
    assert not any([same.removed, same.added, same.images, same.settings, same.accuracy])


def test_options_that_were_not_given_are_no_difference(tmp_path):
    """A state has them only once the learner was loaded."""
    x = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    learner = Learner(network_options={"weights": "random"})
    learner.learn("one", (x, torch.arange(8) % 2), checkpoint_dir=tmp_path / "a")
    Learner.load(tmp_path / "a").save(tmp_path / "b")
    before, after = read(tmp_path / "a"), read(tmp_path / "b")
    assert before.settings["network_options"] != after.settings["network_options"]
    assert compare(before, after).settings == {}
    other = Learner(network_options={"weights": "random"}, size=64)
    other.learn("one", (x, torch.arange(8) % 2), checkpoint_dir=tmp_path / "c")
    assert compare(before, read(tmp_path / "c")).settings == {
        "network_options.size": (128, 64),
        "size": (128, 64),
    }


def test_undo_goes_back_from_the_newest_state_that_is_intact(tmp_path):
    learner = new(kept_states=3)
    for task in range(3):
        learn(learner, task, checkpoint_dir=tmp_path)
    for file in (tmp_path / FOLDER / "000003").iterdir():
        file.write_bytes(b"damaged")
    assert len(Learner.load(tmp_path, trunk()).tasks) == 2
    undo(tmp_path)
    assert [task.name for task in Learner.load(tmp_path, trunk()).tasks] == ["t0"]
    assert len(list((tmp_path / FOLDER).iterdir())) == 1


@pytest.mark.parametrize("saves", [1, 3])
def test_a_forgotten_class_cannot_be_brought_back(tmp_path, saves):
    learner = new(kept_states=3)
    for task in range(3):
        learn(learner, task, checkpoint_dir=tmp_path)
    learner.forget_class("t1", "plus")
    for _ in range(saves):
        learner.save(tmp_path, keep=1 if saves == 1 else None)
    assert len(list((tmp_path / FOLDER).iterdir())) == saves
    before = timeless(learner)
    with pytest.raises(UserError, match=r"no earlier state: .* no forgotten class be brought back"):
        undo(tmp_path)
    assert timeless(Learner.load(tmp_path, trunk())) == before


def test_after_an_undo_that_was_killed_the_next_goes_on_back(tmp_path, monkeypatch):
    learner = new(kept_states=5)
    for task in range(3):
        learn(learner, task, checkpoint_dir=tmp_path)

    class Killed(BaseException):
        """Ends a process before the undone state is removed."""

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_remove", killed)
        with pytest.raises(Killed):
            undo(tmp_path)
    assert [task.name for task in Learner.load(tmp_path, trunk()).tasks] == ["t0", "t1"]
    undo(tmp_path)
    assert [task.name for task in Learner.load(tmp_path, trunk()).tasks] == ["t0"]
    with pytest.raises(UserError, match="no earlier state"):
        undo(tmp_path)


def test_undo_does_not_undo_how_many_states_are_kept(tmp_path):
    learner = new()
    for task in range(2):
        learn(learner, task, checkpoint_dir=tmp_path)
    learner.kept_states = 6
    learn(learner, 2, checkpoint_dir=tmp_path)
    undo(tmp_path)
    again = Learner.load(tmp_path, trunk())
    assert ([task.name for task in again.tasks], again.kept_states) == (["t0", "t1"], 6)
    again.kept_states = 7
    again.save(tmp_path)  # the same state but for that
    undo(tmp_path)
    again = Learner.load(tmp_path, trunk())
    assert ([task.name for task in again.tasks], again.kept_states) == (["t0"], 7)


def test_reference_images_have_no_say_if_all_classes_are_forgotten():
    learner = new()
    learn(learner, 0)
    for name in ("minus", "plus"):
        learner.forget_class("t0", name)
    learn(learner, 1, reference=data(9)[0], may_change=0)
    assert len(learner.tasks) == 2
