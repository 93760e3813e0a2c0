"""A bar that shows how far something is, and how long it will take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Move = Callable[[float, str], None]


@contextmanager
def bar(console: "Console", title: str, *, transient: bool = False) -> "Iterator[Move]":
    """Show a bar with the time left; yield what moves it, given the share done and where that is.

    A block that ends well leaves the bar full, or nothing if it is `transient`.
    """
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[where]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    unseen = transient and not console.is_terminal
    with Progress(*columns, console=console, transient=transient, disable=unseen) as shown:
        line = shown.add_task(title, total=1.0, where="")

        def move(done: float, where: str) -> None:
            shown.update(line, completed=done, where=where)

        yield move
        shown.update(line, completed=1.0)
