"""Tables of records, for the terminal and as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.table import Table

from classgrad.report.records import (
    grouped,
    has_grown,
    has_statistics,
    label,
    labels,
    stream_name,
)
from classgrad.report.text import markdown_table, size
from classgrad.runs.record import RunRecord, mean_std

NAME_WIDTH = 19  # of the column of names, at least, if they are longer
REVEALED = "†"
REVEALED_NOTE = f"{REVEALED} too high: measured on batches of one task each, which reveal the task"
SHORT = {
    "no task: conf.": "conf.",
    "no task: proto.": "proto.",
    "no task: stat.": "stat.",
    "capacity": "size",
}


def figures(runs: Sequence[RunRecord], of: Sequence[RunRecord], digits: int = 1) -> dict[str, str]:
    """Return figures of runs by heading: means, with standard deviations if there are several.

    Accuracies by class statistics take the place of those by prototypes if all runs of the table,
    `of`, have them. Capacity, the stored parameters in per cent of those of the base network, is
    included only if some network of the table has grown or shrunk.
    """

    def text(name: str, signed: bool = False) -> str:
        figure = mean_std(getattr(run, name) for run in runs)
        return figure.text(signed, digits).replace("−", "-") if figure else "-"

    def task_free(name: str) -> str:
        figure = text(name)
        revealed = figure != "-" and any(run.reveals_task for run in runs)
        return figure + REVEALED if revealed else figure

    grown, stat = has_grown(of), has_statistics(of)
    by_prototypes = task_free("average_accuracy_task_free_prototypes")
    by_statistics = text("average_accuracy_task_free_statistics")
    known = [run.capacity for run in runs if run.capacity is not None]
    capacity = f"{statistics.mean(known):.0f} %" if known else "-"
    return {
        "ACC %": text("average_accuracy"),
        "BWT": text("backward_transfer", signed=True),
        "no task: conf.": task_free("average_accuracy_task_free"),
        **({"no task: stat.": by_statistics} if stat else {"no task: proto.": by_prototypes}),
        "seconds": f"{statistics.mean(run.seconds.total for run in runs):.1f}",
        "memory": size(round(statistics.mean(run.memory_bytes for run in runs))),
        **({"capacity": capacity} if grown else {}),
    }


def comparison(records: Sequence[RunRecord]) -> Table:
    """Return a table with a row per run: accuracy, BWT, accuracy without the task, cost."""
    streams = list(dict.fromkeys(stream_name(record) for record in records))
    seeds = list(dict.fromkeys(f"seed {record.seed}" for record in records))
    common = [*(streams if len(streams) == 1 else []), *(seeds if len(seeds) == 1 else [])]
    grown = has_grown(records)
    table = _table(", ".join(common), framed=len(common) == 2 and not grown)
    names = labels(records)
    table.add_column("method", overflow="fold", min_width=_width(names))
    if len(streams) > 1:
        table.add_column("benchmark", no_wrap=True)
    if len(seeds) > 1:
        table.add_column("seed", justify="right")
    rows = [figures([record], records, digits=2) for record in records]
    headings = _measured(rows)
    for heading in headings:
        shown = heading if common else SHORT.get(heading, heading)
        table.add_column(shown, justify="right", no_wrap=not common)
    other = "stat." if has_statistics(records) else "proto."
    ways = {"stat.": "class statistics", "proto.": "prototypes"}
    meaning = f"conf., {other}: ACC without the task, by confidence and by {ways[other]}"
    captions = [*([] if common else [meaning]), *revealed_note(records)]
    table.caption = "\n".join(captions) or None
    for name, record, row in zip(names, records, rows, strict=True):
        table.add_row(
            name,
            *([stream_name(record)] if len(streams) > 1 else []),
            *([str(record.seed)] if len(seeds) > 1 else []),
            *(row[heading] for heading in headings),
        )
    return table


def _measured(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the headings of rows, without task-free figures that no row has."""
    return [
        heading
        for heading in rows[0]
        if not (heading.startswith("no task") and all(row[heading] == "-" for row in rows))
    ]


def _width(names: Sequence[str]) -> int:
    """Return the least width of a column of names; longer ones are folded."""
    return min(max(map(len, names)), NAME_WIDTH)


