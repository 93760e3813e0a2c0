"""The measurement of guards beside PEFT's methods: what runs without PEFT, and its figures."""

import json
import runpy
from pathlib import Path

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from benchmarks.guards import __main__ as command
from benchmarks.guards import learning
from benchmarks.guards.contenders import CONTENDERS, OSF, FineTuning, GuardCGP, GuardGPM
from benchmarks.guards.cost import allocations, peak_bytes, second_task
from benchmarks.guards.learning import LayerOutputs, Outcome, choose, learn_all
from benchmarks.guards.models import TRUNKS, build
from benchmarks.guards.tasks import split_tasks
from benchmarks.timing import Timing
from classgrad.benchmarks.digits import digits

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch):
    monkeypatch.setattr(learning, "FIRST_STEPS", 20)
    monkeypatch.setattr(learning, "MOST_STEPS", 10)


@pytest.fixture
def tasks():
    return split_tasks(2, 1)


def test_tasks_have_every_image_once():
    train, test = digits()
    tasks = split_tasks(5, 1)
    assert sorted(digit for task in tasks for digit in task.digits) == list(range(10))
    assert [task.digits for task in tasks] != [task.digits for task in split_tasks(5, 2)]
    parts = [(task, part) for task in tasks for part in (task.train, task.valid)]
    assert sum(len(part.y) for _, part in parts) == len(train.labels)
    assert sum(len(task.test.y) for task in tasks) == len(test.labels)
    labels = {
        image.numpy().tobytes(): int(y) for image, y in zip(train.images, train.labels, strict=True)
    }
    for task, part in parts:
        for image, y in zip(((part.x + 1) * 127.5).round().to(torch.uint8), part.y, strict=True):
            assert labels[image.numpy().tobytes()] == task.digits[int(y)]


@pytest.mark.parametrize("kind", TRUNKS)
def test_outputs_of_layers_move_by_what_was_added(kind, tasks):
    model = build(kind, [5, 5], 0)
    outputs = LayerOutputs(model, tasks[0].train, 0)
    assert len(model.layers()) == {"transformer": 13, "CNN": 3}[kind]
    assert outputs.moved(model) == 0
    with torch.no_grad():
        for layer in model.layers().values():
            layer.weight *= 1.5
            layer.bias *= 1.5
    assert outputs.moved(model) == pytest.approx(0.5, rel=1e-4)


@pytest.mark.parametrize("kind", TRUNKS)
@pytest.mark.parametrize("contender", [GuardCGP, GuardGPM])
def test_a_guard_keeps_updates_out_of_what_it_protects(kind, contender, tasks):
    start = learning.learn_first(kind, tasks, 1)
    guarded = learn_all(contender(epsilon=0.99), start, tasks, 1e-3, 1)
    plain = learn_all(FineTuning(), start, tasks, 1e-3, 1)
    assert guarded.inside is not None
    assert guarded.inside < 1e-4
    assert plain.inside is None
    assert 0 < guarded.moved < plain.moved / 2
    assert guarded.kept > plain.kept == 0
    assert guarded.steps == plain.steps == [10]
    assert guarded.when_learnt[0] == plain.when_learnt[0]
    assert guarded.when_learnt[1] == guarded.at_end[1]


def test_what_is_inside_what_osf_protects():
    rng = torch.Generator().manual_seed(0)
    u, v = (torch.linalg.qr(torch.randn(n, n, generator=rng))[0] for n in (6, 8))
    values = torch.tensor([6.0, 5, 4, 3, 2, 1])
    weight = u @ torch.diag(values) @ v[:, :6].T
    moves = {
        0.0: u[:, 4:5] @ v[:, 7:8].T,  # outside on both sides
        1.0: u[:, 0:1] @ v[:, 7:8].T,
        0.8: 3 * u[:, 5:6] @ v[:, 7:8].T + 4 * u[:, 5:6] @ v[:, 2:3].T,
    }
    for share, move in moves.items():
        inside = OSF(effective_rank=0.5).inside({"fc": weight}, {"fc": weight + move})
        assert inside == [pytest.approx(share, abs=1e-4)]


