"""What else the record of one run has, for the terminal: costs, losses, energy held, stability."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from classgrad.report.terminal import plain_table
from classgrad.report.text import size
from classgrad.runs.record import RunRecord

LAYER_WIDTH = 24  # of the names of layers, before they are folded


def facts(record: RunRecord) -> list[tuple[str, str]]:
    """Return accuracy on the way, bytes, and where the run was made, each with a title.

    A record of an earlier version lacks some of it.
    """
    accuracies = {
        "when learnt": record.accuracy_when_learnt,
        "incremental": record.average_incremental_accuracy,
        "lowest on the way": record.lowest_accuracy,
    }
    told = [f"{name} {value:.1f} %" for name, value in accuracies.items() if value is not None]
    kept = f"{size(record.memory_bytes)} kept between tasks"
    if record.network_bytes:
        kept += f" beside a network of {size(record.network_bytes)}"
    if record.capacity is not None:
        kept += f"; capacity {record.capacity:.0f} %"
    threads = f"{record.threads} thread{'s' * (record.threads > 1)}" if record.threads else ""
    made = [*record.commits[-1:], threads, record.precision, record.device]
    return [
        *([("accuracy", ", ".join(told))] if told else []),
        ("bytes", kept),
        *([("made", ", ".join(filter(None, made)))] if record.commits else []),
    ]


def in_short(record: RunRecord) -> list[str]:
    """Return these facts as lines."""
    return [f"{title:<9} {text}" for title, text in facts(record)]


def tables(record: RunRecord) -> list[RenderableType]:
    """Return tables of losses, of the energy held, and of tests within tasks, if there are any."""
    made = [curve_table(record), held_table(record), stability_table(record)]
    return [table for table in made if table is not None]


def curve_table(record: RunRecord) -> RenderableType | None:
    """Return how long each task was trained, and its losses."""
    if not any(curve.epochs for curve in record.curves):
        return None
    validated = any(curve.valid for curve in record.curves)
    table = plain_table()
    table.add_column("task", overflow="fold")
    for heading in ("epochs", "loss at first", "in the end", *["validation loss"] * validated):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, curve in zip(record.tasks, record.curves, strict=False):
        best = [min((v for v in curve.valid if v is not None), default=None)] * validated
        ends = [curve.train[0], curve.train[-1]] if curve.train else [None, None]
        table.add_row(name, str(curve.epochs), *map(number, [*ends, *best]))
    return titled("training", table)


def held_table(record: RunRecord) -> RenderableType | None:
    """Return the shares held of the classes at each layer: the least and the largest."""
    if not record.held:
        return None
    table = plain_table()
    table.add_column("layer", overflow="fold", max_width=LAYER_WIDTH)
    for heading in ("when learnt", "unseen", "in the end", "unseen"):
        table.add_column(heading, justify="right", no_wrap=True)
    for entry in record.held:
        lists = (entry.learnt_train, entry.learnt_test, entry.final_train, entry.final_test)
        table.add_row(entry.layer, *map(spread, lists))
    return titled("energy held of classes, least to largest; of training and of test images", table)


def stability_table(record: RunRecord) -> RenderableType | None:
    """Return the lowest accuracy of each task on some images while later ones were learnt."""
    matrix = record.accuracy_matrix
    lowest: dict[int, float] = {}
    for within in record.within_tasks:
        for row in within.accuracy:
            # A damaged record can have more columns than tasks.
            for task, value in enumerate(row[: len(matrix)]):
                lowest[task] = min(value, lowest.get(task, value))
    if not lowest:
        return None
    table = plain_table()
    table.add_column("task", overflow="fold")
    for heading in ("when learnt", "lowest within a later task", "in the end"):
        table.add_column(heading, justify="right", no_wrap=True)
    for task, value in lowest.items():
        ends = [(row[task : task + 1] or [None])[0] for row in (matrix[task], matrix[-1])]
        cells = [f"{one:.1f}" if one is not None else "-" for one in (ends[0], value, ends[1])]
        table.add_row(record.tasks[task], *cells)
    return titled("accuracy of earlier tasks, %; within a task on some images", table)


def titled(title: str, table: RenderableType) -> RenderableType:
    """Return a table with a title above it."""
    return Group(Text(title, style="bold"), table, "")


def spread(shares: Sequence[float | None]) -> str:
    """Return the least and the largest of some shares.

    >>> spread([0.912, None, 0.8]), spread([None])
    ('0.80 to 0.91', '-')
    """
    known = [share for share in shares if share is not None]
    return f"{min(known):.2f} to {max(known):.2f}" if known else "-"


def number(value: float | None) -> str:
    """Return a loss with three digits behind the point, or a dash."""
    return "-" if value is None else f"{value:.3f}"
