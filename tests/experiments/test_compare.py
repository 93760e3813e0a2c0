"""Measured beside published figures."""

import io

import pytest
from rich.console import Console

from classgrad.cli.experiments import comparison
from classgrad.experiments import spec as experiments
from classgrad.experiments.compare import compare
from classgrad.runs.record import RunRecord


@pytest.fixture
def table(tmp_path):
    file = tmp_path / "small.toml"
    file.write_text(
        """
title = "Small"
source = "a test"
benchmark = "permuted-digits"
tolerance = 2
[[lines]]
label = "near"
method = "gpm"
paper = { accuracy = 90.0, transfer = -0.05, transfer_unit = "fraction", capacity = 110 }
[[lines]]
label = "not printed"
method = "ewc"
[[lines]]
label = "joint"
method = "multitask"
paper = { accuracy = 95.0 }
""",
        encoding="utf-8",
    )
    return experiments.load(str(file))


def record(table, label, seed, accuracy, transfer=None, complete=True):
    (line,) = [line for line in table.lines if line.label == label]
    plan = line.plan(table.benchmark, "fast", seed)
    return RunRecord(
        **plan.as_dict(),
        tasks=["one"],
        average_accuracy=accuracy,
        backward_transfer=transfer,
        capacity=100.0,
        complete=complete,
    )


def test_means_deviations_differences_and_verdicts_are_numbers(table):
    records = [
        record(table, "near", 2, 92.0, -6.0),
        record(table, "near", 1, 90.0, -5.0),
        record(table, "near", 1, 90.0, -5.0),  # the same run, found twice
        record(table, "near", 3, 0.0, 0.0, complete=False),
        record(table, "joint", 1, 92.9),
    ]
    near, unprinted, joint = compare(table, records, "fast")
    assert (near.label, near.method, near.seeds) == ("near", "gpm", (1, 2))
    assert near.accuracy.mean == 91
    assert near.accuracy.deviation == pytest.approx(2**0.5)
    assert near.accuracy.published == 90
    assert near.accuracy.difference == 1
    assert near.transfer.mean == -5.5
    assert near.transfer.published == -5  # in per cent, whatever the paper prints
    assert near.transfer.difference == -0.5
    assert near.capacity.difference == -10
    assert near.capacity.verdict is None
    assert near.accuracy.interval.count == 2
    assert near.verdict == "open"
    assert unprinted.seeds == ()
    assert unprinted.accuracy.mean is unprinted.accuracy.published is unprinted.verdict is None
    assert joint.accuracy.deviation is joint.transfer.mean is joint.transfer.verdict is None
    assert joint.accuracy.verdict == joint.verdict == "open"


def seeds(table, label, figures):
    return [record(table, label, seed, *pair) for seed, pair in enumerate(figures, start=1)]


@pytest.mark.parametrize(
    ("figures", "accuracy", "transfer"),
    [
        ([(90.0, -5.0), (90.2, -5.1), (90.1, -4.9)], "repeated", "repeated"),
        ([(90.0, -7.2), (90.2, -7.3), (90.1, -7.4)], "repeated", "not repeated"),
        ([(95.0, -5.0), (85.0, -5.1), (90.0, -4.9)], "open", "repeated"),
        ([(92.1, -5.0), (92.2, -5.1), (92.0, -4.9)], "open", "repeated"),  # at the edge
    ],
)
def test_a_line_repeats_if_its_intervals_do(table, figures, accuracy, transfer):
    near, *_ = compare(table, seeds(table, "near", figures), "fast")
    assert (near.accuracy.verdict, near.transfer.verdict) == (accuracy, transfer)
    worst = {"not repeated", "open"} & {accuracy, transfer}
    assert near.verdict == (max(worst, key=len) if worst else "repeated")


def test_differences_are_paired_by_seed(table):
    """What a seed makes easier for all is no difference; a seed that one has not is left out."""
    near = seeds(table, "near", [(70.0, 0.0), (80.0, 0.0), (90.0, 0.0), (10.0, 0.0)])
    joint = seeds(table, "joint", [(71.0, 0.0), (81.2, 0.0), (91.1, 0.0)])
    one, _, other = compare(table, near + joint, "fast")
    ahead = other.ahead_of(one)
    assert ahead.count == 3
    assert ahead.mean == pytest.approx(1.1)
    # By a table of Student's t: 4.303 standard errors of 0.1 / √3.
    assert ahead.high - ahead.mean == pytest.approx(4.303 * 0.1 / 3**0.5, rel=1e-3)
    assert ahead.mean - ahead.low == pytest.approx(ahead.high - ahead.mean)
    assert one.ahead_of(one).low == one.ahead_of(one).high == 0
    assert compare(table, near[:1] + joint[:1], "fast")[2].ahead_of(one) is None


def test_records_of_another_recipe_do_not_count(table):
    (plan,) = table.plans("paper", [1])["near"]
    other = RunRecord(**plan.as_dict(), tasks=["one"], average_accuracy=90.0, complete=True)
    assert compare(table, [other], "fast")[0].accuracy.mean is None
    assert compare(table, [other], "paper")[0].accuracy.mean == 90


@pytest.mark.parametrize("experiment", experiments.load_many("all"), ids=lambda e: e.name)
def test_the_table_fits_80_columns_and_shows_what_is_missing(experiment):
    records = [
        record(experiment, line.label, seed, 70.0 + seed, -10.25 * seed)
        for line in experiment.lines[1:]
        for seed in (1, 2)
    ]
    console = Console(file=io.StringIO(), width=80)
    console.print(comparison(experiment, compare(experiment, records, "fast"), "fast"))
    shown = console.file.getvalue()
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "…" not in shown
    assert "71.50 ± 0.7" in shown
    assert all(line.label.split(",")[0] in shown for line in experiment.lines)


def test_the_table_says_what_was_run_and_what_is_to_be_known_of_it():
    experiment = experiments.load("superclass")
    done = record(experiment, "DEN, image", 1, 50.0, -1.0).model_copy(update={"capacity": 190.6})
    console = Console(file=io.StringIO(), width=80)
    console.print(comparison(experiment, compare(experiment, [done], "fast"), "fast"))
    shown = console.file.getvalue().split("\n")
    title = " ".join(" ".join(shown[:3]).split())
    assert title.startswith("superclass: CIFAR-100 superclasses (paper, table 2); recipe fast")
    (line,) = (one.split() for one in shown if one.startswith(" DEN, image"))
    assert line[-2:] == ["191", "(191)"]
    (line,) = (one.split() for one in shown if one.startswith(" PGN, image"))
    assert line[-2:] == ["-", "(271)"]
    assert "scrambles its pixels" in " ".join(" ".join(shown).split())
    notes = experiments.load("cifar100")
    console.print(comparison(notes, compare(notes, [], "fast"), "fast"))
    assert "finetune: the paper has it in its table of components." in console.file.getvalue()
