"""The back-test of forecasts: its cases, its straight line, and what it writes."""

import json
import math

import pytest
from typer.testing import CliRunner

from benchmarks import forecast as study
from classgrad.methods.projection.forecast import constant


def history(ranks, dimension=100, benchmark="a"):
    return study.History(benchmark, dimension, ranks, [2] * len(ranks), constant)


def test_a_case_compares_with_when_the_last_rank_was_reached():
    found = study.cases([history([10, 20, 26, 30, 30])], study.straight_line)
    # 30 is reached after the fourth task; from the third it is less than 5 directions away.
    assert [(case.known, case.true) for case in found] == [(1, 6), (2, 4)]
    assert [case.said for case in found] == [pytest.approx(4), pytest.approx(2)]
    assert found[0].error == pytest.approx(math.log(4 / 6))


def test_a_straight_line_goes_through_the_last_three_tasks():
    ranks, classes = [50, 60, 62, 64, 66], [2, 2, 2, 2, 4]
    assert study.straight_line(72, 100, ranks, classes, constant) == pytest.approx(6 * 8 / 6)
    assert study.straight_line(80, 100, [40, 40], [2, 2], constant) is None


def test_benchmarks_count_equally():
    one = [study.Case("a", 1, 2.0, 1)] * 9 + [study.Case("b", 1, 1.0, 1)]
    assert study.by_benchmark(one) == pytest.approx(math.log(2) / 2)
    assert study.spread(one) == [0.5, 1.0]
    assert study.within(one, 0.9, 1.1) == 0.1
    assert study.within_others(one) == {"a": 0.0, "b": 0.0}
    assert study.Case("a", 1, None, 5).error == study.WORST


def test_exponents_are_chosen_on_other_benchmarks(monkeypatch):
    """Ranks of a power law: with its exponent, forecasts are nearly right."""

    def grown(exponent):
        return [round(10**6 * (1 - math.exp(-0.05 * (2 * t) ** exponent))) for t in range(1, 9)]

    monkeypatch.setattr(study, "REST_EXPONENTS", (0.0,))
    parts = [history(grown(0.8), 10**6, name) for name in "abc"]
    assert study.mean_error(study.crossed(parts)) < 0.01
    assert study.mean_error(study.cases(parts, study.forecast.classes_until)) > 0.1


def test_the_study_writes_errors_of_every_stage(tmp_path, monkeypatch):
    parts = [history([20, 35, 50, 60, 70, 80], benchmark=name) for name in "ab"]
    monkeypatch.setattr(study, "OUT", tmp_path / "forecast.json")
    monkeypatch.setattr(study, "of_records", lambda folders: iter(parts))
    ended = CliRunner().invoke(study.app, [])
    assert ended.exit_code == 0, ended.output
    result = json.loads((tmp_path / "forecast.json").read_text())
    assert result["command"].startswith("python -m benchmarks.forecast")
    for errors in result["errors"].values():
        assert errors["1"]["cases"] == 2
        assert errors["4 or more"]["cases"] == 4
        assert all(stage["factor"] >= 1 for stage in errors.values())
    assert all(low <= high for low, high in result["ranges"].values())
