"""How jobs get on, for people: a table that is kept up to date, or lines where none can be."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from classgrad.cli.experiment_tables import plain_table
from classgrad.experiments.executors.status import Show, Status
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

    def begun(self, status: Status) -> None:
        """Show that a job has started."""
        self.say(f"{status.job.title}: started")

    def told(self, status: Status, line: str) -> None:
        """Show what a job has to say."""
        self.say(f"{status.job.title}: {line}")

    def ended(self, status: Status) -> None:
        """Show how a job ended."""
        words = f"{status.state} after {duration(status.seconds)}"
        if status.state == "done":
            transfer = number(status.transfer, signed=True)
            words += f", ACC {number(status.accuracy)}, BWT {transfer}"
        self.say(f"{status.job.title}: {words}" + (f": {status.why}" if status.why else ""))

    def say(self, line: str) -> None:
        """Show a line that concerns all jobs."""
        self.console.print(line, soft_wrap=True)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show nothing: lines cannot be changed."""


class Screen(Lines):
    """A table with a row for each job, below what there is to say."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live = live

    def begun(self, status: Status) -> None:
        """Show nothing more than the table does."""

    def ended(self, status: Status) -> None:
        """Show what would otherwise be lost."""
        if status.why:
            super().ended(status)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show how far all jobs are."""
        self.live.update(Group(table(statuses, self.console.height), Text(counts(statuses))))


def table(statuses: Sequence[Status], height: int) -> Table:
    """Return all jobs, or those that run if there are more than fit a screen of this height."""
    rows = list(statuses)
    if len(rows) + AROUND > height:
        rows = [status for status in rows if status.state == "running"][: max(1, height - AROUND)]
    found = plain_table()
    found.add_column("run", no_wrap=True, overflow="ellipsis", max_width=LABEL_WIDTH)
    found.add_column("seed", justify="right")
    found.add_column("state", no_wrap=True, min_width=10)
    for heading in ("done", "ACC %", "BWT", "time"):
        found.add_column(heading, justify="right", no_wrap=True)
    for status in rows:
        found.add_row(
            status.job.label,
            str(status.job.plan.seed),
            state_words(status),
            f"{100 * status.done:.0f} %",
            number(status.accuracy),
            number(status.transfer, signed=True),
            time_words(status),
        )
    return found


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


def counts(statuses: Sequence[Status]) -> str:
    """Return how many jobs are in each state.

    >>> counts([])
    '0 runs'
    """
    found = Counter(status.state for status in statuses)
    several = ", ".join(f"{count} {state}" for state, count in found.items())
    return f"{len(statuses)} runs" + (f": {several}" if several else "")
