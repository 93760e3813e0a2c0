import io

import pytest
from rich.console import Console

from classgrad import run
from classgrad.report import terminal as report
from classgrad.report.page.summary import sections
from classgrad.report.text import size
from classgrad.runs.record import Layer
from pages import record as made
from streams import blobs


@pytest.fixture(scope="module")
def records():
    values = {"epochs": 1, "batch_size": 12}
    return [run(blobs(), name, values=values) for name in ("cgp", "gpm", "finetune", "multitask")]


def text(table, width=80):
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines), default=0) <= width
    return "\n".join(line.rstrip() for line in lines)


def test_comparison_has_a_line_per_run_and_fits_a_terminal(records):
    lines = text(report.comparison(records)).splitlines()
    assert lines[0] == "blobs, recipe fast, 1 epoch, seed 1"
    for record in records:
        (line,) = [line for line in lines if line.startswith(f"{record.method_name} ")]
        assert f"{record.average_accuracy:.2f}" in line
        bwt = record.backward_transfer
        assert ("-" if bwt is None else f"{bwt:+.2f}") in line
        assert size(record.memory_bytes) in line


def test_matrix_and_ranks(records):
    shown = text(report.matrix_table(records[0]))
    assert all(task in shown for task in records[0].tasks)
    ranks = text(report.rank_table(records[0]))
    for layer in records[0].layers:
        assert f"{layer.ranks[-1]}" in ranks


def test_a_stream_has_its_own_table_and_different_seeds_a_column(records):
    other = records[1].model_copy(update={"benchmark": "others", "seed": 7})
    shown = text(report.comparison([*records, other])).splitlines()
    titles = [line for line in shown if "recipe fast" in line]
    assert titles == ["blobs, recipe fast, 1 epoch, seed 1", "others, recipe fast, 1 epoch, seed 7"]
    seventh = records[1].model_copy(update={"seed": 7})
    title, *lines = text(report.comparison([records[0], seventh])).splitlines()
    assert title == "blobs, recipe fast, 1 epoch"
    assert [line.split()[-1] for line in lines[1:] if line[:3] in ("cgp", "gpm")] == ["1", "7"]


def test_rows_are_sorted_by_accuracy(records):
    def with_accuracy(record, value, **changes):
        return record.model_copy(update={"average_accuracy": value, **changes})

    runs = [with_accuracy(r, v) for r, v in zip(records, (7, 9, None, 10), strict=True)]
    lines = text(report.comparison(runs)).splitlines()
    words = [line.split()[0] for line in lines if line]
    names = [record.method_name for record in records]
    assert [word for word in words if word in names] == ["multitask", "gpm", "cgp", "finetune"]


@pytest.mark.parametrize("tasks", [1, 5, 6, 10, 20])
def test_tables_of_any_number_of_tasks_fit_a_terminal(records, tasks):
    row = [99.4] * tasks
    layers = [
        Layer(name="stage2.0.shortcut.0", dimension=2048, ranks=[1999] * tasks),
        Layer(name="fc1", dimension=1024, ranks=list(range(tasks))),
    ]
    record = records[0].model_copy(
        update={
            "tasks": [f"classes {i}" for i in range(tasks)],
            "accuracy_matrix": [row] * tasks,
            "layers": layers,
        }
    )
    for width in (50, 60, 80, 200):
        matrix = text(report.matrix_table(record, width), width)
        ranks = text(report.rank_table(record, width), width)
        assert "…" not in matrix + ranks
        assert ranks.count("1999") >= 1
        assert str(tasks) in ranks
        head, last = matrix.splitlines()[1], matrix.splitlines()[-1]
        assert head.endswith(f"classes {tasks - 1}") or head.split()[-1] == str(tasks)
        assert last.endswith(("99", "99.4"))


def test_means_and_standard_deviations_over_seeds(records):
    cgp = records[0].model_copy(update={"average_accuracy": 90.0, "backward_transfer": -1.0})
    other = cgp.model_copy(
        update={"seed": 2, "average_accuracy": 94.0, "backward_transfer": -3.0, "memory_bytes": 0}
    )
    (summary,) = report.summaries([cgp, other])
    assert summary.seeds == [1, 2]
    assert summary.figures["ACC %"] == "92.0 ± 2.8"
    assert summary.figures["BWT"] == "-2.0 ± 1.4"
    assert summary.figures["memory"] == size(round(cgp.memory_bytes / 2))
    shown = text(report.comparison([cgp, other]))
    assert "mean of seeds 1, 2" in shown
    assert shown.splitlines()[-1].split()[-1] == "2"
    three = [*(records[1].model_copy(update={"seed": seed}) for seed in (1, 2, 3))]
    several = text(report.comparison([cgp, other, *three]))
    assert {line.split()[0]: line.split()[-1] for line in several.splitlines() if "±" in line} == {
        "cgp": "2",
        "gpm": "3",
    }
    assert report.markdown([cgp, other, *three]).splitlines()[0].endswith("| seeds |")
    changed = other.model_copy(update={"training": {**other.training, "epochs": 9}})
    assert len(report.summaries([cgp, changed])) == 2


