"""Experiments on the terminal: jobs to run, their progress, and results beside the paper's."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from classgrad.experiments.compare import Figure, Row
from classgrad.experiments.executors.pool import Display
from classgrad.experiments.jobs import Job, State, Status
from classgrad.experiments.spec import Experiment
from classgrad.report.text import duration, number


def plan_table(jobs: Sequence[Job], states: Sequence[State], seconds: Sequence[float]) -> Table:
    """Return the jobs to run, with estimated times; those that differ only in seed share a row."""
    table = plain_table()
    table.add_column("run", overflow="fold")
    for heading in ("method", "seed", "state"):
        table.add_column(heading)
    table.add_column("about", justify="right", no_wrap=True)
    rows: dict[tuple[str, str, State], list[tuple[int, float]]] = {}
    for job, state, time in zip(jobs, states, seconds, strict=True):
        row = rows.setdefault((job.label, job.plan.method.name, state), [])
        row.append((job.plan.seed, time))
    for (label, method, state), seeds_and_times in rows.items():
        seeds = ", ".join(str(seed) for seed, _ in seeds_and_times)
        time = sum(time for _, time in seeds_and_times)
        table.add_row(label, method, seeds, state, duration(time) if time else "-")
    return table


def comparison(experiment: Experiment, rows: Sequence[Row], recipe: str) -> Table:
    """Return measured and published figures, whether they agree, and the experiment's notes."""
    table = plain_table(
        f"{experiment.name}: {experiment.title} ({experiment.source}); recipe {recipe}"
    )
    table.caption = "\n".join(
        [
            f"repeated: ACC and BWT within {experiment.tolerance:g} of the paper's",
            *([experiment.note.strip()] if experiment.note else []),
            *(f"{line.label}: {line.note}." for line in experiment.lines if line.note),
        ]
    )
    table.caption_justify = "left"
    with_sizes = any(row.capacity.published for row in rows)
    table.add_column("line", overflow="fold")
    last = "size %\n(paper)" if with_sizes else "diff.\nof ACC"  # too narrow for both
    for heading in ("ACC %", "BWT", "paper\nACC %", "paper\nBWT", "repeated", last):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        sizes = row.capacity.mean, row.capacity.published
        size, published_size = (f"{value:.0f}" if value else "-" for value in sizes)
        table.add_row(
            row.label,
            measured(row.accuracy),
            measured(row.transfer, signed=True),
            number(row.accuracy.published),
            number(row.transfer.published, signed=True),
            {None: "-", True: "yes", False: "no"}[row.repeated],
            f"{size} ({published_size})"
            if with_sizes
            else number(row.accuracy.difference, signed=True),
        )
    return table


def measured(figure: Figure, signed: bool = False) -> str:
    """Return a mean, with its standard deviation if there are several seeds.

    >>> measured(Figure(74.0, 0.25)), measured(Figure(-0.5), signed=True), measured(Figure())
    ('74.00 ± 0.2', '-0.50', '-')
    """
    mean = number(figure.mean, signed)
    return mean if figure.deviation is None else f"{mean} ± {figure.deviation:.1f}"


def plain_table(title: str | None = None) -> Table:
    """Return a table with no lines but one below its headings."""
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


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
