"""Code of a trunk that has changed since a state was saved, and settings that tasks had."""

import json

import pytest
import torch
from torch import nn

from classgrad import GPM, Learner, Training
from classgrad.cli.info import other_settings
from classgrad.cli.options import error_message
from classgrad.errors import UserError
from classgrad.learner.info import read
from classgrad.learner.probe import TOLERANCE, refuse_other
from oracles.models import built


class Trunk(nn.Module):
    """A layer and an activation, as the code of then or of now has it."""

    def __init__(self, activation):
        super().__init__()
        self.layer, self.activation = nn.Linear(4, 8), activation

    def forward(self, x):
        return self.activation(self.layer(x))


def trunk(activation=torch.relu):
    return built(lambda: Trunk(activation)).float()


def points(shift=0):
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(shift))
    return x, (x[:, 0] > 0).long()


def learnt(folder, **values):
    learner = Learner(trunk(), GPM(), training=Training(epochs=2), **values)
    learner.learn("first", points(), classes=["a", "b"], checkpoint_dir=folder)
    return learner


def test_a_trunk_whose_code_has_changed_is_refused(tmp_path):
    learner = learnt(tmp_path)
    with pytest.raises(UserError, match="code has changed") as caught:
        Learner.load(tmp_path, trunk(torch.tanh))
    assert "\n" not in str(caught.value)
    assert error_message(caught.value).endswith(
        "or with check_trunk=False if the change is meant (in Python, by Learner.load)"
    )
    assert Learner.load(tmp_path, trunk()).tasks == learner.tasks
    other = Learner.load(tmp_path, trunk(torch.tanh), check_trunk=False)
    other.learn("second", points(1), classes=["c", "d"], checkpoint_dir=tmp_path)
    assert Learner.load(tmp_path, trunk(torch.tanh)).tasks == other.tasks  # it has a new probe


def test_rounding_is_no_change():
    then = torch.linspace(-1, 1, 16).reshape(2, 8)
    refuse_other(then * (1 + TOLERANCE / 2), then, precise=True)
    with pytest.raises(UserError, match="1% apart"):
        refuse_other(then * 1.01, then, precise=True)
    refuse_other(then * 1.01, then, precise=False)
    with pytest.raises(UserError, match="apart"):
        refuse_other(then * float("nan"), then, precise=False)
    with pytest.raises(UserError, match="apart"):
        refuse_other(then[:, :7], then, precise=True)
    refuse_other(None, then, precise=True)


class Picky(Trunk):
    """Takes quarters only."""

    def forward(self, x):
        if (x * 4).frac().any():
            raise ValueError("only quarters")
        return super().forward(x)


def test_a_trunk_that_refuses_the_inputs_has_no_probe(tmp_path):
    def make():
        return built(lambda: Picky(torch.relu)).float()

    x = torch.randint(0, 9, (20, 4), generator=torch.Generator().manual_seed(1)) / 4
    learner = Learner(make(), GPM(), training=Training(epochs=1))
    learner.learn("words", (x, (x[:, 0] > 1).long()), classes=["a", "b"], checkpoint_dir=tmp_path)
    assert learner._probe() is None
    assert Learner.load(tmp_path, make()).tasks == learner.tasks


def test_settings_and_version_are_kept_for_each_task(tmp_path, capsys):
    learner = learnt(tmp_path)
    learner.training = Training(epochs=5)
    learner.learn("second", points(1), classes=["c", "d"], checkpoint_dir=tmp_path)
    tasks = Learner.load(tmp_path, trunk()).tasks
    assert [task.settings["training"]["epochs"] for task in tasks] == [2, 5]
    assert tasks[0].settings["method"]["name"] == "gpm"
    assert tasks[0].version
    info = read(tmp_path)
    assert other_settings(info) == [("first", "epochs=2")]
    json.dumps(tasks[0].settings)
