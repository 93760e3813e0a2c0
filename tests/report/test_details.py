"""What the command show says of one run besides its tables."""

import io

import pytest
from rich.console import Console

from classgrad import run
from classgrad.report import details
from classgrad.runs.record import RunRecord, WithinTask
from streams import blobs


@pytest.fixture(scope="module")
def record():
    values = {"epochs": 3, "batch_size": 12, "schedule": "plateau", "stability": 2}
    return run(blobs(), "gpm", values=values)


def text(tables, width=80):
    console = Console(file=io.StringIO(), width=width)
    for table in tables:
        console.print(table)
    return console.file.getvalue()


def test_bytes_are_beside_capacity_and_all_fits(record):
    large = record.model_copy(
        update={"memory_bytes": 98_000_000, "network_bytes": 4_500_000, "capacity": 100.0}
    )
    lines = details.in_short(large)
    assert lines[1].endswith(
        "98.0 MB kept between tasks beside a network of 4.5 MB; capacity 100 %"
    )
    assert f"when learnt {record.accuracy_when_learnt:.1f} %" in lines[0]
    assert f"lowest on the way {record.lowest_accuracy:.1f} %" in lines[0]
    assert record.commits[0] in lines[2]
    assert all(len(line) <= 80 for line in lines)


def test_a_record_of_an_earlier_version_has_what_it_has(record):
    new = ("commits", "threads", "curves", "held", "within_tasks", "network_bytes")
    new += ("accuracy_when_learnt", "average_incremental_accuracy", "lowest_accuracy")
    older = RunRecord.model_validate(record.model_dump(exclude=set(new)))
    assert details.tables(older) == []
    (line,) = details.in_short(older)
    assert line.startswith("bytes     ")
    assert "network" not in line


def test_losses_energy_and_stability_are_shown(record):
    shown = text(details.tables(record))
    assert max(map(len, shown.splitlines())) <= 80
    for name, curve in zip(record.tasks, record.curves, strict=True):
        (line,) = [line for line in shown.splitlines() if line.startswith(f"{name} ")][:1]
        losses = [f"{curve.train[0]:.3f}", f"{curve.train[-1]:.3f}"]
        assert line.split()[2:5] == [str(curve.epochs), *losses]
    (entry,) = [entry for entry in record.held if entry.layer == "fc1"]
    (line,) = [line for line in shown.splitlines() if line.startswith("fc1 ")]
    assert f"{min(entry.learnt_train):.2f} to {max(entry.learnt_train):.2f}" in line
    assert "lowest within a later task" in shown
    assert shown.count("blobs 0") == 2
    assert shown.count("blobs 2") == 1, "no task follows the last one"


def test_the_command_shows_them_of_one_run(call, record, tmp_path):
    record.save(tmp_path)
    code, out, _ = call("show", str(tmp_path))
    assert code == 0
    assert "kept between tasks beside a network" in out
    assert "energy held" not in out
    code, out, _ = call("show", str(tmp_path), "--details")
    assert code == 0
    assert "energy held" in out
    other = tmp_path / "other"
    other.mkdir()
    record.model_copy(update={"seed": 9}).save(other)
    code, _, error = call("show", str(tmp_path), str(other), "--details")
    assert code == 2
    assert "give one" in error


def test_tests_within_tasks_that_a_record_has_no_tasks_for_are_left_out(record):
    within = [*record.within_tasks[:1], WithinTask(steps=[0], accuracy=[[50.0] * 9])]
    details.tables(record.model_copy(update={"within_tasks": within, "accuracy_matrix": []}))
    details.tables(record.model_copy(update={"within_tasks": within, "accuracy_matrix": [[]]}))
