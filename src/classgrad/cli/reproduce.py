"""The commands on many runs: reproduce the tables of the paper, or sweep over a grid."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.words import (
    DataDir,
    Device,
    Methods,
    NetworkName,
    Recipe,
    SaveMinutes,
    make_plans,
    parse_grid,
    parse_seeds,
    parse_settings,
)
from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from classgrad.experiments.executors.pool import Options
    from classgrad.experiments.executors.status import Show, Status
    from classgrad.experiments.jobs import Job
    from classgrad.experiments.remote import Place
    from classgrad.runs.spec import Plan

    Execute = Callable[[Sequence[Job], Options, Show], list[Status]]

app = typer.Typer()

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        help="Runs at once, a process each; by default 1, or as many as a cluster has room for.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads of each run; by default 1 if several run at once."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT",
        help="Run on a Ray cluster: auto is the one of this machine, which is started if need be.",
    ),
]
Out = Annotated[
    str, typer.Option(help="Folder for the results, or a URL such as s3://bucket/folder.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print what would be run and how long it takes.")
]


@app.command(
    epilog="Examples: classgrad reproduce all --dry-run | classgrad reproduce cifar100 --jobs 2 | "
    "classgrad reproduce eta,lambda --recipe paper --seeds 1,2,3 | "
    "classgrad reproduce my-table.toml | classgrad reproduce all --ray auto --out /storage/runs"
)
def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="An experiment, several with commas, all, or a .toml file; see 'classgrad list'."
        ),
    ],
    recipe: Recipe = "fast",
    seeds: Annotated[str, typer.Option(help="Seeds of every run, with commas.")] = "1",
    jobs: Jobs = None,
    out: Out = "runs",
    data_dir: DataDir = None,
    threads: Threads = None,
    device: Device = "cpu",
    ray: Ray = None,
    save_minutes: SaveMinutes = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Repeat tables and figures of the paper, and compare with what it prints.

    Runs that are finished are not run again, and those cut short go on.
    """
    from rich.console import Console

    from classgrad.cli.experiment_tables import comparison
    from classgrad.experiments.compare import compare
    from classgrad.experiments.jobs import of_experiments
    from classgrad.experiments.remote import opened
    from classgrad.experiments.spec import chosen

    found = chosen(name)
    console = Console(markup=False)  # brackets in names are no markup
    options = options_of(jobs, threads, data_dir, save_minutes, device, ray)
    with opened(out) as place:
        listed = of_experiments(found, recipe, parse_seeds(seeds, "--seeds"), place.folder)
        listed = place.look(listed)
        ended = carry_out(console, listed, place, options, ray, dry_run)
        if dry_run:
            return
        records = [record for job in place.look(listed) if (record := job.record())]
    for experiment in found:
        console.print(comparison(experiment, compare(experiment, records, recipe), recipe))
    tell_failures(ended)


@app.command(
    epilog="Examples: classgrad sweep --over eta=0.5,0.7,0.9 --over seed=1,2,3 --jobs 2 | "
    "classgrad sweep --method cgp,gpm --benchmark split-digits --over epochs=2,5 --dry-run"
)
def sweep(
    benchmark: Annotated[
        str, typer.Option("--benchmark", "-b", help="A stream of tasks; see 'classgrad list'.")
    ] = "permuted-digits",
    method: Methods = "cgp",
    network: NetworkName = None,
    recipe: Recipe = "fast",
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="A setting of all runs."),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="A setting, or seed, with the values to try. Can be repeated: all combinations.",
        ),
    ] = None,
    jobs: Jobs = None,
    out: Out = "runs",
    data_dir: DataDir = None,
    threads: Threads = None,
    device: Device = "cpu",
    ray: Ray = None,
    save_minutes: SaveMinutes = 5.0,
    dry_run: DryRun = False,
) -> None:
    """Run every combination of some values, several at once, and compare them.

    Runs that are finished are not run again, and those cut short go on.
    """
    from rich.console import Console

    from classgrad.experiments.jobs import grid, of_plans
    from classgrad.experiments.remote import opened
    from classgrad.report import terminal as report

    fixed, varied = parse_settings(settings or []), parse_grid(over or [])
    both = sorted(fixed.keys() & varied.keys())
    if both:
        raise UserError(f"--set and --over both give '{both[0]}': give one of them")
    labelled = []
    for point in grid({"seed": [1], **varied}):  # one seed of all comes before the next one
        seed = point.pop("seed")
        for plan in make_plans(benchmark, method, network, recipe, seed, {**fixed, **point}):
            labelled.append((label_of(plan, point), plan))
    console = Console(markup=False)  # brackets in names are no markup
    options = options_of(jobs, threads, data_dir, save_minutes, device, ray)
    with opened(out) as place:
        listed = place.look(of_plans(labelled, place.folder))
        ended = carry_out(console, listed, place, options, ray, dry_run)
        if dry_run:
            return
        found = [job.record() for job in place.look(listed)]
    records = [record for record in found if record and record.complete]
    if records:
        console.print(report.means(records))
    tell_failures(ended)


