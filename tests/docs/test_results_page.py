"""What docs/results.md says of CGP's readings and samples is what the records say."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

from benchmarks import forgetting
from benchmarks.charts import STYLE
from classgrad.runs.record import RunRecord

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGE = (ROOT / "docs" / "results.md").read_text()


def trial(study, seed=101, **values):
    """Return the newest trial of a study that has these values."""
    path = RESULTS / "tuning" / f"{study}.json"
    content = json.loads(path.read_text())
    for part in [content, *content["earlier"]]:
        for point in part["points"]:
            if point["values"] == values:
                return RunRecord.load(path.parent / point["folders"][str(seed)])
    raise LookupError(values)


def reading(name, seed=101):
    return trial("readings/split-cifar100-cgp", seed, reading=name)


def long_run(method, few=None):
    """Return the long run without contrast at the lower rate, with base refining."""
    records = map(
        RunRecord.load, sorted((RESULTS / "natural-order").glob(f"split-cifar100-{method}-*"))
    )
    (record,) = [
        record
        for record in records
        if record.training["learning_rate"] == 0.006
        and record.method.get("contrast", 0) == 0
        and record.method.get("similarity", 0.7) == 0.7
        and (few is None or (record.method["samples"] == 20) == few)
    ]
    return record


def expected():
    """The three runs of each line: `pooled`, what is put in its place, and GPM."""
    gpm = {rate: trial("short/split-cifar100-gpm", learning_rate=rate) for rate in (0.01, 0.006)}
    few = "ordering/split-cifar100-cgp"
    return [
        (reading("pooled"), reading("algorithm"), gpm[0.01]),
        (reading("pooled"), reading("released"), gpm[0.01]),
        (trial(few, similarity=0.7), trial(few, samples=20), gpm[0.006]),
        (long_run("cgp", few=False), long_run("cgp", few=True), long_run("gpm")),
    ]


def test_what_readings_and_samples_close_is_of_the_records():
    figure = r" \| (\S+)"
    figures = f".*?{figure} \\| .*?{figure}{figure}{figure} of (\\S+) \\|"
    line = rf"^\| (?:short|long), rate (\S+), {figures}$"
    rows = re.findall(line, PAGE, re.MULTILINE)
    assert len(rows) == 4
    for row, runs in zip(rows, expected(), strict=True):
        rate, *shown = map(float, row)
        assert {run.training["learning_rate"] for run in runs} == {rate}
        assert {run.method.get("contrast", 0) for run in runs} == {0}
        pooled, other, gpm = (run.average_accuracy for run in runs)
        found = [pooled, other, gpm, other - pooled, gpm - pooled]
        assert shown == pytest.approx(found, abs=0.0501)  # rounded to one digit


def test_what_readings_gain_over_three_seeds_is_of_the_records():
    seeds = (101, 102, 103)
    pooled = [reading("pooled", seed).average_accuracy for seed in seeds]
    gains = []
    for name in ("algorithm", "released"):
        mine = [reading(name, seed).average_accuracy for seed in seeds]
        gains.append(f"{(sum(mine) - sum(pooled)) / len(seeds):.1f}")
    assert f"the readings gain {gains[0]} and {gains[1]} points on `pooled`" in PAGE


def test_directions_after_ten_tasks_are_of_the_records():
    def of_fc2(record):
        layers = {layer.name: layer for layer in record.layers}
        return f"{layers['fc2'].ranks[-1]:,}"

    gpm = trial("short/split-cifar100-gpm", learning_rate=0.01)
    few = trial("ordering/split-cifar100-cgp", samples=20)
    words = " ".join(PAGE.split())
    assert (
        f"`released` together have {of_fc2(reading('released'))} of the 2,048 directions of fc2, "
        f"`algorithm` has {of_fc2(reading('algorithm'))}, GPM {of_fc2(gpm)}, and `pooled` with 20 "
        f"samples {of_fc2(few)}" in words
    )
    text = reading("text")
    closed = [layer.name for layer in text.layers if layer.ranks[0] == layer.dimension]
    assert closed == ["conv2", "conv3"]
    behind = reading("pooled").average_accuracy - text.average_accuracy
    assert f"ends {behind:.1f} points below `pooled`" in words


def test_what_less_protection_gains_otherwise_is_of_the_records():
    words = " ".join(PAGE.split())
    gains = [
        trial(f"energy/split-cifar100-{name}", energy=0.95).average_accuracy
        - trial(f"energy/split-cifar100-{name}", energy=0.97).average_accuracy
        for name in ("cgp", "gpm")
    ]
    assert trial("energy/split-cifar100-cgp", energy=0.95).method["reading"] == "released"
    assert (
        f"ε = 0.95 instead of 0.97 gains {gains[0]:.1f} points on `released` and {gains[1]:.1f} "
        "on GPM" in words
    )
    shares = [
        (other.average_accuracy - pooled.average_accuracy)
        / (gpm.average_accuracy - pooled.average_accuracy)
        for pooled, other, gpm in expected()
    ]
    assert "the readings make up a fifth to two fifths of what CGP lacks" in words
    assert shares[:2] == pytest.approx([1 / 5, 2 / 5], abs=0.02)
    assert min(shares[2:]) > 0.8  # "nearly all of it"


def test_the_picture_of_forgetting_is_drawn_from_the_records(tmp_path):
    with matplotlib.rc_context(STYLE):
        forgetting.draw().savefig(tmp_path / "drawn.svg", metadata={"Date": None})
    assert (tmp_path / "drawn.svg").read_text() == forgetting.OUT.read_text()
