"""What a guard says about itself: shares held, frozen parameters, optimisers, free rank."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from classgrad.errors import UserError
from classgrad.guard.attach import Guard, attach
from classgrad.methods import CGP, GPM, SGP, Projected
from classgrad.methods.base import Held
from classgrad.methods.projection.forecast import forecast
from guard.loops import small, task
from oracles.models import built, normal


def inputs_of(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """Return the rows that each layer of `small` sees."""
    rows, seen = x, {}
    for name, layer in model.named_children():
        if isinstance(layer, nn.Linear):
            seen[name] = rows.detach().double()
        rows = layer(rows)
    return seen


def share(rows: Tensor, basis: Tensor) -> float:
    return float((rows @ basis).square().sum() / rows.square().sum())


METHODS: dict[str, Projected] = {
    "gpm": GPM(epsilon=0.9),
    "gpm, one fewer": GPM(epsilon=0.9, gpm_compat=True),
    "sgp": SGP(epsilon=0.9),
    "cgp": CGP(epsilon=0.9, correct_only=False, eta=1.0),
    "cgp, refined": CGP(epsilon=0.9, correct_only=False, eta=0.2),
    "cgp, one fewer": CGP(epsilon=0.9, correct_only=False, gpm_compat=True),
    "cgp, text": CGP(epsilon=0.9, correct_only=False, eta=0.2, reading="text"),
    "cgp, released": CGP(epsilon=0.9, correct_only=False, eta=0.2, reading="released"),
    "cgp, pooled": CGP(epsilon=0.9, correct_only=False, eta=0.2, reading="pooled"),
}


@pytest.mark.parametrize("name", METHODS)
def test_shares_are_at_most_those_of_the_inputs_in_the_basis(name: str) -> None:
    model = small()
    guard = attach(model, METHODS[name])
    for number in range(2):
        x, y = task(number, 12)
        guard.end_task([(x, y)])
        newest = [held for held in guard.held() if held.task == number]
        pooled = name.startswith(("gpm", "sgp"))
        assert len(newest) == 3 * (1 if pooled else 2)
        for held in newest:
            rows = inputs_of(model, x if held.label is None else x[y == held.label])[held.layer]
            true = share(rows, guard.method.subspaces[held.layer].basis)
            assert held.share <= true + 1e-6
            assert held.promised == pytest.approx(0.9 + 0.003 * number)
            last = pooled or (held.label == int(y.max()) and name != "cgp, released")
            if last:  # no later class has added directions that hold more of it
                assert held.share == pytest.approx(true, abs=1e-6)
            if name in ("gpm", "sgp", "cgp"):
                assert held.share >= held.promised


def test_a_class_without_energy_at_a_layer_is_left_out() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 2)))
    with torch.no_grad():
        model.get_parameter("0.weight").copy_(-torch.ones(3, 4))
    guard = attach(model, CGP(epsilon=0.9, correct_only=False))
    guard.end_task([(torch.ones(6, 4, dtype=torch.float64), torch.arange(6) % 2)])
    assert {held.layer for held in guard.held()} == {"0"}
    assert "100.00 %" in str(guard.report())


def test_with_a_budget_shares_are_those_that_are_left() -> None:
    guard = attach(small(), CGP(epsilon=1.0, correct_only=False, max_basis_mb=0.003))
    for number in range(2):
        guard.end_task([task(number)])
    assert guard.held() == guard.method.held()
    assert min(held.share for held in guard.held()) < 0.9


class Various(nn.Module):
    """A parameter of every kind that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(5, 4)
        self.token = nn.Parameter(torch.zeros(4))
        self.still = nn.Linear(4, 4)
        self.still.weight.requires_grad_(False)
        self.conv = nn.Conv1d(4, 4, 1)
        self.depthwise = nn.Conv1d(4, 4, 1, groups=4)
        self.running = nn.BatchNorm1d(4)
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.last = nn.Linear(4, 2)

    def forward(self, words: Tensor) -> Tensor:
        x = self.still(self.words(words) + self.token)
        x = self.running(self.depthwise(self.conv(x.mT))).mT
        x = self.norm(x)
        return self.last(self.attention(x, x, x, need_weights=False)[0].mean(1))


def various() -> tuple[Guard, torch.optim.Optimizer]:
    model = built(Various).float()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    guard = attach(model, GPM(epsilon=0.9), optimizer)
    return guard, optimizer


