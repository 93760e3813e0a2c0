"""The commands reproduce and sweep: the tables of the paper, or a grid of settings."""

import itertools
import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.completion import complete_list, complete_names
from classgrad.cli.logs import Log, LogFormat, Quiet, Verbose, open_log
from classgrad.cli.options import (
    DataDir,
    Device,
    Methods,
    NetworkName,
    Out,
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

    from classgrad.experiments.executors.pool import Display, Options, Pool
    from classgrad.experiments.jobs import Job, Status
    from classgrad.experiments.remote import Results
    from classgrad.runs.spec import Plan

app = typer.Typer()

Jobs = Annotated[
    int | None,
    typer.Option(
        "--jobs",
        "-j",
        min=1,
        help="Number of parallel runs, a process each; by default 1, or as many as fit a cluster.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, help="Threads per run; by default 1 if several run in parallel."),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="auto|HOST:PORT",
        help="Run on a Ray cluster; auto is that of this machine, and is started if necessary.",
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Print the runs and an estimate of their time only.")
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
            help="Experiments separated by commas, all, or a .toml file; see 'classgrad list'.",
            autocompletion=complete_list("experiments"),
        ),
    ],
    recipe: Recipe = "fast",
    seeds: Annotated[str, typer.Option(help="Seeds for every run, separated by commas.")] = "1",
    jobs: Jobs = None,
    out: Out = "runs",
    data_dir: DataDir = None,
    threads: Threads = None,
    device: Device = "cpu",
    ray: Ray = None,
    save_minutes: SaveMinutes = 5.0,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = None,
    dry_run: DryRun = False,
) -> None:
    """Reproduce tables and figures of the paper, and compare them with the published figures.

    Finished runs are not repeated, and runs that were cut short are resumed.
    """
    from classgrad.cli.experiments import comparison
    from classgrad.experiments.compare import compare
    from classgrad.experiments.jobs import jobs_of_experiments
    from classgrad.experiments.remote import open_results
    from classgrad.experiments.spec import load_many

    opened = open_log(log_format, quiet=quiet, verbose=verbose, several=True)
    with opened as log, open_results(out) as results:
        experiments = load_many(name)
        options = pool_options(jobs, threads, data_dir, save_minutes, device, ray)
        all_jobs = jobs_of_experiments(
            experiments, recipe, parse_seeds(seeds, "--seeds"), results.folder
        )
        statuses = execute_jobs(log, all_jobs, results, options, ray, dry_run)
        if dry_run:
            return
        records = [record for job in results.look_up(all_jobs) if (record := job.record())]
        for experiment in experiments:
            log.console.print(comparison(experiment, compare(experiment, records, recipe), recipe))
        report_failures(log, statuses)


@app.command(
    epilog="Examples: classgrad sweep --over eta=0.5,0.7,0.9 --over seed=1,2,3 --jobs 2 | "
    "classgrad sweep --method cgp,gpm --benchmark split-digits --over epochs=2,5 --dry-run"
)
def sweep(
    benchmark: Annotated[
        str,
        typer.Option(
            "--benchmark",
            "-b",
            help="A stream of tasks; see 'classgrad list'.",
            autocompletion=complete_names("benchmarks"),
        ),
    ] = "permuted-digits",
    method: Methods = "cgp",
    network: NetworkName = None,
    recipe: Recipe = "fast",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="A setting of all runs, by name or alias. Can be repeated.",
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE,VALUE",
            help="A setting, or seed, with the values to try. Can be repeated: all combinations "
            "are run.",
        ),
    ] = None,
    jobs: Jobs = None,
    out: Out = "runs",
    data_dir: DataDir = None,
    threads: Threads = None,
    device: Device = "cpu",
    ray: Ray = None,
    save_minutes: SaveMinutes = 5.0,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = None,
    dry_run: DryRun = False,
) -> None:
    """Run every combination of some settings, and compare the results.

    Finished runs are not repeated, and runs that were cut short are resumed.
    """
    from classgrad.cli.report import experiment_lines
    from classgrad.experiments.jobs import jobs_of_plans
    from classgrad.experiments.remote import open_results
    from classgrad.report import terminal as report

    fixed, varied = parse_settings(settings or []), parse_grid(over or [])
    both = sorted(fixed.keys() & varied.keys())
    if both:
        raise UserError(f"--set and --over both give '{both[0]}': give one of them")
    labelled = []
    grid = {"seed": [1], **varied}  # all combinations with one seed come before the next seed
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        seed = point.pop("seed")
        for plan in make_plans(benchmark, method, network, recipe, seed, {**fixed, **point}):
            labelled.append((label_of(plan, point), plan))
    options = pool_options(jobs, threads, data_dir, save_minutes, device, ray)
    opened = open_log(log_format, quiet=quiet, verbose=verbose, several=True)
    with opened as log, open_results(out) as results:
        all_jobs = jobs_of_plans(labelled, results.folder)
        statuses = execute_jobs(log, all_jobs, results, options, ray, dry_run)
        if dry_run:
            return
        saved_records = [job.record() for job in results.look_up(all_jobs)]
        records = [record for record in saved_records if record and record.complete]
        if records:
            log.console.print(report.comparison(records, experiment_lines(records)))
        report_failures(log, statuses)


