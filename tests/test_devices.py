"""A learner and a guard on a device do what they do on the CPU, and nothing strays off it."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad import CGP, GPM, Learner, Training, attach
from classgrad.checkpoints import CheckpointManager
from classgrad.errors import Stopped
from classgrad.learner.drift import Reference, leakage
from classgrad.learner.export import export
from classgrad.methods import METHODS
from classgrad.training.loop import Loop
from learner.stored_states import SMALL, points
from oracles.models import built, normal
from photos import photos
from pretend import Pretend, WrongPlace, pretend_device

NAMES = ["a", "b", "c"]
TRAINING = Training(epochs=1, batch_size=9, learning_rate=0.1, momentum=0.5)


@pytest.fixture(params=["cuda:0", "mps:0"])
def device(request, monkeypatch):
    with pretend_device(monkeypatch, request.param) as result:
        yield result


@pytest.fixture
def strict(monkeypatch):
    """The device that refuses most."""
    with pretend_device(monkeypatch, "mps:0") as result:
        yield result


def small(method, device="cpu", training=TRAINING):
    return Learner(
        network="mlp",
        network_options={"width": 8},
        method=method,
        training=training,
        device=device,
    )


def taught(learner, *tasks):
    for task in tasks:
        learner.learn(f"task {task}", points(task), classes=NAMES)
    return learner


def same(first, second):
    """Tell whether two states agree but for times and rounding."""
    if isinstance(first, torch.Tensor):
        assert type(first) is type(second) is torch.Tensor  # no state is on a device
        return first.shape == second.shape and torch.allclose(first, second, atol=1e-5)
    if isinstance(first, dict):
        # The key of digests is random.
        timeless = first.keys() - {"when", "seconds", "secret", "data", "digests"}
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in timeless)
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(same, first, second))
    return first == second or (isinstance(first, float) and abs(first - second) < 1e-5)


def at_home(learner, device):
    """Return the state of a learner all of whose weights are on its device."""
    for value in learner.net.state_dict().values():
        assert value.device == device
        assert isinstance(value, Pretend)
    state = learner.state_dict()
    keep = "cpu" if learner.method.on_cpu else device
    for value in tensors(learner.method.state_dict()):
        assert value.device == torch.device(keep)
    return {**state, "memory": cpu(state["memory"])}


def tensors(value):
    if isinstance(value, torch.Tensor):
        return [value]
    parts = value.values() if isinstance(value, dict) else value
    return [t for part in parts for t in tensors(part)] if isinstance(value, dict | list) else []


def cpu(value):
    if isinstance(value, dict):
        return {key: cpu(part) for key, part in value.items()}
    if isinstance(value, list):
        return [cpu(part) for part in value]
    return value.cpu() if isinstance(value, torch.Tensor) else value


def said(learner, by="confidence"):
    x = torch.cat([points(task)[0][:4] for task in range(2)])
    return [guess.probability for one in learner.predict(x, by=by) for guess in one.ranking]


@pytest.mark.parametrize("name", [name for name, kind in METHODS.items() if kind.rehearsal_free])
def test_every_method_learns_on_a_device_what_it_learns_on_the_cpu(name, strict, tmp_path):
    device = strict
    method = METHODS[name](**SMALL.get(name, {}))
    expected = taught(small(method), 0, 1)
    learner = taught(small(method, device), 0, 1)
    assert same(at_home(learner, device), expected.state_dict())
    for by in ("confidence", "prototypes"):
        assert said(learner, by) == pytest.approx(said(expected, by), abs=1e-5)
    learner.forget_class("task 0", "b")
    expected.forget_class("task 0", "b")
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path)
    assert same(loaded.state_dict(), expected.state_dict())
    assert said(loaded) == pytest.approx(said(expected), abs=1e-5)
    back = taught(Learner.load(tmp_path, device=device), 2)
    assert same(at_home(back, device), taught(expected, 2).state_dict())


def test_pictures_with_copies_norms_and_dropout_are_learnt_on_a_device(device):
    images = torch.rand(12, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(2).repeat(6)
    trunk = built(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten()
        )
    ).float()
    quick = TRAINING.replace(batch_size=5, schedule="plateau")
    expected, learner = (
        Learner(trunk, CGP(samples=4), size=8, training=quick, device=place)
        for place in ("cpu", device)
    )
    for task in range(2):
        for one in (expected, learner):
            one.learn(f"task {task}", (images.roll(task, 0), labels))
    assert same(at_home(learner, device), expected.state_dict())


class Stop:
    """Asks a checkpoints to stop after some steps."""

    def __init__(self, monkeypatch, checkpoints, number):
        self.step, self.seen = Loop.step, 0
        self.checkpoints, self.number = checkpoints, number
        monkeypatch.setattr(Loop, "step", lambda loop, *given: self(loop, *given))

    def __call__(self, loop, *given):
        self.seen += 1
        if self.seen == self.number:
            self.checkpoints.stop_signal = 15
        return self.step(loop, *given)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("cgp", "sgd"),
        ("gpm", "adam"),
        ("si", "sgd"),
        ("lwf", "sgd"),
        ("den", "sgd"),
        ("apd", "adam"),
    ],
)
@pytest.mark.parametrize("first_on_cpu", [False, True])
def test_a_task_cut_short_resumes_on_another_device(
    name, optimizer, first_on_cpu, monkeypatch, tmp_path
):
    training = TRAINING.replace(optimizer=optimizer, learning_rate=0.01)
    method = METHODS[name](**SMALL.get(name, {}))
    expected = taught(small(method, training=training), 0, 1)
    with pretend_device(monkeypatch) as device:
        places = ["cpu", device] if first_on_cpu else [device, "cpu"]
        learner = taught(small(method, places[0], training), 0)
        learner.save(tmp_path)
        checkpoints = CheckpointManager(tmp_path / "learning")
        with monkeypatch.context() as patch:
            Stop(patch, checkpoints, 2)
            with pytest.raises(Stopped):
                learner.learn(
                    "task 1",
                    points(1),
                    classes=NAMES,
                    checkpoint_dir=tmp_path,
                    checkpoints=checkpoints,
                )
        learner = Learner.load(tmp_path, device=places[1])
        steps = []
        learner.learn(
            "task 1",
            points(1),
            classes=NAMES,
            checkpoint_dir=tmp_path,
            observer=lambda at: steps.append(at.step),
        )
        assert steps[0] > 1
        assert same(
            {**learner.state_dict(), "memory": cpu(learner.state_dict()["memory"])},
            expected.state_dict(),
        )


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_a_guard_in_a_plain_loop_works_on_a_device(optimizer, monkeypatch):
    def learnt(place):
        model = built(Mixed).float().to(place)
        guard = attach(model, CGP(epsilon=0.9))
        chosen = optimizer(model.parameters(), lr=0.01)
        for task in range(3):
            x, y = normal(12, 3, 6, 6, seed=task).float().to(place), torch.arange(12).to(place) % 2
            for _ in range(3):
                chosen.zero_grad()
                with guard.step(chosen):
                    functional.cross_entropy(model(x), y).backward()
                    chosen.step()
            guard.end_task([(x, y)])
        assert any(0 < layer.rank < layer.dimension for layer in guard.layer_ranks())
        return cpu(model.state_dict()), guard.layer_ranks()

    expected = learnt("cpu")
    with pretend_device(monkeypatch) as device:
        result = learnt(device)
    assert same(result[0], expected[0])
    assert result[1] == expected[1]


class Mixed(nn.Module):
    """A convolution, a Linear layer, attention and norms."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4)
        self.look = nn.MultiheadAttention(4, 2, batch_first=True)
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        tokens = self.norm(self.conv(x)).relu().flatten(2).mT
        return self.head(self.look(tokens, tokens, tokens)[0].mean(1))


