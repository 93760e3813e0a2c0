"""The page on reliability names tests that exist, and checks that found nothing wrong."""

import json
import re
from pathlib import Path

import pytest

from classgrad.methods import METHODS
from fuzz.targets import TARGETS

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reliability.md").read_text()


def results(name, place):
    assert f"<!-- {name} -->" in PAGE  # filled from the file, which another test compares
    return json.loads((ROOT / place).read_text())


def test_every_test_that_is_named_exists():
    sources = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)(…?)`", PAGE)
    assert len(named) > 10
    for name, more in named:
        assert re.search(rf"def {name}{'' if more else '[(]'}", sources), name
    for path in re.findall(r"`((?:tests|src)/[\w./]+)`", PAGE):
        assert (ROOT / path).exists(), path


def test_runs_of_every_method_were_killed_everywhere_and_none_ended_otherwise():
    result = results("faults", "results/faults.json")["methods"]
    assert result.keys() == METHODS.keys()
    for name, one in result.items():
        assert one["wrong"] == 0, name
        assert one["kills"]["random moment"] == sum(one["kills"].values()) / 2, name


def test_damaged_files_of_every_kind_were_read_or_refused():
    result = results("fuzz", "results/fuzz.json")["targets"]
    assert result.keys() == TARGETS.keys()
    for name, one in result.items():
        assert one["read"] + one["refused"] >= 20_000, name


def test_saving_costs_no_more_than_it_may():
    rows = results("saving", "benchmarks/results.json")["measurements"]["saving"]
    assert [row["required"] for row in rows] == ["<= 0.01"] * 2
    assert all(row["reached"] for row in rows)
