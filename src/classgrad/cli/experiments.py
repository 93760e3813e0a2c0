"""Experiments on the terminal: jobs to run, their progress, and results beside the paper's."""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from classgrad.cli.logs import TRAINING, JsonLog, Log
from classgrad.cli.options import with_hint
from classgrad.experiments.compare import Figure, Row
from classgrad.experiments.executors.pool import Display
from classgrad.experiments.jobs import Job, State, Status
from classgrad.experiments.spec import Experiment
from classgrad.report.text import duration, number, print_line
from classgrad.training.log import EPOCH_INTERVAL, seconds_left, time_left, write


def plan_table(jobs: Sequence[Job], states: Sequence[State], seconds: Sequence[float]) -> Table:
    """Return the jobs to run, with estimated times; those that differ only in seed share a row."""
    table = plain_table()
    table.add_column("run", overflow="fold")
    for heading in ("method", "seed", "state"):
        table.add_column(heading)
    table.add_column("about", justify="right", no_wrap=True)
    rows: dict[tuple[str, str, State], list[tuple[int, float]]] = {}
    for job, state, estimate in zip(jobs, states, seconds, strict=True):
        row = rows.setdefault((job.label, job.plan.method.name, state), [])
        row.append((job.plan.seed, estimate))
    for (label, method, state), seeds_and_times in rows.items():
        seeds = ", ".join(str(seed) for seed, _ in seeds_and_times)
        total = sum(estimate for _, estimate in seeds_and_times)
        table.add_row(label, method, seeds, state, duration(total) if total else "-")
    return table


