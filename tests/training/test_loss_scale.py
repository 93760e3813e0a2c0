"""With float16 the loss is scaled: small gradients arrive, and too large ones leave a step out."""

import pytest
import torch
from torch import nn

from classgrad import GPM, Learner, Training
from classgrad.checkpoints import CheckpointManager
from classgrad.errors import Stopped
from classgrad.methods import Finetune
from classgrad.training.loop import Loop
from classgrad.training.loss_scale import START, LossScale
from oracles.models import built
from photos import kept

TRAINING = Training(epochs=4, batch_size=8, learning_rate=0.1, momentum=0.9)


class Weak(nn.Module):
    """A layer whose outputs count for little, so that gradients on its side are below 6e-8."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 8)
        self.outer = nn.Linear(8, 6)

    def forward(self, x):
        hidden = self.inner(x)
        return self.outer(hidden.float() * 1e-7 + hidden.detach().float())


def points(seed=1):
    chance = torch.Generator().manual_seed(seed)
    labels = torch.arange(2).repeat(20)
    return torch.randn(40, 4, generator=chance) + 2 * labels[:, None], labels


def with_gradient(*values):
    weight = nn.Parameter(torch.zeros(len(values)))
    weight.grad = torch.tensor(values)
    return [weight]


def learner(precision="float16", method=None):
    trunk = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))).float()
    return Learner(trunk, method or GPM(), training=TRAINING, precision=precision)


def test_gradients_are_divided_by_the_factor_to_the_bit():
    scale, (weight,) = LossScale(), with_gradient(1.0, -3e-6, 70000.0)
    assert scale.unscale([weight, nn.Parameter(torch.zeros(2))])
    assert torch.equal(weight.grad * START, torch.tensor([1.0, -3e-6, 70000.0]))
    assert (scale.factor, scale.good) == (START, 1)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_step_with_too_large_gradients_is_left_out_and_the_factor_halved(bad):
    scale = LossScale()
    scale.unscale(with_gradient(1.0))
    assert not scale.unscale(with_gradient(1.0, bad))
    assert (scale.factor, scale.good) == (START / 2, 0)


def test_without_a_factor_no_step_is_left_out():
    scale = LossScale()
    for _ in range(16):
        assert not scale.unscale(with_gradient(torch.inf))
    assert scale.factor == 1
    assert scale.unscale(with_gradient(torch.inf))
    assert scale.factor == 1


def test_after_many_good_steps_the_factor_doubles():
    scale = LossScale()
    for number in range(2000):
        assert scale.factor == START
        assert scale.unscale(with_gradient(1.0)), number
    assert (scale.factor, scale.good) == (2 * START, 0)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_gradients_too_small_for_float16_move_weights(precision):
    trunk = built(Weak).float()
    made = Learner(trunk, Finetune(), training=TRAINING.replace(epochs=1), precision=precision)
    made.learn("one", points())
    moved = made.net.trunk.inner.weight - trunk.inner.weight
    assert 0 < moved.norm() < 1e-5


def test_a_step_that_is_left_out_moves_nothing(monkeypatch):
    seen = []
    monkeypatch.setattr("classgrad.training.loss_scale.START", 2.0**24)
    step = Loop.step

    def watched(self, *given):
        before, factor = self.net.trunk[0].weight.clone(), self.scale.factor
        value = step(self, *given)
        seen.append((factor, torch.equal(before, self.net.trunk[0].weight)))
        return value

    monkeypatch.setattr(Loop, "step", watched)
    made = learner()
    made.learn("one", points())
    assert seen[0] == (2.0**24, True)
    still = [same for _, same in seen]
    assert still == sorted(still, reverse=True)  # first the ones left out, then all others
    assert not still[-1]


def test_float16_learns_what_full_precision_learns():
    for number, name in enumerate(["one", "two"]):
        both = [learner(precision) for precision in ("float16", None)]
        found = [one.learn(name, points(number)).accuracy for one in both]
        assert found[0] == found[1]
        assert found[0] >= 75


def test_the_factor_goes_on_with_a_task_that_was_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "classgrad.training.loss_scale.START", 2.0**25
    )  # changes in the first steps
    step, factors = Loop.step, []

    def stopping(self, *given):
        factors.append(self.scale.factor)
        if len(factors) == 6:
            checkpoints.asked = 15
        return step(self, *given)

    checkpoints = CheckpointManager(tmp_path / "cut" / "learning")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", stopping)
        learner().learn("one", points(), checkpoint_dir=tmp_path / "whole")
        wanted, factors, checkpoints.asked = factors, [], None
        with pytest.raises(Stopped):
            learner().learn(
                "one", points(), checkpoint_dir=tmp_path / "cut", checkpoints=checkpoints
            )
        assert factors[-1] < 2.0**25
        before, factors = factors, []
        learner().learn("one", points(), checkpoint_dir=tmp_path / "cut")
    assert before + factors == wanted
    trunk = learner().trunk
    assert kept(tmp_path / "cut", trunk) == kept(tmp_path / "whole", trunk)
