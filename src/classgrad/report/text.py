"""Numbers, sizes and durations as text, Markdown tables of them, and a progress bar."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from classgrad.training.log import EPOCH_INTERVAL, seconds_left, time_left
from classgrad.training.log import duration as duration  # the library's log has it, too

if TYPE_CHECKING:
    from rich.console import Console


Move = Callable[[float, str], None]


@contextmanager
def bar(console: "Console", title: str, *, transient: bool = False) -> "Iterator[Move]":
    """Show a progress bar; yield a function that moves it, given the share done and a label.

    If the block ends without an error, the bar stays and is full, or vanishes if it is `transient`.
    Where the console is no terminal there are lines, if it takes long and is not `transient`.
    """
    if not console.is_interactive:
        yield _stay if transient else lines_for(title, console)
        return
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
    with Progress(*columns, console=console, transient=transient) as progress:
        line = progress.add_task(title, total=1.0, where="")

        def move(done: float, where: str) -> None:
            progress.update(line, completed=done, where=where)

        yield move
        progress.update(line, completed=1.0)


def _stay(done: float, where: str) -> None:
    """Show nothing."""


def lines_for(title: str, console: "Console") -> Move:
    """Return a function that is called as that of a bar, and prints a line every ten seconds."""
    started = last = time.monotonic()

    def move(done: float, where: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= EPOCH_INTERVAL:
            last = now
            left = time_left(seconds_left(now - started, done))
            print_line(console, f"{title}: {where}{left}")

    return move


def print_line(console: "Console", line: str) -> None:
    """Print a line at once, whole; on a terminal above the bar. One that nobody reads is lost."""
    if console.is_interactive:
        console.print(line, soft_wrap=True)
    elif not console.quiet:
        with suppress(OSError, UnicodeError):
            print(line, file=console.file, flush=True)


def number(value: float | None, signed: bool = False) -> str:
    """Return a number with two decimals, or a dash for None.

    >>> number(93.456), number(-1.5, signed=True), number(None)
    ('93.46', '-1.50', '-')
    """
    if value is None:
        return "-"
    return f"{value:+.2f}" if signed else f"{value:.2f}"


def size(count: int) -> str:
    """Return a number of bytes in a readable unit.

    >>> size(0), size(2048), size(3_400_000)
    ('0 B', '2.0 kB', '3.4 MB')
    """
    for unit, divisor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= divisor:
            return f"{count / divisor:.1f} {unit}"
    return f"{count} B"


def ranges(numbers: Sequence[int]) -> str:
    """Return ascending numbers as text, with ranges for three or more consecutive ones.

    >>> ranges([1, 2, 3, 5, 8, 9])
    '1–3, 5, 8, 9'
    """
    runs: list[list[int]] = []
    for value in numbers:
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    words = [f"{r[0]}–{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return ", ".join(words)


def markdown_table(lines: Sequence[Sequence[object]], names: int = 1) -> str:
    """Return a Markdown table: headings first; columns after the first `names` are right-aligned.

    >>> print(markdown_table([["method", "ACC %"], ["cgp", 93.5]]), end="")
    | method | ACC % |
    | --- | ---: |
    | cgp | 93.5 |
    """
    headings, *rows = lines
    rule = ["---"] * names + ["---:"] * (len(headings) - names)
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in (headings, rule, *rows))