def test_what_is_exported_on_a_device_runs_on_the_cpu(monkeypatch, tmp_path):
    expected = taught(small(GPM()), 0)
    with pretend_device(monkeypatch) as device:
        learner = taught(small(GPM(), device), 0)
        export(learner, tmp_path / "model.pt2")
        assert isinstance(next(learner.net.parameters()), Pretend)
    model = torch.export.load(tmp_path / "model.pt2").module()
    assert all(value.device.type == "cpu" for value in model.state_dict().values())
    x = points(0)[0][:4]
    wanted = [{g.name: g.probability for g in one.ranking} for one in expected.predict(x)]
    rows = model(x)["probabilities"].tolist()
    result = [dict(zip(NAMES, row, strict=True)) for row in rows]
    for one, other in zip(result, wanted, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_a_reference_taken_on_a_device_is_compared_on_any(device, tmp_path):
    learner = taught(small(GPM(), device), 0)
    learner.reference(points(0)[0].to(device), "task 0").save(tmp_path / "note")
    learner.save(tmp_path / "state")
    note = Reference.load(tmp_path / "note")
    for one in (learner, Learner.load(tmp_path / "state")):
        result = leakage(one, note)
        assert (result.changed, result.images) == (0, 30)
        assert result.largest < 1e-5
        assert leakage(taught(one, 1), note).largest > 0


def test_a_trunk_of_ones_own_may_be_on_the_device_already(device):
    trunk = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 6))).float()
    result = [
        Learner(given, GPM(), training=TRAINING, device=device)
        for given in (trunk, nn.Sequential(*trunk).to(device))
    ]
    states = [at_home(taught(learner, 0), device) for learner in result]
    assert same(*states)


def test_the_command_line_learns_and_predicts_on_a_device(call, device, tmp_path):
    photos(tmp_path / "birds", "crow", "wren")
    words = ["--task", "birds", "--images", "birds", "--network", "mlp", "--size", "8"]
    words += ["--set", "epochs=2", "--set", "width=24"]
    assert call("learn", "there", *words, "--device", str(device))[0] == 0
    assert call("learn", "here", *words)[0] == 0
    there, here = (Learner.load(folder).state_dict() for folder in ("there", "here"))
    assert same(there, here)
    result = [
        json.loads(call("predict", "there", "birds/crow", "--json", "--device", place)[1])
        for place in (str(device), "cpu")
    ]
    assert same(*result)


def test_the_pretend_device_refuses_what_a_real_one_does(monkeypatch):
    with pretend_device(monkeypatch, "mps:0") as device:
        here = torch.ones(3)
        there = here.to(device)
        index = torch.tensor([0, 2], device=device)
        for wrong in (
            lambda: here + there,
            lambda: torch.cat([here, there]),
            lambda: here[index],
            lambda: there.index_select(0, torch.tensor([0])),
            lambda: there.numpy(),
            lambda: there.double(),
            lambda: there.uniform_(generator=torch.Generator()),
            lambda: torch.rand(3, device=device, generator=torch.Generator()),
        ):
            with pytest.raises(WrongPlace):
                wrong()
        for right in (there * 2, there * torch.tensor(2.0), there[index], there[torch.tensor([1])]):
            assert right.device == device
            assert type(right.cpu()) is torch.Tensor