def comparison(experiment: Experiment, rows: Sequence[Row], recipe: str) -> Table:
    """Return measured and published figures, whether they agree, and the experiment's notes."""
    table = plain_table(
        f"{experiment.name}: {experiment.title} ({experiment.source}); recipe {recipe}"
    )
    table.caption = "\n".join(
        [
            f"repeated: the 95 % intervals of ACC and BWT lie within {experiment.tolerance:g} of "
            "the paper's; no: outside; open: between, or of one seed",
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
            {None: "-", "repeated": "yes", "not repeated": "no", "open": "open"}[row.verdict],
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


def with_job_hint(line: str, hint: str | None) -> str:
    """Return a line about a job with its hint in words of commands that run jobs, without --fresh.

    >>> with_job_hint("it holds another run", "other_run")
    'it holds another run (--out names another folder)'
    """
    return with_hint(line, {"fresh": None, "other_run": "other_folder"}.get(hint or "", hint))


LABEL_WIDTH = 30
OTHER_LINES = 6  # of the screen, that are not rows of the table


@contextmanager
def job_display(log: Log, seconds: Sequence[float] = ()) -> Iterator[Display]:
    """Yield a display of jobs for the block: a live table on a terminal, else lines or messages.

    `seconds` are estimates of the times that the jobs take.
    """
    if isinstance(log, JsonLog):
        yield MessageDisplay(log)
    elif not log.has_bars:
        yield LineDisplay(log.notes, verbose=log.verbose, seconds=seconds)
    else:
        with Live(console=log.console, refresh_per_second=4) as live:
            yield TableDisplay(log.console, live, verbose=log.verbose)


class LineDisplay(Display):
    """A line when a job starts, for what it logs, and when it ends, with the time left for all.

    Epochs have one only if there was none for some seconds, except if it is `verbose`.
    """

    def __init__(
        self, console: Console, *, verbose: bool = False, seconds: Sequence[float] = ()
    ) -> None:
        self.console, self.verbose, self.seconds = console, verbose, seconds
        self.statuses: Sequence[Status] = ()
        self.began = self.last_line = time.monotonic()

    def changed(self, status: Status) -> None:
        """Show that a job has started, or how it ended."""
        if status.state == "running":
            self.print_line("started", status)
            return
        line = f"{status.state} after {duration(status.seconds)}"
        if status.state == "done":
            transfer = number(status.transfer, signed=True)
            line += f", ACC {number(status.accuracy)}, BWT {transfer}"
        why = f": {status.why}" if status.why else ""
        self.print_line(line + why, status, status.hint)
        if len(self.statuses) > 1:
            self.print_line(summary(self.statuses) + time_left(self.left()))

    def logged(self, message: Mapping[str, Any], status: Status) -> None:
        """Print a line that a job has logged."""
        early = time.monotonic() - self.last_line < EPOCH_INTERVAL and not self.verbose
        if not (early and message.get("event") in ("epoch", "progress")):
            self.print_line(message["text"], status, message.get("hint"))

    def left(self) -> float | None:
        """Estimate the seconds until all jobs have ended, from the estimates for each."""
        weights = self.seconds or [1.0] * len(self.statuses)
        pairs = list(zip(weights, self.statuses, strict=True))
        begun = sum(weight * (status.done_before or 0.0) for weight, status in pairs)
        open_jobs = [pair for pair in pairs if pair[1].state in ("waiting", "running")]
        to_do = sum(weight * (1 - status.done) for weight, status in open_jobs)
        total = sum(weights)
        if not total or not to_do:
            return None
        since = time.monotonic() - self.began
        return seconds_left(since, 1 - to_do / total, begun / total)

    def print_line(self, line: str, status: Status | None = None, hint: str | None = None) -> None:
        """Print a line about one job, or about all, with its hint in words."""
        line = with_job_hint(line, hint)
        print_line(self.console, f"{status.job.title}: {line}" if status else line)
        self.last_line = time.monotonic()

    def tick(self, statuses: Sequence[Status]) -> None:
        """Look at the progress of all; lines that are printed cannot be changed."""
        self.statuses = statuses


class MessageDisplay(Display):
    """A message for everything that other displays show, as docs/reproduce.md describes them."""

    def __init__(self, log: JsonLog) -> None:
        self.log = log

    def changed(self, status: Status) -> None:
        """Send that a job has started, or how it ended."""
        run = {"run": status.job.title}
        if status.state == "running":
            place, plan = status.job.place, status.job.plan.folder_name()
            self.log.send({"event": "start", **run, "folder": place, "plan": plan})
            return
        values: dict[str, Any] = {}
        if status.state == "done":
            figures = {"accuracy": status.accuracy, "transfer": status.transfer}
            values = {"done": 1.0, **figures}
        elif status.why:
            values = {"why": status.why, "hint": status.hint, "diverged": status.diverged}
        self.log.send({"event": "end", **run, "end": status.state, **values})

    def logged(self, message: Mapping[str, Any], status: Status) -> None:
        """Send what a job has logged."""
        if not self.log.quiet or message.get("level") == "warning":
            self.log.send({**message, "run": status.job.title})

    def print_line(self, line: str, status: Status | None = None, hint: str | None = None) -> None:
        """Send a line about one job, or about all."""
        run = {"run": status.job.title} if status else {}
        write(logging.INFO, "note", run.get("run", ""), line, hint=hint, **run)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Do nothing: jobs themselves send how far they are."""


class TableDisplay(LineDisplay):
    """A table with a row for each job, below the lines that are printed."""

    def __init__(self, console: Console, live: Live, *, verbose: bool = False) -> None:
        super().__init__(console, verbose=verbose)
        self.live = live

    def changed(self, status: Status) -> None:
        """Print why a job ended, for which the table has no column."""
        if status.why:
            super().changed(status)

    def logged(self, message: Mapping[str, Any], status: Status) -> None:
        """Print a line that a job has logged, if the table does not show it."""
        if self.verbose or message.get("event") not in TRAINING:
            super().logged(message, status)

    def tick(self, statuses: Sequence[Status]) -> None:
        """Update the table."""
        table = job_table(statuses, self.console.height)
        self.live.update(Group(table, Text(summary(statuses))))


def summary(statuses: Sequence[Status]) -> str:
    """Return how many jobs are in which state."""
    states = Counter(status.state for status in statuses)
    counts = ", ".join(f"{count} {state}" for state, count in states.items())
    return f"{len(statuses)} runs: {counts}"


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
