"""How jobs get on, for people: a table that is kept up to date, or lines where none can be."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from classgrad.cli.experiment_tables import plain_table
from classgrad.experiments.executors.pool import Show
from classgrad.experiments.jobs import Status
from classgrad.report.text import duration, number

LABEL_WIDTH = 30
AROUND = 6  # lines of the screen that are not rows of the table


@contextmanager
def showing(console: Console) -> Iterator[Show]:
    """Yield what shows jobs while the block runs: as a table on a terminal, else in lines."""
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield Screen(console, live)


class Lines(Show):
    """A line when a job starts and one when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def changed(self, status: Status) -> None:
        """Show that a job has started, or how it ended."""
        if status.state == "running":
            return self.say("started", status)
        words = f"{status.state} after {duration(status.seconds)}"
        if status.state == "done":
            transfer = number(status.transfer, signed=True)
            words += f", ACC {number(status.accuracy)}, BWT {transfer}"
        return self.say(words + (f": {status.why}" if status.why else ""), status)

    def say(self, line: str, status: Status | None = None) -> None:
        """Show a line that concerns one job, or all."""
        self.console.print(f"{status.job.title}: {line}" if status else line, soft_wrap=True)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show nothing: lines cannot be changed."""


class Screen(Lines):
    """A table with a row for each job, below what there is to say."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live = live

    def changed(self, status: Status) -> None:
        """Show what would otherwise be lost."""
        if status.why:
            super().changed(status)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show how far all jobs are."""
        states = Counter(status.state for status in statuses)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        below = Text(f"{len(statuses)} runs: {counts}")
        self.live.update(Group(table(statuses, self.console.height), below))


def table(statuses: Sequence[Status], height: int) -> Table:
    """Return all jobs, or those that run if there are more than fit a screen of this height."""
    rows = list(statuses)
    if len(rows) + AROUND > height:
        rows = [status for status in rows if status.state == "running"][: max(1, height - AROUND)]
    shown = plain_table()
    shown.add_column("run", no_wrap=True, overflow="ellipsis", max_width=LABEL_WIDTH)
    shown.add_column("seed", justify="right")
    shown.add_column("state", no_wrap=True, min_width=10)
    for heading in ("done", "ACC %", "BWT", "time"):
        shown.add_column(heading, justify="right", no_wrap=True)
    for status in rows:
        shown.add_row(
            status.job.label,
            str(status.job.plan.seed),
            state_words(status),
            f"{100 * status.done:.0f} %",
            number(status.accuracy),
            number(status.transfer, signed=True),
            time_words(status),
        )
    return shown


def state_words(status: Status) -> str:
    """Return the state of a job, with the task it is at."""
    if status.state != "running":
        return status.state
    return f"task {status.task + 1}/{status.tasks}" if status.tasks else "starts"


def time_words(status: Status) -> str:
    """Return the time a job has taken, or that it will still take."""
    if status.left is not None:
        return f"{duration(status.left)} left"
    return duration(status.seconds) if status.began is not None else "-"
