"""Progress of jobs on the terminal: a table that is kept up to date, or lines in a log."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from classgrad.cli.experiment_tables import plain_table
from classgrad.experiments.executors.pool import Display
from classgrad.experiments.jobs import Status
from classgrad.report.text import duration, number

LABEL_WIDTH = 30
OTHER_LINES = 6  # of the screen, that are not rows of the table


@contextmanager
def job_display(console: Console) -> Iterator[Display]:
    """Yield a display of jobs for the block: a live table on a terminal, else lines."""
    if not console.is_terminal:
        yield LineDisplay(console)
        return
    with Live(console=console, refresh_per_second=4) as live:
        yield TableDisplay(console, live)


class LineDisplay(Display):
    """A line when a job starts and one when it ends."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def changed(self, status: Status) -> None:
        """Show that a job has started, or how it ended."""
        if status.state == "running":
            return self.print_line("started", status)
        line = f"{status.state} after {duration(status.seconds)}"
        if status.state == "done":
            transfer = number(status.transfer, signed=True)
            line += f", ACC {number(status.accuracy)}, BWT {transfer}"
        return self.print_line(line + (f": {status.why}" if status.why else ""), status)

    def print_line(self, line: str, status: Status | None = None) -> None:
        """Print a line about one job, or about all."""
        self.console.print(f"{status.job.title}: {line}" if status else line, soft_wrap=True)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Do nothing: lines that are printed cannot be changed."""


class TableDisplay(LineDisplay):
    """A table with a row for each job, below the lines that are printed."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live = live

    def changed(self, status: Status) -> None:
        """Print why a job ended, for which the table has no column."""
        if status.why:
            super().changed(status)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Update the table."""
        states = Counter(status.state for status in statuses)
        counts = ", ".join(f"{count} {state}" for state, count in states.items())
        summary = Text(f"{len(statuses)} runs: {counts}")
        self.live.update(Group(job_table(statuses, self.console.height), summary))


def job_table(statuses: Sequence[Status], height: int) -> Table:
    """Return a table of all jobs, or only of running ones if all do not fit on the screen."""
    rows = list(statuses)
    if len(rows) + OTHER_LINES > height:
        running = [status for status in rows if status.state == "running"]
        rows = running[: max(1, height - OTHER_LINES)]
    table = plain_table()
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=LABEL_WIDTH)
    table.add_column("seed", justify="right")
    table.add_column("state", no_wrap=True, min_width=10)
    for heading in ("done", "ACC %", "BWT", "time"):
        table.add_column(heading, justify="right", no_wrap=True)
    for status in rows:
        table.add_row(
            status.job.label,
            str(status.job.plan.seed),
            state_text(status),
            f"{100 * status.done:.0f} %",
            number(status.accuracy),
            number(status.transfer, signed=True),
            time_text(status),
        )
    return table


def state_text(status: Status) -> str:
    """Return the state of a job, with its current task if it is running."""
    if status.state != "running":
        return status.state
    return f"task {status.task + 1}/{status.tasks}" if status.tasks else "starting"


def time_text(status: Status) -> str:
    """Return the time a job has taken, or the time left if that can be estimated."""
    if status.left is not None:
        return f"{duration(status.left)} left"
    return duration(status.seconds) if status.began is not None else "-"
