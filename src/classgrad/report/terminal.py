"""Records for people: tables for the terminal and for documents, pictures of matrices."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich import box
from rich.table import Table

from classgrad.report.grouping import grouped, label
from classgrad.runs.record import Matrix, RunRecord


def comparison(records: Sequence[RunRecord]) -> Table:
    """Return one line per run: accuracy, forgetting, accuracy without task identity, cost."""
    streams = list(dict.fromkeys(record.benchmark for record in records))
    seeds = list(dict.fromkeys(f"seed {record.seed}" for record in records))
    common = [*(streams if len(streams) == 1 else []), *(seeds if len(seeds) == 1 else [])]
    title = ", ".join(common)
    grown = any(_has_grown(record) for record in records)
    table = _table(title, framed=len(common) == 2 and not grown)
    table.add_column("method", no_wrap=True)
    if len(streams) > 1:
        table.add_column("benchmark", no_wrap=True)
    if len(seeds) > 1:
        table.add_column("seed", justify="right")
    for heading in headings(grown, short=not common):
        table.add_column(heading, justify="right", no_wrap=not common)
    if not common:
        table.caption = "conf., proto.: ACC without the task, by confidence and by prototypes"
    for record in records:
        table.add_row(
            record.method_name,
            *([record.benchmark] if len(streams) > 1 else []),
            *([str(record.seed)] if len(seeds) > 1 else []),
            number(record.average_accuracy),
            number(record.backward_transfer, signed=True),
            number(record.average_accuracy_task_free),
            number(record.average_accuracy_task_free_prototypes),
            f"{record.seconds.total:.1f}",
            size(record.memory_bytes),
            *([capacity([record])] if grown else []),
        )
    return table


def headings(grown: bool, short: bool = False) -> tuple[str, ...]:
    """Return what is over the figures: capacity only where some network has grown or shrunk."""
    task_free = ("conf.", "proto.") if short else ("no task: conf.", "no task: proto.")
    usual = ("ACC %", "BWT", *task_free, "seconds", "memory")
    return (*usual, "size" if short else "capacity") if grown else usual


def capacity(records: Sequence[RunRecord]) -> str:
    """Return the mean of the stored parameters, per cent of the base network's."""
    known = [record.capacity for record in records if record.capacity is not None]
    return f"{statistics.mean(known):.0f} %" if known else "-"


def _has_grown(record: RunRecord) -> bool:
    return record.capacity is not None and round(record.capacity) != 100


@dataclass(frozen=True)
class Summary:
    """Runs that differ in the seed only: means, and standard deviations where seeds are several."""

    method: str  # with the settings that tell it from other runs of the method
    benchmark: str
    seeds: list[int]
    accuracy: str
    transfer: str
    confident: str
    nearest: str
    seconds: str
    memory: str
    capacity: str

    def figures(self, grown: bool) -> list[str]:
        """Return what belongs under the headings."""
        measured = [self.accuracy, self.transfer, self.confident, self.nearest]
        return [*measured, self.seconds, self.memory, *([self.capacity] if grown else [])]


def summaries(records: Sequence[RunRecord]) -> list[Summary]:
    """Return a summary for each of the groups."""
    return [
        Summary(
            method=label(group[0], records),
            benchmark=group[0].benchmark,
            seeds=[record.seed for record in group],
            accuracy=_spread([r.average_accuracy for r in group]),
            transfer=_spread([r.backward_transfer for r in group], signed=True),
            confident=_spread([r.average_accuracy_task_free for r in group]),
            nearest=_spread([r.average_accuracy_task_free_prototypes for r in group]),
            seconds=f"{statistics.mean(r.seconds.total for r in group):.1f}",
            memory=size(round(statistics.mean(r.memory_bytes for r in group))),
            capacity=capacity(group),
        )
        for group in grouped(records)
    ]


def means(records: Sequence[RunRecord]) -> Table:
    """Return one line per method: mean and standard deviation over seeds."""
    found = summaries(records)
    streams = list(dict.fromkeys(summary.benchmark for summary in found))
    seeds = sorted({seed for summary in found for seed in summary.seeds})
    title = f"{', '.join(streams)}, mean of seeds {', '.join(map(str, seeds))}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method")
    if len(streams) > 1:
        table.add_column("benchmark")
    grown = any(_has_grown(record) for record in records)
    for heading in headings(grown):
        table.add_column(heading, justify="right")
    for summary in found:
        stream = [summary.benchmark] if len(streams) > 1 else []
        table.add_row(summary.method, *stream, *summary.figures(grown))
    return table