def test_markdown_has_the_best_first_and_a_dash_for_what_was_not_measured(records):
    lines = report.markdown(records).splitlines()
    assert lines[0].startswith("| method | ACC % | BWT |")
    best = max(records, key=lambda record: record.average_accuracy)
    assert lines[2].startswith(f"| {best.method_name} | {best.average_accuracy:.1f} |")
    (multitask,) = [line for line in lines if line.startswith("| multitask |")]
    assert multitask.split(" | ")[2] == "-"


def test_a_run_that_is_repeated_counts_once(records):
    cgp = records[0].model_copy(update={"average_accuracy": 90.0})
    second, again = (cgp.model_copy(update={"seed": s, "average_accuracy": 80.0}) for s in (2, 1))
    (summary,) = report.summaries([cgp, second, again])
    assert summary.figures["ACC %"] == "85.0 ± 7.1"
    shown = text(report.comparison([cgp, second, again]))
    assert "left out: 1 repeat of the same settings and seed" in shown
    both = text(report.comparison([cgp, again]))
    assert "cgp (repeat 1)" in both
    assert "90.00" in both
    assert "80.00" in both


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_columns_are_left_out_so_that_nothing_is_cut(records, width):
    label = {"samples": {"conv1": 24, "fc1": 125}, "similarity": 0.5}
    long = records[0].model_copy(update={"method": {**records[0].method, **label}})
    several = [r.model_copy(update={"seed": seed}) for r in (*records, long) for seed in (1, 2, 3)]
    for runs in (several, [*records, long]):
        shown = text(report.comparison(runs), width)
        assert "…" not in shown
        means = report.summaries(runs) if runs is several else []
        for summary in means:
            assert summary.figures["ACC %"] in shown
            assert summary.figures["BWT"] in shown
        narrow = width < (120 if means else 80)
        assert ("not shown, for want of width: no task: conf." in shown) == narrow
        assert "memory" in shown


def test_means_tell_benchmarks_and_settings_apart(records):
    cgp = records[0]
    eta = cgp.model_copy(update={"method": {**cgp.method, "similarity": 0.9}})
    other = cgp.model_copy(update={"benchmark": "others"})
    several = [r.model_copy(update={"seed": s}) for r in (cgp, eta, other) for s in (1, 2)]
    labels = [(s.method, s.benchmark) for s in report.summaries(several)]
    assert labels == [
        ("cgp similarity=0.7", "blobs"),
        ("cgp similarity=0.9", "blobs"),
        ("cgp", "others"),
    ]
    assert "| cgp similarity=0.9 | blobs |" in report.markdown(several)
    shown = text(report.comparison(several), width=120)
    assert "others" in shown
    assert "similarity=0.9" in shown


def test_runs_on_several_benchmarks_with_several_seeds_fit_a_terminal(records):
    names = ("cifar100-superclass", "permuted-digits")
    shown = text(
        report.comparison(
            [
                r.model_copy(update={"benchmark": name, "seed": seed, "memory_bytes": 123_456_789})
                for r in records
                for name in names
                for seed in (1, 12)
            ]
        )
    )
    assert "…" not in shown
    for word in (*names, "multitask", "123.5 MB"):
        assert word in shown


def test_capacity_is_shown_where_a_network_grew_and_fits_a_terminal(records):
    assert "capacity" not in text(report.comparison(records))
    assert "capacity" not in report.markdown(records)
    old = records[0].model_copy(update={"capacity": None, "memory_bytes": 123_456_789})
    grown = records[1].model_copy(update={"capacity": 271.4})
    several = [r.model_copy(update={"seed": seed}) for r in (old, grown) for seed in (1, 12)]
    one = [old, grown]
    for runs in (one, several):
        shown = text(report.comparison(runs))
        assert "…" not in shown
        assert "271 %" in shown
        assert "capacity" in shown
    head, _, *lines = report.markdown(several).splitlines()
    assert head.endswith("| memory | capacity |")
    assert {line.split(" | ")[-1] for line in lines} == {"271 % |", "- |"}


def test_runs_judged_on_held_out_images_are_named_so():
    held, usual, older = (
        made(benchmark_options=options, complete=True)
        for options in ({"held_out": 0.2}, {"held_out": None}, {})
    )
    assert "toys (held-out), recipe fast" in text(report.comparison([held]))
    assert "(held-out)" not in text(report.comparison([usual]))
    both = report.markdown([held, usual])
    assert "| toys (held-out) |" in both
    assert "| toys |" in both
    # A record from before there was the option is of the same stream.
    assert len(report.summaries([usual, older])) == 1
    (same,) = sections([usual, older])
    assert same.title == "toys"
    (_, title) = [section.title for section in sections([held, usual])]
    assert title.startswith("toys (held-out)")


def test_accuracy_without_the_task_is_marked_if_batches_revealed_it(records):
    older = [
        record.model_copy(
            update={
                "task_free_batches": "one task",
                "network_options": {**record.network_options, "batch_norm": True},
            }
        )
        for record in records
    ]
    figure = f"{older[0].average_accuracy_task_free:.2f}"
    assert "reveal the task" in text(report.comparison(older))
    assert "†" not in text(report.comparison(records))
    assert f"{figure}†" in text(report.comparison(older))
    assert "reveal the task" in report.markdown(older)
    assert "†" not in report.markdown(records)
