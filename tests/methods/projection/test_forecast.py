"""The forecast of free rank, against an integration of its equation, and its errors on record."""

import json
from dataclasses import replace
from math import exp
from pathlib import Path

import pytest

from classgrad.methods import CGP, GPM, HAT
from classgrad.methods.projection.forecast import (
    ERRORS,
    Capacity,
    LayerForecast,
    epsilons,
    forecast,
    layer_forecast,
)

MEASURED = json.loads((Path(__file__).parents[3] / "results" / "forecast.json").read_text())


def ranks_after_each_class(dimension, a, epsilon_of_class, count):
    """Integrate dr = a (d - r) (1 - ε)^-0.8 d(n^0.6) in small steps, without solving it."""
    steps, rank, ranks = 200, 0.0, []
    for number in range(count):
        for step in range(steps):
            n = number + (step + 0.5) / steps
            rate = a * (dimension - rank) * (1 - epsilon_of_class(number)) ** -0.8
            rank += rate * 0.6 * n**-0.4 / steps
        ranks.append(rank)
    return ranks


@pytest.mark.parametrize("method", [GPM(energy=0.9, energy_step=0.0), GPM(energy=0.9)])
@pytest.mark.parametrize("tasks", [2, 4, 9])
def test_a_layer_that_grows_as_assumed_is_full_when_the_forecast_says(method, tasks):
    per_task, dimension = 3, 10**6  # so large that ranks can be whole numbers

    def epsilon(number):
        return min(0.9 + number // per_task * method.energy_step, 0.999)

    rank = ranks_after_each_class(dimension, 0.02, epsilon, 400)
    full = next(n for n, r in enumerate(rank, 1) if r >= 0.98 * dimension)
    ranks = [{"a": round(rank[per_task * (t + 1) - 1])} for t in range(tasks)]
    found = forecast({"a": dimension}, ranks, [per_task] * tasks, method).layers[0]
    assert found.classes_left == pytest.approx(full - per_task * tasks, abs=1.5)


def test_after_one_task_the_first_rank_is_all_that_is_known():
    rank = 1000 * (1 - exp(-0.1 * 10**0.6))
    found = layer_forecast("a", 1000, [round(rank)], [10])
    needed = (3.912 / 0.1) ** (1 / 0.6) - 10  # -ln 0.02 = 0.1 n^0.6
    assert found.classes_left == pytest.approx(needed, rel=0.01)


def test_a_layer_that_took_nothing_does_not_fill_up():
    for ranks in ([0], [30, 30, 30], [30, 40, 40, 40, 40, 40, 40], [30, 50, 30]):
        found = layer_forecast("a", 100, ranks, [2] * len(ranks))
        assert (found.classes_left, found.fewest, found.most) == (None, None, None)
    assert layer_forecast("a", 10**6, [5, 6], [2, 2]).classes_left is None  # too far to tell


def test_a_layer_with_98_per_cent_of_its_directions_is_full():
    assert layer_forecast("a", 100, [50, 98], [2, 2]).classes_left == 0
    left = layer_forecast("a", 100, [50, 97], [2, 2]).classes_left
    assert left is not None
    assert left > 0


def test_without_a_task_nothing_is_forecast():
    assert forecast({"a": 5}, [], []).layers == [LayerForecast("a", 5, 0, None)]
    assert forecast({}, [], [], CGP(energy={"conv*": 0.9})).layers == []


def test_thresholds_are_those_of_the_method():
    method = CGP(energy={"conv*": 0.9, "fc": 0.95}, energy_step=0.02, energy_limit=0.97)
    found = epsilons(method, ["conv1", "fc"])
    assert [found["conv1"](t) for t in (0, 1, 9)] == pytest.approx([0.9, 0.92, 0.97])
    assert [found["fc"](t) for t in (0, 1, 9)] == pytest.approx([0.95, 0.97, 0.97])
    assert epsilons(HAT(), ["a"])["a"](0) == epsilons(None, ["a"])["a"](7)


def test_what_a_model_has_room_for_is_what_its_next_full_layer_has():
    a, b = LayerForecast("a", 20, 5, None), LayerForecast("b", 30, 6, 8, 4, 19)
    c, full = LayerForecast("c", 30, 6, 12, 6, 29), LayerForecast("d", 9, 9, 0, 0, 0)
    assert Capacity([a, c, b]).classes_left == 8
    assert Capacity([a]).classes_left is None
    assert str(Capacity([a])) == (
        "no layer is filling up; the fullest is a: 5 of 20 directions are in use"
    )
    assert str(Capacity([full, c, b])).startswith("full: d; about 8 more classes (4 to 19 in 9 of")
    assert Capacity([full]).classes_left == 0
    assert str(Capacity([full, replace(full, name="e")])) == "all layers are full"
    assert str(Capacity([])) == "no layer is protected"
    found = json.loads(json.dumps(Capacity([full, c, b]).as_dict()))
    assert (found["classes_left"], found["layer"]) == (8, "b")
    assert found["full"] == ["d"]
    assert [layer["name"] for layer in found["layers"]] == ["d", "c", "b"]


def test_ranges_are_those_that_were_measured():
    least = {"1": 1, "2 to 3": 2, "4 or more": 4}
    measured = [(least[stage], *bounds) for stage, bounds in MEASURED["ranges"].items()]
    assert sorted(ERRORS) == sorted(measured)
    found = layer_forecast("a", 1000, [300, 400], [10, 10])
    _, low, high = ERRORS[1]
    assert found.fewest == pytest.approx(low * found.classes_left, abs=2)
    assert found.most == pytest.approx(high * found.classes_left, abs=high + 1)


def test_on_the_whole_the_forecast_is_nearer_than_a_straight_line():
    errors = MEASURED["errors"]
    for linear, ours in (
        ("linear", "forecast"),
        ("linear", "forecast, exponents of other benchmarks"),
        ("linear, tuning", "forecast, tuning"),
    ):
        for stage, line in errors[linear].items():
            assert errors[ours][stage]["factor"] < line["factor"]
    assert min(MEASURED["within"].values()) >= 0.9
