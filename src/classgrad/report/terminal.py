"""Tables of records, for the terminal and as Markdown."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from classgrad.errors import counted
from classgrad.report.lines import Budget
from classgrad.report.names import experiments_of, names
from classgrad.report.records import (
    grouped,
    has_grown,
    has_statistics,
    one_per_seed,
    stream_name,
    stream_titles,
    streams,
)
from classgrad.report.text import duration, markdown_table, size
from classgrad.runs.record import RunRecord, mean_std

if TYPE_CHECKING:
    from classgrad.report.lines import ExperimentLine

NAME = "method"
NAME_WIDTH = 25  # of the column of names, at least, if names are longer
GAP = 2  # between columns
# The columns that are left out, in this order, where a terminal is narrow. ACC and BWT never are.
TIME = "time"  # has the place of seconds
DROPPED = ["no task: conf.", "memory", TIME, "capacity", "no task: proto.", "no task: stat."]
REVEALED = "†"
REVEALED_NOTE = f"{REVEALED} too high: measured on batches of one task each, which reveal the task"


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


@dataclass(frozen=True)
class Summary:
    """Figures, by heading, of runs that differ only in the seed, or of one run."""

    method: str  # its name among all runs that are shown
    benchmark: str
    seeds: list[int]
    figures: dict[str, str]


@dataclass(frozen=True)
class Comparison:
    """Tables of runs, one for each stream, that leave out columns to fit a terminal.

    If any runs differ only in the seed, each row is a mean over seeds, else a run.
    """

    records: Sequence[RunRecord]
    lines: "Sequence[ExperimentLine]" = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the tables, and what has to be said about them."""
        averaged = any(len({r.seed for r in group}) > 1 for group in grouped(self.records))
        together = streams(self.records)
        left_out: dict[str, None] = {}
        titles = stream_titles([stream[0] for stream in together])
        for title, stream in zip(titles, together, strict=True):
            about, table, missing = _stream_table(
                title, stream, self.lines, averaged=averaged, width=options.max_width
            )
            left_out |= dict.fromkeys(missing)
            yield Text(about, style="bold")
            yield table
            yield ""
        notes = revealed_note(self.records)
        named = experiments_of(self.records, self.lines)
        if named:
            notes.append(f"names of lines are from the experiments {', '.join(named)}")
        repeats = len(self.records) - sum(
            len(one_per_seed(group)) for group in grouped(self.records)
        )
        if averaged and repeats:
            notes.append(f"left out: {counted(repeats, 'repeat')} of the same settings and seed")
        if left_out:
            notes.append(f"not shown, for want of width: {', '.join(left_out)}")
        for note in notes:
            yield Text(note)


def comparison(
    records: Sequence[RunRecord], lines: "Sequence[ExperimentLine]" = ()
) -> RenderableType:
    """Return tables with a row per run, or per mean over seeds: accuracy, transfer, cost."""
    return Comparison(records, lines)


