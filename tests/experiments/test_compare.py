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
    assert near.capacity.repeated is None
    assert near.repeated is True
    assert unprinted.seeds == ()
    assert unprinted.accuracy.mean is unprinted.accuracy.published is unprinted.repeated is None
    assert joint.accuracy.deviation is joint.transfer.mean is joint.transfer.repeated is None
    assert joint.accuracy.repeated is joint.repeated is False


def test_accuracy_alone_does_not_repeat_a_line(table):
    near, *_ = compare(table, [record(table, "near", 1, 90.0, -7.1)], "fast")
    assert near.accuracy.repeated is True
    assert near.transfer.repeated is near.repeated is False


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
