"""Tables of experiments for the terminal: jobs to run, and results beside the paper's figures."""

from collections.abc import Sequence

from rich import box
from rich.table import Table

from classgrad.experiments.compare import Figure, Row
from classgrad.experiments.jobs import Job, State
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