def _stream_table(
    title: str,
    records: Sequence[RunRecord],
    lines: "Sequence[ExperimentLine]",
    *,
    averaged: bool,
    width: int,
) -> tuple[str, Table, list[str]]:
    """Return a title, a table of runs on one stream, and the columns that it has no place for."""
    rows = summaries(records, lines) if averaged else _single_runs(records, lines)
    rows.sort(key=_best_first)
    seeds = {tuple(row.seeds) for row in rows}
    about = [title, *_common_budget(records)]
    columns = {NAME: [row.method for row in rows]}
    for heading in _measured([row.figures for row in rows]):
        columns[heading] = [row.figures[heading] for row in rows]
    columns = {TIME if heading == "seconds" else heading: columns[heading] for heading in columns}
    columns[TIME] = [duration(float(seconds)) for seconds in columns[TIME]]
    if averaged:
        columns["seeds"] = [str(len(row.seeds)) for row in rows]
        if len(seeds) == 1:
            about.append(f"mean of seeds {', '.join(map(str, next(iter(seeds))))}")
        else:
            about.append("mean of seeds")
    elif len(seeds) == 1:
        about.append(f"seed {rows[0].seeds[0]}")
    else:
        columns["seed"] = [str(row.seeds[0]) for row in rows]
    dropped = _too_many(columns, width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    for heading in (heading for heading in columns if heading not in dropped):
        if heading == NAME:
            table.add_column(heading, overflow="fold")
        else:
            table.add_column(_folded(heading), justify="right", no_wrap=True)
    shown = [values for heading, values in columns.items() if heading not in dropped]
    for cells in zip(*shown, strict=True):
        table.add_row(*cells)
    return ", ".join(about), table, dropped


def _single_runs(records: Sequence[RunRecord], lines: "Sequence[ExperimentLine]") -> list[Summary]:
    return [
        Summary(name, stream_name(record), [record.seed], figures([record], records, digits=2))
        for name, record in zip(names(records, lines), records, strict=True)
    ]


def _common_budget(records: Sequence[RunRecord]) -> list[str]:
    """Return recipe and budget of some runs, as far as all have the same."""
    recipes = {record.recipe for record in records}
    budgets = [Budget.of(record.settings()) for record in records]
    lengths, data = ({getattr(b, n) for b in budgets} for n in ("length", "data"))
    parts = [f"recipe {next(iter(recipes))}"] if len(recipes) == 1 else []
    return parts + [text for texts in (lengths, data) if len(texts) == 1 for text in texts if text]


def _folded(heading: str) -> str:
    """Put a heading of several words on several lines."""
    return heading.replace(": ", ":\n")


def _too_many(columns: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """Return the columns to leave out so that no figure and no heading is cut."""
    needed = {
        heading: max(map(len, [*_folded(heading).splitlines(), *values]))
        for heading, values in columns.items()
    }
    longest_word = max(len(word) for name in columns[NAME] for word in [*name.split(), ""])
    needed[NAME] = min(needed[NAME], max(NAME_WIDTH, longest_word))
    dropped: list[str] = []
    for heading in DROPPED:
        kept = [need + GAP for name, need in needed.items() if name not in dropped]
        if sum(kept) <= width:
            break
        if heading in columns:
            dropped.append(heading)
    return dropped


def summaries(
    records: Sequence[RunRecord], lines: "Sequence[ExperimentLine]" = ()
) -> list[Summary]:
    """Return a summary of each group of runs that differ only in the seed."""
    groups = [one_per_seed(group) for group in grouped(records)]
    firsts = [group[0] for group in groups]
    return [
        Summary(
            method=name,
            benchmark=stream_name(group[0]),
            seeds=[record.seed for record in group],
            figures=figures(group, records),
        )
        for name, group in zip(names(firsts, lines), groups, strict=True)
    ]


def markdown(records: Sequence[RunRecord], lines: "Sequence[ExperimentLine]" = ()) -> str:
    """Return the means as a Markdown table, best accuracy first."""

    table = _lines(sorted(summaries(records, lines), key=_best_first))
    text = markdown_table(table, names=table[0].index("ACC %"))
    return "".join([text, *(f"\n{note}.\n" for note in revealed_note(records))])


def _best_first(summary: Summary) -> float:
    accuracy = summary.figures["ACC %"]
    return -float(accuracy.split()[0]) if accuracy != "-" else 0.0


def _lines(rows: Sequence[Summary]) -> list[list[str]]:
    """Return headings and lines of a table of summaries, with what differs between them."""
    streams_differ = len({row.benchmark for row in rows}) > 1
    counts_differ = len({len(row.seeds) for row in rows}) > 1
    measured = _measured([row.figures for row in rows])
    headings = ["method", *["benchmark"] * streams_differ, *measured, *["seeds"] * counts_differ]
    lines = [
        [
            row.method,
            *[row.benchmark] * streams_differ,
            *(row.figures[heading] for heading in measured),
            *[str(len(row.seeds))] * counts_differ,
        ]
        for row in rows
    ]
    return [headings, *lines]


def _measured(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the headings of rows, without task-free figures that no row has."""
    return [
        heading
        for heading in rows[0]
        if not (heading.startswith("no task") and all(row[heading] == "-" for row in rows))
    ]


def revealed_note(records: Sequence[RunRecord]) -> list[str]:
    """Return what the mark of task-free figures means, if a table of these records has any."""
    marked = any(r.reveals_task and r.average_accuracy_task_free is not None for r in records)
    return [REVEALED_NOTE] if marked else []


def matrix_table(record: RunRecord, width: int = 80) -> RenderableType:
    """Return the accuracy matrix: a row per task learnt, a column per task measured.

    Up to five tasks are named if there is space; others are numbered, in whole per cent. Where even
    so not all fit into `width`, the matrix has some of them, at equal intervals.
    """
    count = len(record.accuracy_matrix)
    names = record.tasks[:count]
    named = count <= 5 and sum(max(len(name), 5) + 1 for name in names) + 20 <= width
    most = count if named else min(count, (width - 8) // 4)
    tasks = _spread(count, most)
    table = plain_table()
    table.add_column("after")
    for task in tasks:
        table.add_column(names[task] if named else str(task + 1), justify="right", no_wrap=True)
    for task in tasks:
        row = record.accuracy_matrix[task]
        values = [row[other] if other < len(row) else None for other in tasks]
        cells = ("" if v is None else f"{v:.1f}" if named else f"{v:.0f}" for v in values)
        table.add_row(names[task] if named else str(task + 1), *cells)
    return Group(Text("accuracy after each task, %", style="bold"), table, "")


def rank_table(record: RunRecord, width: int = 80) -> RenderableType:
    """Return how many directions of each layer are in use, after up to eight of the tasks."""
    count = max(len(layer.ranks) for layer in record.layers)
    digits = len(str(max(layer.dimension for layer in record.layers))) + GAP
    taken = max(len(layer.name) for layer in record.layers) + GAP + digits + len("100 %")
    tasks = _spread(count, max(1, min(8, (width - taken) // digits)))
    table = plain_table()
    table.add_column("layer", no_wrap=True)
    table.add_column("of", justify="right")
    for task in tasks:
        table.add_column(str(task + 1), justify="right")
    table.add_column("free", justify="right", no_wrap=True)
    for layer in record.layers:
        free = 100 * (1 - layer.ranks[-1] / layer.dimension)
        ranks = [str(layer.ranks[task]) if task < len(layer.ranks) else "" for task in tasks]
        table.add_row(layer.name, str(layer.dimension), *ranks, f"{free:.0f} %")
    return Group(Text("directions in use after task", style="bold"), table, "")


def _spread(count: int, most: int) -> list[int]:
    """Return up to `most` of the first `count` numbers from 0, at equal intervals; the last is one.

    >>> _spread(5, 8), _spread(20, 4)
    ([0, 1, 2, 3, 4], [0, 6, 13, 19])
    """
    if count <= most:
        return list(range(count))
    if most < 2:
        return [count - 1]
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def plain_table() -> Table:
    """Return a table with no lines but one below its headings."""
    return Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
