"""What a learner knows and how much more it can learn: the command info, and the end of learn."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.state import State

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from classgrad.learner.forecast import LayerForecast
    from classgrad.learner.info import Info
    from classgrad.learner.learner import Learner
    from classgrad.learner.learnt import LearntTask

app = typer.Typer()


@app.command(epilog="Examples: classgrad info state | classgrad info state --json")
def info(
    state: State,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Show what a learner has learnt, how much more it can learn, and what it takes."""
    from rich.console import Console

    from classgrad.learner.info import read

    found = read(state)
    if as_json:
        print(json.dumps(asdict(found), indent=1))
        return
    show_info(Console(markup=False, highlight=False), found)


def show_info(console: "Console", found: "Info") -> None:
    """Print tables of tasks and of room, and lines on the rest."""
    from classgrad.report.text import size

    def line(title: str, text: str) -> None:
        console.print(f"{title:<10} {text}", soft_wrap=True)

    for warning in found.warnings:
        console.print(f"{warning}; this is the one before", soft_wrap=True)
    console.print(task_table(found.tasks))
    if found.room:
        console.print(room_table(found.room))
        line("room", room_line(found.room))
    if found.unfinished is not None:
        line("unfinished", f"{found.unfinished}: the command that was cut short goes on with it")
    for task in found.tasks:
        if task.forgotten:
            line("forgotten", f"of {task.name}: {', '.join(task.forgotten)}")
    amounts = found.bytes
    line(
        "memory",
        f"weights {size(amounts['weights'])}, method {size(amounts['method'])}, prototypes "
        f"{size(amounts['prototypes'])}; on disk {size(amounts['disk'])}",
    )
    settings = dict(found.settings)
    for title in ("method", "training", "network_options"):
        values = dict(settings.pop(title))
        name = [values.pop("name")] if title == "method" else []
        pairs = [f"{key}={value}" for key, value in values.items()]
        line(title.partition("_")[2] or title, " ".join([*name, *pairs]) or "-")
    edge, network = settings["size"], settings["network"] or "your own"
    precision = f", {settings['precision']}" if settings["precision"] else ""
    line("network", f"{network}, images {edge} x {edge}, seed {settings['seed']}{precision}")


def task_table(tasks: "Sequence[LearntTask]") -> "Table":
    """Return a line for each task."""
    from rich.table import Table

    table = Table("task", "classes", "images", "accuracy %", "learnt", title_justify="left")
    for column in table.columns[1:4]:
        column.justify = "right"
    for task in tasks:
        table.add_row(
            task.name,
            str(len(task.class_names) - len(task.forgotten)),
            f"{sum(task.samples):,}",
            "-" if task.accuracy is None else f"{task.accuracy:.1f}",
            task.when[:10],
        )
    return table


def room_table(room: "Sequence[LayerForecast]") -> "Table":
    """Return a line for each layer."""
    from rich.table import Table

    table = Table("layer", "in use", "of", "classes left")
    for column in table.columns[1:]:
        column.justify = "right"
    for layer in room:
        left = "-" if layer.classes_left is None else f"{layer.classes_left:,}"
        table.add_row(layer.name, f"{layer.rank:,}", f"{layer.dimension:,}", left)
    return table


def room_line(room: "Sequence[LayerForecast]") -> str:
    """Say which layer is full first, and for how many more classes it will do.

    >>> from classgrad.learner.forecast import LayerForecast
    >>> room_line([LayerForecast("a", 20, 5, None), LayerForecast("b", 30, 6, 8)])
    'about 8 more classes, then layer b is full: 6 of 30 directions are in use'
    """
    known = [layer for layer in room if layer.classes_left is not None]
    if not known:
        fullest = max(room, key=lambda layer: layer.rank / layer.dimension)
        return (
            f"no end in sight; fullest is layer {fullest.name}: {fullest.rank:,} of "
            f"{fullest.dimension:,} directions are in use"
        )
    tightest = min(known, key=lambda layer: layer.classes_left or 0)
    return (
        f"about {tightest.classes_left:,} more classes, then layer {tightest.name} is full: "
        f"{tightest.rank:,} of {tightest.dimension:,} directions are in use"
    )


def tell_learnt(console: "Console", learner: "Learner", task: str, folder: Path, new: bool) -> None:
    """Say in a few lines what a task came to."""
    learnt = learner.tasks[learner.task_number(task)]
    accuracy = "no validation data: classes have too few images"
    if learnt.accuracy is not None:
        accuracy = f"{learnt.accuracy:.1f} % on validation data"
    room = learner.forecast()
    lines = [
        ("task", task if new else f"{task}, learnt before from the same images"),
        ("classes", ", ".join(learnt.class_names)),
        ("images", f"{sum(learnt.samples):,}"),
        ("accuracy", accuracy),
        *([("room", room_line(room))] if room else []),
        ("saved", str(folder)),
    ]
    for title, text in lines:
        console.print(f"{title:<10} {text}", soft_wrap=True)