def test_every_frozen_parameter_has_a_reason() -> None:
    guard, _optimizer = various()
    reasons = {one.name: one.reason for one in guard.report().frozen}
    assert reasons == {"still.weight": "requires_grad is off"}
    words = torch.arange(30).reshape(10, 3) % 5
    guard.end_task([(words, torch.arange(10) % 2)])
    report = guard.report()
    by_reason: dict[str, set[str]] = {}
    for one in report.frozen:
        by_reason.setdefault(one.reason, set()).add(one.name)
    assert by_reason == {
        "requires_grad is off": {"still.weight"},
        "embedding": {"words.weight"},
        "token or other parameter": {"token"},
        "bias": {"still.bias"},
        "bias of a protected layer": {
            "conv.bias",
            "attention.in_proj_bias",
            "attention.out_proj.bias",
            "last.bias",
        },
        "depthwise convolution": {"depthwise.weight", "depthwise.bias"},
        "norm with running statistics": {"running.weight", "running.bias"},
        "scale or shift of a norm": {"norm.weight", "norm.bias"},
    }
    assert {one.name for one in report.frozen} >= set(guard.method.frozen)
    assert sum(one.numbers for one in report.frozen if one.reason == "embedding") == 20
    assert "embedding                            1          20  words.weight" in str(report)


def test_optimisers_that_are_watched_are_named() -> None:
    guard, optimizer = various()
    guard.watch(other := torch.optim.SGD(guard.model.parameters(), lr=0.1))
    assert sorted(guard.report().optimizers) == ["AdamW", "SGD"]
    guard.detach()
    assert guard.report().optimizers == []
    assert "watched    no optimizer: steps are not guarded" in str(guard.report())
    assert optimizer is not other


def test_classes_are_counted_from_labels_and_capacity_is_their_forecast() -> None:
    guard = attach(small(), CGP(epsilon=0.9, correct_only=False))
    assert guard.capacity().classes_left is None
    assert guard.report().as_dict()["tasks"] == 0
    ranks = []
    for number in range(3):
        x, y = task(number, 9)
        guard.end_task([(x[:5], y[:5]), (x[5:], y[5:])], classes=None if number else iter([0, 1]))
        ranks.append({layer.name: layer.rank for layer in guard.layer_ranks()})
    assert guard.report().classes == 6
    expected = forecast({"0": 30, "3": 40, "4": 40}, ranks, [2, 2, 2], guard.method)
    assert guard.capacity() == expected
    assert expected.classes_left is not None
    assert f"about {expected.classes_left} more classes" in " ".join(str(guard.report()).split())


def test_a_saved_guard_knows_its_history(tmp_path: Path) -> None:
    model = small()
    guard = attach(model, CGP(epsilon=0.9, correct_only=False))
    for number in range(2):
        guard.end_task([task(number)])
    guard.save(tmp_path / "guard")
    before = guard.report()
    guard.detach()
    after = attach(model, tmp_path / "guard").report()
    assert after.as_dict() == before.as_dict()
    assert str(after) == str(before)


def test_a_history_that_does_not_fit_is_refused() -> None:
    guard = attach(small(), GPM())
    guard.end_task([task(0)])
    whole = guard.state_dict()
    for change in (
        {"ranks": {"0": 1}},
        {"classes": 0},
        {"classes": "2"},
        {"held": [{"layer": "0"}]},
    ):
        state = {**whole, "history": [{**whole["history"][0], **change}]}
        with pytest.raises(UserError, match="the state of the guard does not fit"):
            guard.load_state_dict(state)
    assert guard.state_dict()["history"] == whole["history"]


def test_a_report_of_a_deep_model_fits_80_columns() -> None:
    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6))

    long = "a_module_with_a_very_long_name_as_some_libraries_have"

    def deep() -> nn.Module:
        model = nn.Sequential()
        for number in range(45):
            model.add_module(f"{long}_{number}", block())
        return model

    guard = attach(built(deep).float(), CGP(epsilon=0.9, correct_only=False))
    x = normal(200, 6, seed=1).float()
    guard.end_task([(x, torch.arange(200) % 50 + 10**9)])
    text = str(guard.report())
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) < 110
    assert "and 5 layers that are less full" in text
    assert "and 10 of which more is held" in text
    values = json.loads(json.dumps(guard.report().as_dict()))
    assert len(values["layers"]) == 45
    assert len(values["held"]) == 45 * 50
    assert Held(**values["held"][0]) == guard.held()[0]


def test_the_report_in_the_documentation_is_one() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, CGP(epsilon=0.9, correct_only=False), optimizer)
    for number in range(2):
        guard.end_task([task(number)])
    page = (Path(__file__).parents[2] / "docs" / "own-models.md").read_text(encoding="utf-8")
    assert f"```\n{guard.report()}\n```" in page
