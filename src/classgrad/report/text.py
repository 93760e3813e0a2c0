"""Numbers, sizes and durations as text, Markdown tables of them, and a progress bar."""

from collections.abc import Callable, Iterator, Sequence
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


def duration(seconds: float) -> str:
    """Return a number of seconds in a readable unit.

    >>> duration(0.25), duration(42), duration(2063), duration(9000), duration(130_000)
    ('0.2 s', '42.0 s', '34.4 min', '2.5 h', '1.5 d')
    """
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.1f} s"


def counted(count: int, word: str) -> str:
    """Return a number with a noun, in the plural unless it is one.

    >>> counted(1, "task"), counted(5, "task")
    ('1 task', '5 tasks')
    """
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


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