def outcome(valid, reached):
    return Outcome(valid, [], [], [], reached, 0.0, None, 0)


def test_settings_that_reach_the_target_come_first_then_those_that_keep_most():
    tried = [
        ({"rate": 1}, [outcome([0.99, 0.9], [False])]),
        ({"rate": 2}, [outcome([0.8, 0.95], [True])]),
        ({"rate": 3}, [outcome([0.9, 0.95], [True])]),
    ]
    assert choose(tried) == {"rate": 3}


def test_memory_is_that_of_the_tensors(tasks):
    changes = allocations(lambda: torch.zeros(1000) + 1)
    assert changes.count(4000) == 2
    start = build("CNN", [5, 5], 0)
    model = 4 * sum(parameter.numel() for parameter in start.parameters())
    plain = peak_bytes(FineTuning(), start, tasks, 1e-3)
    assert 3.5 * model < plain["step"] < 20 * model  # gradients and AdamW's two states, inputs
    guarded = peak_bytes(GuardGPM(epsilon=0.99), start, tasks, 1e-3)
    assert guarded["step"] > plain["step"]


def test_a_comparison_has_a_row_for_each(monkeypatch):
    monkeypatch.setattr(command, "RATES", (1e-3, 3e-3))
    monkeypatch.setattr(command, "step_times", counted)
    contenders = [FineTuning, GuardGPM]
    rows = command.compare("CNN", 2, contenders, Console(quiet=True), seeds=((1,), (11,)))
    assert [row["contender"] for row in rows] == ["full fine-tuning", "guard, GPM"]
    assert [row["time per step"] for row in rows] == [1, 2]
    text = runpy.run_path(str(ROOT / "docs" / "fill_tables.py"))["guards"]({"rows": rows})
    lines = text.splitlines()
    assert lines[0] == "**CNN, 2 tasks**"
    assert lines[4].startswith("| full fine-tuning | ")
    assert lines[5].startswith("| guard, GPM | epsilon 0.9")


def counted(trainers):
    """Take a step of each; they took as long as their number."""
    for trainer in trainers.values():
        trainer.step()
    return {name: Timing(number, 1) for number, name in enumerate(trainers, 1)}


def test_steps_of_the_second_task_are_guarded(tasks):
    start = learning.learn_first("CNN", tasks, 1)
    trainer = second_task(GuardGPM(epsilon=0.99), start, tasks, 1e-3)
    outputs = LayerOutputs(trainer.net, tasks[0].train, 0)
    for _ in range(5):
        trainer.step()
    assert 0 < outputs.moved(trainer.net) < 0.1


def test_without_peft_it_says_what_to_do(monkeypatch):
    def missing(name):
        raise command.PackageNotFoundError(name)

    monkeypatch.setattr(command, "version", missing)
    ended = CliRunner().invoke(command.app, [])
    assert isinstance(ended.exception, command.UserError)
    assert "make guards" in str(ended.exception)


def test_the_record_is_of_all_contenders_at_one_target():
    recorded = json.loads((ROOT / "results" / "guards.json").read_text())
    labels = [contender.label for contender in CONTENDERS]
    rows = recorded["rows"]
    assert recorded["command"] == "python -m benchmarks.guards"
    assert recorded["versions"]["peft"]
    assert not set(recorded["settings"]["seeds"]) & set(recorded["settings"]["tuning seeds"])
    made = [(row["model"], row["tasks"], row["contender"]) for row in rows]
    planned = [(k, n, c) for k in TRUNKS for n in command.TASKS for c in labels]
    assert made == planned
    for row in rows:
        assert row["settings"] in recorded["settings"]["choices"][row["contender"]]
        assert row["rate"] in recorded["settings"]["learning rates"]
        assert len(row["outcomes"]) == len(recorded["settings"]["seeds"])
        for one in row["outcomes"]:
            assert len(one["steps"]) == row["tasks"] - 1
            if row["contender"].startswith("guard"):
                assert one["inside"] < 1e-4