def revealed_note(records: Sequence[RunRecord]) -> list[str]:
    """Return what the mark of task-free figures means, if a table of these records has any."""
    marked = any(r.reveals_task and r.average_accuracy_task_free is not None for r in records)
    return [REVEALED_NOTE] if marked else []


@dataclass(frozen=True)
class Summary:
    """Figures, by heading, of runs that differ only in the seed."""

    method: str  # with settings that differ from other runs of the method
    benchmark: str
    seeds: list[int]
    figures: dict[str, str]


def summaries(records: Sequence[RunRecord]) -> list[Summary]:
    """Return a summary of each group of runs that differ only in the seed."""
    return [
        Summary(
            method=label(group[0], records),
            benchmark=stream_name(group[0]),
            seeds=[record.seed for record in group],
            figures=figures(group, records),
        )
        for group in grouped(records)
    ]


def means(records: Sequence[RunRecord]) -> Table:
    """Return a table with a row per method: mean and standard deviation over seeds."""
    headings, *lines = _lines(summaries(records))
    streams = list(dict.fromkeys(stream_name(record) for record in records))
    seeds = sorted({record.seed for record in records})
    title = f"{', '.join(streams)}, mean of seeds {', '.join(map(str, seeds))}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.caption = "\n".join(revealed_note(records)) or None
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("method", "benchmark") else "right")
    table.columns[0].overflow = "fold"
    table.columns[0].min_width = _width([line[0] for line in lines])
    for line in lines:
        table.add_row(*line)
    return table


def markdown(records: Sequence[RunRecord]) -> str:
    """Return the means as a Markdown table, best accuracy first."""

    def sort_key(summary: Summary) -> float:
        accuracy = summary.figures["ACC %"]
        return -float(accuracy.split()[0]) if accuracy != "-" else 0.0

    lines = _lines(sorted(summaries(records), key=sort_key))
    table = markdown_table(lines, names=lines[0].index("ACC %"))
    return "".join([table, *(f"\n{note}.\n" for note in revealed_note(records))])


def _lines(rows: Sequence[Summary]) -> list[list[str]]:
    """Return headings and lines of a table of summaries, with benchmarks if they differ."""
    differ = len({row.benchmark for row in rows}) > 1
    measured = _measured([row.figures for row in rows])
    headings = ["method", *(["benchmark"] if differ else []), *measured]
    lines = [
        [
            row.method,
            *([row.benchmark] if differ else []),
            *(row.figures[heading] for heading in measured),
        ]
        for row in rows
    ]
    return [headings, *lines]


def matrix_table(record: RunRecord) -> Table:
    """Return the accuracy matrix: a row per task learnt, a column per task measured.

    Up to five tasks are named; more are numbered, in whole per cent, to fit a terminal.
    """
    count = len(record.accuracy_matrix)
    few = count <= 5
    names = record.tasks[:count] if few else [str(task + 1) for task in range(count)]
    table = _table("accuracy after each task, %", few)
    table.add_column("after")
    for name in names:
        table.add_column(name, justify="right")
    for name, row in zip(names, record.accuracy_matrix, strict=True):
        cells = ("" if v is None else f"{v:.1f}" if few else f"{v:.0f}" for v in row)
        table.add_row(name, *cells)
    return table


def rank_table(record: RunRecord) -> Table:
    """Return how many directions of each layer are in use, after up to eight of the tasks."""
    count = max(len(layer.ranks) for layer in record.layers)
    tasks = sorted({round(i * (count - 1) / 7) for i in range(8)})
    table = _table("directions in use after task", count <= 5)
    table.add_column("layer", no_wrap=True)
    table.add_column("of", justify="right")
    for task in tasks:
        table.add_column(str(task + 1), justify="right")
    table.add_column("free", justify="right", no_wrap=True)
    for layer in record.layers:
        free = 100 * (1 - layer.ranks[-1] / layer.dimension)
        ranks = [str(layer.ranks[task]) for task in tasks if task < len(layer.ranks)]
        table.add_row(layer.name, str(layer.dimension), *ranks, f"{free:.0f} %")
    return table


def _table(title: str, framed: bool) -> Table:
    if framed:
        return Table(title=title or None, title_justify="left")
    return Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