def label_of(plan: "Plan", point: dict[str, Any]) -> str:
    """Name a run by its method and the values that are its own in the grid."""
    from classgrad.methods import METHODS

    # A setting that only another method has is not one of this run.
    others = {name for kind in METHODS.values() for name in kind.names()}
    own = [name for name in point if plan.method.accepts(name) or name not in others]
    return " ".join([plan.method.name, *(f"{name}={point[name]}" for name in own)])


def options_of(
    jobs: int | None,
    threads: int | None,
    data_dir: Path | None,
    save_minutes: float,
    device: str,
    ray: str | None,
) -> "Options":
    """Return how jobs are to be run; as many at once as a cluster has room for, if none is said."""
    from classgrad import devices
    from classgrad.experiments.executors.pool import Options

    if ray is not None:
        from classgrad.experiments.executors.ray_cluster import refuse_missing

        refuse_missing()
        if device not in ("cpu", "cuda"):
            raise UserError(
                f"--device '{shown(device)}' with --ray: give cpu, or cuda for one of the "
                "cluster's graphics devices"
            )
        data_dir = None if data_dir is None else data_dir.absolute()
        return Options(jobs or sys.maxsize, threads or 1, data_dir, save_minutes, device)
    devices.chosen(device)
    threads = threads or (1 if (jobs or 1) > 1 else None)
    return Options(jobs or 1, threads, data_dir, save_minutes, device)


def carry_out(
    console: "Console",
    jobs: "list[Job]",
    place: "Place",
    options: "Options",
    ray: str | None,
    dry_run: bool,
) -> "Sequence[Status]":
    """Show what there is to do, and do it; return how each job ended that was not done before."""
    from classgrad.cli.experiment_tables import plan_table
    from classgrad.cli.live import showing
    from classgrad.experiments.checks import Streams
    from classgrad.experiments.estimate import Estimate, finished_records, in_all
    from classgrad.report.text import duration

    if ray is not None:
        from classgrad.experiments.executors.ray_cluster import refuse_relative

        refuse_relative(jobs)
    states = [job.state() for job in jobs]
    todo = [job for job, state in zip(jobs, states, strict=True) if state != "done"]
    with console.status("looking at data and settings"):
        streams = Streams(options.data_dir)
        streams.refuse_what_cannot_run(todo)
        known = finished_records(place.folder, options.device) if todo else []
        estimate = Estimate(known, streams.facts, options.threads)
        seconds = [
            0.0 if state == "done" else estimate.of_job(job)
            for job, state in zip(jobs, states, strict=True)
        ]
    if not todo:
        console.print(plan_table(jobs, states, seconds))
        console.print("all runs are done")
        return []
    early = any(job.plan.training.schedule == "plateau" for job in todo)
    out = None if dry_run or place.url else place.folder
    with executor(console, options, ray, out) as (options, execute):
        console.print(plan_table(jobs, states, seconds))
        count = min(options.count, len(todo))
        console.print(
            f"{len(todo)} of {len(jobs)} runs to do: about {duration(in_all(seconds, count))}"
            + (f" with {count} at once" if count > 1 else "")
            + (", less where training stops early" if early else "")
        )
        if dry_run:
            return []
        with showing(console) as show:
            return execute(todo, options, show)


@contextmanager
def executor(
    console: "Console", options: "Options", ray: str | None, out: Path | None
) -> "Iterator[tuple[Options, Execute]]":
    """Yield what runs jobs, here or on a cluster, with as many at once as there is room for.

    The machines of a cluster have to see the folder for the results, if one is given.
    """
    if ray is None:
        from classgrad.experiments.executors.local import execute

        yield options, execute
        return
    from dataclasses import replace

    from classgrad.experiments.executors import ray_cluster as cluster

    status = console.status("connecting to the cluster")
    with status, cluster.connected(ray, options) as room:
        cluster.refuse_differences(options, out)
        from classgrad.experiments.executors import ray_pool as cluster_pool

        status.stop()
        yield replace(options, count=min(options.count, room)), cluster_pool.execute


def tell_failures(statuses: "Sequence[Status]") -> None:
    """Leave with a line on what did not end well, if anything did not."""
    bad = [status for status in statuses if status.state != "done"]
    if not bad:
        return
    reasons = "; ".join(f"{status.job.title}: {status.why}" for status in bad)
    line = f"{len(bad)} of {len(statuses)} runs did not end: {reasons}"
    if not any(status.crash for status in bad):
        raise UserError(line)
    print(f"classgrad: {line}", file=sys.stderr)
    raise typer.Exit(1)