def label_of(plan: "Plan", point: dict[str, Any]) -> str:
    """Name a run by its method and those values of its grid point that it uses."""
    from classgrad.methods import METHODS

    # A setting that only another method has is not used by this run.
    method_settings = {name for kind in METHODS.values() for name in kind.names()}
    used = [name for name in point if plan.method.accepts(name) or name not in method_settings]
    return " ".join([plan.method.name, *(f"{name}={point[name]}" for name in used)])


def pool_options(
    jobs: int | None,
    threads: int | None,
    data_dir: Path | None,
    save_minutes: float,
    device: str,
    ray: str | None,
) -> "Options":
    """Return the options of a pool of jobs; by default as many in parallel as fit a cluster."""
    from classgrad import devices
    from classgrad.experiments.executors.pool import Options

    if ray is None:
        devices.resolve_device(device)
        threads = threads or (1 if (jobs or 1) > 1 else None)
        return Options(jobs or 1, threads, data_dir, save_minutes, device)
    if device not in ("cpu", "cuda"):
        raise UserError(
            f"--device '{shown(device)}' with --ray: give cpu, or cuda for one of the cluster's "
            "GPUs"
        )
    data_dir = None if data_dir is None else data_dir.absolute()
    return Options(jobs or sys.maxsize, threads or 1, data_dir, save_minutes, device)


def execute_jobs(
    log: Log,
    jobs: "list[Job]",
    results: "Results",
    options: "Options",
    ray: str | None,
    dry_run: bool,
) -> "Sequence[Status]":
    """Show a plan of the jobs and run those that are not done; return the statuses of these."""
    from classgrad.cli.experiments import job_display, plan_table
    from classgrad.experiments.estimate import Estimate, Workload, finished_records, total_seconds
    from classgrad.experiments.executors.local import LocalPool
    from classgrad.report.text import duration

    console = log.notes
    if ray is not None:
        from classgrad.experiments.executors.ray import refuse_relative

        refuse_relative(jobs)
    jobs = results.look_up(jobs)
    states = [job.state() for job in jobs]
    todo = [job for job, state in zip(jobs, states, strict=True) if state != "done"]
    with console.status("checking data and settings"):
        workload = Workload(options.data_dir)
        workload.check(todo)
        records = finished_records(results.folder, options.device) if todo else []
        estimate = Estimate(workload, records, options.threads)
        seconds = [
            0.0 if state == "done" else estimate.of_job(job)
            for job, state in zip(jobs, states, strict=True)
        ]
    planned = log.console if dry_run else log.notes
    if not todo:
        planned.print(plan_table(jobs, states, seconds))
        planned.print("all runs are done")
        return []
    may_stop_early = any(job.plan.training.schedule == "plateau" for job in todo)
    with ExitStack() as connection:
        new_pool: Callable[[Sequence[Job], Options, Display], Pool[Any]] = LocalPool
        if ray is not None:
            from classgrad.experiments.executors.ray import RayPool, connected, refuse_differences

            with console.status("connecting to the cluster"):
                slots = connection.enter_context(connected(ray, options))
                refuse_differences(options, None if dry_run or results.url else results.folder)
            options, new_pool = replace(options, count=min(options.count, slots)), RayPool
        planned.print(plan_table(jobs, states, seconds))
        count = min(options.count, len(todo))
        total = duration(total_seconds(seconds, count))
        planned.print(
            f"{len(todo)} of {len(jobs)} runs to do: about {total}"
            + (f" with {count} in parallel" if count > 1 else "")
            + (", less where training stops early" if may_stop_early else "")
        )
        if dry_run:
            return []
        options = replace(options, verbose=log.verbose)
        times = [t for t, state in zip(seconds, states, strict=True) if state != "done"]
        with job_display(log, times) as display:
            return new_pool(todo, options, display).execute()


def report_failures(log: Log, statuses: "Sequence[Status]") -> None:
    """Exit with a line that names the runs that were not finished, if there are any."""
    from classgrad.cli.experiments import with_job_hint

    unfinished = [status for status in statuses if status.state != "done"]
    if not unfinished:
        return
    reasons = "; ".join(
        f"{status.job.title}: {with_job_hint(status.why or status.state, status.hint)}"
        for status in unfinished
    )
    line = f"{len(unfinished)} of {len(statuses)} runs did not finish: {reasons}"
    if not any(status.crash for status in unfinished):
        raise UserError(line)
    log.end(end="failed", why=line, hint=None, diverged=False)
    print(f"classgrad: {line}", file=sys.stderr)
    raise typer.Exit(1)