def markdown(records: Sequence[RunRecord]) -> str:
    """Return the means as a table for a document, best accuracy first."""

    def rank(summary: Summary) -> float:
        return -float(summary.accuracy.split()[0]) if summary.accuracy != "-" else 0.0

    found = sorted(summaries(records), key=rank)
    several = len({summary.benchmark for summary in found}) > 1
    first = ["method", "benchmark"] if several else ["method"]
    grown = any(_has_grown(record) for record in records)
    figures = headings(grown)
    lines = [[*first, *figures], ["---"] * len(first) + ["---:"] * len(figures)]
    for summary in found:
        stream = [summary.benchmark] if several else []
        lines.append([summary.method, *stream, *summary.figures(grown)])
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _spread(values: Sequence[float | None], signed: bool = False) -> str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return "-"
    mean = f"{statistics.mean(known):{'+' if signed else ''}.1f}"
    return mean if len(known) == 1 else f"{mean} ± {statistics.stdev(known):.1f}"


def number(value: float | None, signed: bool = False) -> str:
    """Return a figure with two decimals, a dash for none.

    >>> number(93.456), number(-1.5, signed=True), number(None)
    ('93.46', '-1.50', '-')
    """
    if value is None:
        return "-"
    return f"{value:+.2f}" if signed else f"{value:.2f}"


def size(count: int) -> str:
    """Return bytes in a readable unit.

    >>> size(0), size(2048), size(3_400_000)
    ('0 B', '2.0 kB', '3.4 MB')
    """
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count} B"


def matrix_table(record: RunRecord) -> Table:
    """Return the accuracy matrix: a line per task learnt, a column per task measured.

    Up to five tasks go by name, more by number and in whole per cent, to fit a terminal.
    """
    count = len(record.accuracy_matrix)
    few = count <= 5
    names = record.tasks[:count] if few else [str(number + 1) for number in range(count)]
    table = _table("accuracy after each task, %", few)
    table.add_column("after")
    for name in names:
        table.add_column(name, justify="right")
    for name, row in zip(names, record.accuracy_matrix, strict=True):
        cells = ("" if v is None else f"{v:.1f}" if few else f"{v:.0f}" for v in row)
        table.add_row(name, *cells)
    return table


def room_table(record: RunRecord) -> Table:
    """Return how many directions of each layer are taken, after up to eight of the tasks."""
    count = max(len(layer.ranks) for layer in record.layers)
    shown = sorted({round(i * (count - 1) / 7) for i in range(8)})
    table = _table("room taken after task", count <= 5)
    table.add_column("layer", no_wrap=True)
    table.add_column("of", justify="right")
    for number_of_task in shown:
        table.add_column(str(number_of_task + 1), justify="right")
    table.add_column("left", justify="right", no_wrap=True)
    for layer in record.layers:
        left = 100 * (1 - layer.ranks[-1] / layer.dimension)
        ranks = [str(layer.ranks[i]) for i in shown if i < len(layer.ranks)]
        table.add_row(layer.name, str(layer.dimension), *ranks, f"{left:.0f} %")
    return table


def _table(title: str, framed: bool) -> Table:
    if framed:
        return Table(title=title or None, title_justify="left")
    return Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, padding=0)


def draw_matrices(records: Sequence[RunRecord], path: Path) -> Path:
    """Draw the accuracy matrices side by side into an image file; return its path."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = min(len(records), 5)
    lines = -(-len(records) // columns)
    figure, axes = pyplot.subplots(
        lines,
        columns,
        figsize=(1.2 + 2.9 * columns, 3.4 * lines),
        squeeze=False,
        layout="constrained",
    )
    for unused in axes.flat[len(records) :]:
        unused.set_axis_off()
    lowest = min(_values(record.accuracy_matrix, default=0.0)[0] for record in records)
    for axis, record in zip(axes.flat, records, strict=False):
        cells = [[float("nan") if v is None else v for v in row] for row in record.accuracy_matrix]
        image = axis.imshow(cells, vmin=min(lowest, 95), vmax=100, cmap="viridis")
        for i, row in enumerate(record.accuracy_matrix):
            for j, value in enumerate(row):
                if value is not None and len(cells) <= 12:
                    dark = value < (min(lowest, 95) + 100) / 2
                    axis.text(
                        j, i, f"{value:.0f}", ha="center", va="center", fontsize=8,
                        color="white" if dark else "black",
                    )  # fmt: skip
        axis.set_title(
            f"{record.method_name}   ACC {number(record.average_accuracy)}"
            f"   BWT {number(record.backward_transfer, signed=True)}",
            fontsize=9,
        )
        axis.set_xlabel("task measured")
        ticks = range(len(cells))
        axis.set_xticks(ticks, [str(tick + 1) for tick in ticks])
        axis.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    for line in axes:
        line[0].set_ylabel("after learning task")
    figure.colorbar(image, ax=axes.ravel().tolist(), label="accuracy, %", shrink=0.8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path


def _values(matrix: Matrix, default: float) -> list[float]:
    return sorted(v for row in matrix for v in row if v is not None) or [default]
