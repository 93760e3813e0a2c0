"""A progress bar with the time left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

Move = Callable[[float, str], None]


@contextmanager
def bar(console: "Console", title: str, *, transient: bool = False) -> "Iterator[Move]":
    """Show a progress bar; yield a function that moves it, given the share done and a label.

    If the block ends without an error, the bar stays and is full, or vanishes if it is `transient`.
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
    hidden = transient and not console.is_terminal
    with Progress(*columns, console=console, transient=transient, disable=hidden) as progress:
        line = progress.add_task(title, total=1.0, where="")

        def move(done: float, where: str) -> None:
            progress.update(line, completed=done, where=where)

        yield move
        progress.update(line, completed=1.0)
