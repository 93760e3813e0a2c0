"""What docs/results.md says of CGP's readings and samples is what the records say."""

import json
import re
from pathlib import Path

import matplotlib
import pytest

from benchmarks import forgetting
from benchmarks.charts import STYLE
from classgrad.experiments import spec as experiments
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
    """The runs of each row: many samples of a class, few, and GPM."""
    gpm = {rate: trial("short/split-cifar100-gpm", learning_rate=rate) for rate in (0.01, 0.006)}
    few = "samples/split-cifar100-cgp"
    lower = "ordering/split-cifar100-cgp"
    return [
        *((reading(n), trial(few, reading=n), gpm[0.01]) for n in NAMES),
        (trial(lower, similarity=0.7), trial(lower, samples=20), gpm[0.006]),
        (long_run("cgp", few=False), long_run("cgp", few=True), long_run("gpm")),
    ]


NAMES = ("released", "algorithm", "pooled")


def test_what_samples_gain_in_each_reading_is_of_the_records():
    line = r"^\| (?:short|long), rate (\S+?),? .*?\| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \|$"
    rows = re.findall(line, PAGE, re.MULTILINE)
    assert [row[1] for row in rows] == [*NAMES, "pooled", "pooled"]
    for (rate, name, *shown), runs in zip(rows, expected(), strict=True):
        many, few, _ = runs
        assert {run.training["learning_rate"] for run in runs} == {float(rate)}
        assert {run.method.get("contrast", 0) for run in runs} == {0}
        # Records from before there were readings have what `pooled` is now.
        assert {run.method.get("reading", "pooled") for run in (many, few)} == {name}
        assert few.method["samples"] == 20
        found = [run.average_accuracy for run in runs]
        assert [float(value) for value in shown] == pytest.approx(found, abs=0.0501)
    short = [[run.average_accuracy for run in runs] for runs in expected()[:3]]
    words = " ".join(PAGE.split())
    many, few = (max(column) - min(column) for column in list(zip(*short, strict=True))[:2])
    assert (
        f"in short runs, the reading is worth {many:.1f} points with 125 samples of a class and "
        f"{few:.1f} with 20" in words
    )
    gains = sorted(few - many for many, few, _ in short)
    assert f"the number of samples {gains[0]:.1f} to {gains[-1]:.1f}, in every reading" in words
    assert all(many < gpm < few for many, few, gpm in short[:2]), "behind, and ahead"


def test_what_readings_gain_over_three_seeds_is_of_the_records():
    seeds = (101, 102, 103)
    pooled = [reading("pooled", seed).average_accuracy for seed in seeds]
    gains = []
    for name in ("algorithm", "released"):
        mine = [reading(name, seed).average_accuracy for seed in seeds]
        gains.append(f"{(sum(mine) - sum(pooled)) / len(seeds):.1f}")
    words = " ".join(PAGE.split())
    assert f"`algorithm` and `released` gain {gains[0]} and {gains[1]} points on `pooled`" in words


def test_directions_after_ten_tasks_are_of_the_records():
    def of_fc2(record):
        layers = {layer.name: layer for layer in record.layers}
        return f"{layers['fc2'].ranks[-1]:,}"

    gpm = trial("short/split-cifar100-gpm", learning_rate=0.01)
    few = trial("samples/split-cifar100-cgp", reading="pooled")
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
    assert f"ends {behind:.1f} points below `pooled` at rate 0.01" in words


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


def test_what_long_runs_confirm_is_of_the_records():
    records = [RunRecord.load(path) for path in sorted((RESULTS / "paper").glob("*/record.json"))]
    found = experiments.load("directions").records(records, "fast")
    gpm, many, few = (
        next(one for one in found[label] if one.seed == 1)
        for label in ("GPM", "CGP + BR, released", "CGP + BR, released, 20 samples of a class")
    )
    lines = experiments.load("components")
    [finetune] = [one for one in lines.records(records, "fast")["finetune"] if one.seed == 1]
    paper = {line.label: line.paper for line in lines.lines}

    def later(record):
        learnt = [row[task] for task, row in enumerate(record.accuracy_matrix)]
        return sum(learnt[1:]) / len(learnt[1:])

    words = " ".join(PAGE.split())
    assert f"where finetuning loses {-finetune.backward_transfer:.0f}." in words
    assert abs(gpm.average_accuracy - paper["GPM"].accuracy) < 0.2
    assert abs(gpm.backward_transfer - paper["GPM"].transfer) < 0.2
    published = paper["CGP + BR, released"]
    assert (
        f"is {published.accuracy - many.average_accuracy:.1f} points below the paper's ACC and "
        "forgets a point less" in words
    )
    assert many.backward_transfer - published.transfer == pytest.approx(1, abs=0.1)
    assert f"It is {gpm.average_accuracy - many.average_accuracy:.1f} points behind GPM" in words
    assert f"in the paper {published.accuracy - paper['GPM'].accuracy:.1f} ahead of it" in words
    assert later(many) == pytest.approx(later(gpm), abs=0.2)
    assert (
        f"it is {few.average_accuracy - gpm.average_accuracy:.1f} points ahead of GPM: it learns "
        f"the later tasks better, to {later(few):.1f} % instead of {later(gpm):.1f}, and forgets "
        f"{-few.backward_transfer:.1f} points" in words
    )


def test_the_picture_of_forgetting_is_drawn_from_the_records(tmp_path):
    with matplotlib.rc_context(STYLE):
        forgetting.draw().savefig(tmp_path / "drawn.svg", metadata={"Date": None})
    assert (tmp_path / "drawn.svg").read_text() == forgetting.OUT.read_text()
