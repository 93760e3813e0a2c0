"""With float16 the loss is scaled: small gradients arrive, and too large ones leave a step out."""

import functools

import pytest
import torch
from torch import nn
from torch.amp import GradScaler

from classgrad import GPM, Learner, Training
from classgrad.checkpoints import CheckpointManager
from classgrad.errors import Stopped
from classgrad.methods import Finetune
from classgrad.training.loop import Loop, load_scaler, unscale
from oracles.models import built
from photos import kept

START = 2.0**16
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
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(2).repeat(20)
    return torch.randn(40, 4, generator=rng) + 2 * labels[:, None], labels


class Scaled:
    """A scaler of losses, and a weight that is given gradients."""

    def __init__(self, dtype=torch.float32):
        self.scaler = GradScaler("cpu")
        self.scaler.scale(torch.zeros(()))  # makes the tensor of the scale, as a first loss does
        self.weight = nn.Parameter(torch.zeros(0, dtype=dtype))
        self.other = nn.Parameter(torch.zeros(2, dtype=dtype))  # without a gradient
        self.optimizer = torch.optim.SGD([self.weight, self.other], lr=0.1)

    def unscale(self, *values):
        """Tell whether the step with these gradients is to be taken."""
        self.weight.data = torch.zeros(len(values), dtype=self.weight.dtype)
        self.weight.grad = torch.tensor(values, dtype=self.weight.dtype)
        return unscale(self.scaler, self.optimizer)

    @property
    def state(self):
        kept = self.scaler.state_dict()
        return kept["scale"], kept["_growth_tracker"]


def starting_at(scale):
    return functools.partial(GradScaler, init_scale=scale)


def learner(precision="float16", method=None):
    trunk = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))).float()
    return Learner(trunk, method or GPM(), training=TRAINING, precision=precision)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_divided_by_the_scale_to_the_bit(dtype):
    scaled = Scaled(dtype)
    assert scaled.unscale(1.0, -3e-6, 70000.0)
    assert torch.equal(scaled.weight.grad * START, torch.tensor([1.0, -3e-6, 70000.0], dtype=dtype))
    assert scaled.state == (START, 1)


@pytest.mark.parametrize("bad", [torch.inf, -torch.inf, torch.nan])
def test_a_step_with_too_large_gradients_is_left_out_and_the_scale_halved(bad):
    scaled = Scaled()
    scaled.unscale(1.0)
    assert not scaled.unscale(1.0, bad)
    assert scaled.state == (START / 2, 0)


def test_with_a_scale_of_one_no_step_is_left_out():
    scaled = Scaled()
    for _ in range(16):
        assert not scaled.unscale(torch.inf)
    assert scaled.state[0] == 1
    assert scaled.unscale(torch.inf)
    assert scaled.state[0] == 1


def test_after_many_good_steps_the_scale_doubles():
    scaled = Scaled()
    for number in range(2000):
        assert scaled.state[0] == START
        assert scaled.unscale(1.0), number
    assert scaled.state == (2 * START, 0)


def test_states_of_before_and_of_now_are_taken_up():
    for state in ({"factor": 2.0**9, "good": 7}, {"scale": 2.0**9, "_growth_tracker": 7}):
        for scaled in (Scaled(), Scaled()):
            load_scaler(scaled.scaler, state)
            assert scaled.state == (2.0**9, 7)
            assert scaled.unscale(2.0**9)
            assert scaled.weight.grad == 1
            assert scaled.state == (2.0**9, 8)
    fresh = GradScaler("cpu")  # one that no loss has gone through
    load_scaler(fresh, scaled.scaler.state_dict())
    assert fresh.state_dict() == scaled.scaler.state_dict()


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"factor": 2.0},
        {"factor": "2", "good": 1},
        {"factor": 0.0, "good": 1},
        {"factor": torch.inf, "good": 1},
        {"scale": torch.nan, "_growth_tracker": 1},
        {"scale": 2.0, "_growth_tracker": -1},
        {"scale": 2.0, "_growth_tracker": []},
    ],
)
def test_states_that_make_no_sense_are_refused(state):
    with pytest.raises((KeyError, TypeError, ValueError)):
        load_scaler(GradScaler("cpu"), state)


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_gradients_too_small_for_float16_move_weights(precision):
    trunk = built(Weak).float()
    made = Learner(trunk, Finetune(), training=TRAINING.replace(epochs=1), precision=precision)
    made.learn("one", points())
    moved = made.net.trunk.inner.weight - trunk.inner.weight
    assert 0 < moved.norm() < 1e-5


def test_a_step_that_is_left_out_moves_nothing(monkeypatch):
    seen = []
    monkeypatch.setattr("classgrad.training.loop.GradScaler", starting_at(2.0**24))
    step = Loop.step

    def watched(self, *given):
        before, scale = self.net.trunk[0].weight.clone(), self.scaler.get_scale()
        value = step(self, *given)
        seen.append((scale, torch.equal(before, self.net.trunk[0].weight)))
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
        result = [one.learn(name, points(number)).accuracy for one in both]
        assert result[0] == result[1]
        assert result[0] >= 75


def test_the_scale_resumes_with_a_task_that_was_cut_short(tmp_path, monkeypatch):
    # Changes in the first steps.
    monkeypatch.setattr("classgrad.training.loop.GradScaler", starting_at(2.0**25))
    step, scales = Loop.step, []

    def stopping(self, *given):
        scales.append(self.scaler.get_scale())
        if len(scales) == 6:
            checkpoints.stop_signal = 15
        return step(self, *given)

    checkpoints = CheckpointManager(tmp_path / "cut" / "learning")
    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", stopping)
        learner().learn("one", points(), checkpoint_dir=tmp_path / "whole")
        wanted, scales, checkpoints.stop_signal = scales, [], None
        with pytest.raises(Stopped):
            learner().learn(
                "one", points(), checkpoint_dir=tmp_path / "cut", checkpoints=checkpoints
            )
        assert scales[-1] < 2.0**25
        before, scales = scales, []
        learner().learn("one", points(), checkpoint_dir=tmp_path / "cut")
    assert before + scales == wanted
    trunk = learner().trunk
    assert kept(tmp_path / "cut", trunk) == kept(tmp_path / "whole", trunk)
