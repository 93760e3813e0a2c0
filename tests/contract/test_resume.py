"""Every method: a run that was cut short anywhere resumes to the same bits."""

from functools import cache

import pytest
import torch

from classgrad.checkpoints import CheckpointManager, manager
from classgrad.methods import METHODS
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from families import FAMILIES
from streams import blobs

STREAM = blobs()
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.8, "warmup": 3}
# All for a method of each family, "norms" or "plateau" for the others.
SETTINGS = {
    "norms": {
        "batch_norm": True,
        "norm": "stored",
        "affine": "task",
        "dropout": 0.2,
        "width": 24,
        "stability": 2,
    },
    "plateau": {
        "optimizer": "adamw",
        "weight_decay": 0.01,
        "schedule": "plateau",
        "augment": "crop-flip",
        "width": 24,
    },
    "plain": {"width": 24},
    "shared": {"heads": "shared", "width": 24},
}
FEWER = {"rcl": {"trials": 2, "child_epochs": 2}, "ogd": {"samples": 24}}
CASES = [
    (name, kind)
    for index, name in enumerate(METHODS)
    for kind in (SETTINGS if name in FAMILIES else [["norms", "plateau"][index % 2]])
]


class Cut(BaseException):
    """The process ends here."""


def start(name, kind, folder=None, steps=None):
    values = {**QUICK, **SETTINGS[kind], **FEWER.get(name, {})}
    plan = make_plan(STREAM, name, values=values)
    checkpoints = CheckpointManager(folder, steps=steps) if folder else None
    return Run(plan, STREAM, folder, checkpoints)


def outcome(running):
    record = running.record.model_dump(exclude={"seconds"})
    return record, running.net.state_dict(), running.method.state_dict()


@cache
def alone(name, kind):
    """How a run ends that is not cut short, and how many steps it takes; tests share it."""
    whole, steps = start(name, kind), []
    whole.execute(steps.append)
    return outcome(whole), len(steps)


def same(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


def cut_at(running, moment):
    """Let a run end, as if killed, at its so-manieth step, or after it."""
    seen = []

    def observer(_at):
        seen.append(1)
        if len(seen) == moment:
            raise Cut

    with pytest.raises(Cut):
        running.resume(observer)
    running.method.close()


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_a_run_that_was_cut_short_ends_with_the_same_bits(name, kind, tmp_path):
    expected, total = alone(name, kind)
    rng = torch.Generator().manual_seed(len(name) + total)
    # Saved every third step; cut twice, in whatever task, epoch and round that is.
    moments = sorted(torch.randint(2, total, (2,), generator=rng).tolist())
    cut_at(start(name, kind, tmp_path, steps=3), moments[0])
    middle = start(name, kind, tmp_path, steps=2)
    if moments[1] > moments[0] + 3:
        cut_at(middle, moments[1] - moments[0])
    last = start(name, kind, tmp_path, steps=3)
    record = last.resume()
    assert record.complete
    result = outcome(last)
    assert expected[0] == result[0]
    assert same(expected[1], result[1])
    assert same(expected[2], result[2])
    assert not (tmp_path / "checkpoints").exists()
    assert start(name, kind, tmp_path).resume().model_dump() == record.model_dump()


@pytest.mark.parametrize("name", METHODS)
def test_stopped_in_the_base_update_it_does_not_train_again(name, tmp_path, monkeypatch):
    monkeypatch.setattr(manager, "WORTH_SAVING", 0)
    # With "plateau" the weights at the end of training are not the last ones.
    expected, _ = alone(name, "plateau")
    method, tasks = METHODS[name], []

    def stopping(self, net, task, generator):
        tasks.append(task)
        if len(tasks) == 2:
            raise Cut
        end_task(self, net, task, generator)

    cut, end_task = start(name, "plateau", tmp_path), method.end_task
    with monkeypatch.context() as patch:
        patch.setattr(method, "end_task", stopping)
        with pytest.raises(Cut):
            cut.resume()
    cut.method.close()
    last, steps = start(name, "plateau", tmp_path), []
    last.resume(steps.append)
    assert {at.task for at in steps} == {2}
    assert same(expected, outcome(last))
