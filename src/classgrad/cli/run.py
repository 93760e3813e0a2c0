"""The command run: methods on a benchmark."""

import json
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.logs import JsonLog, LogFormat, Quiet, Verbose, open_log
from classgrad.cli.options import (
    Benchmark,
    DataDir,
    Device,
    Methods,
    NetworkName,
    Out,
    Recipe,
    SaveMinutes,
    SaveSteps,
    Weights,
    make_plans,
    parse_seeds,
    parse_settings,
    resumed_without_fresh,
)
from classgrad.cli.show import show_records
from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.runs.record import RunRecord
    from classgrad.runs.run import Run
    from classgrad.tasks import TaskStream
    from classgrad.training.loop import Observer

EXAMPLES = (
    "Examples: classgrad run split-digits --method cgp --set eta=0.8 --set lambda=0.1 | "
    "classgrad run --method cgp,gpm,finetune --seed 2 | classgrad run --method gpm --json | "
    "classgrad run --method all --seed 1,2,3 | classgrad run --tensorboard | "
    "classgrad run split-cifar100 --log json --out s3://bucket/runs"
)


def run(
    benchmark: Benchmark = "permuted-digits",
    method: Methods = "cgp",
    network: NetworkName = None,
    weights: Weights = None,
    recipe: Recipe = "fast",
    seed: Annotated[
        str,
        typer.Option(help="Same seed, same result. Several, separated by commas, are averaged."),
    ] = "1",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting by name or alias. Can be repeated."
        ),
    ] = None,
    out: Out = "runs",
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of the run's folder, for one run; by default made from its settings."
        ),
    ] = None,
    data_dir: DataDir = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Resume, as is the default, but fail if there is nothing to resume."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Start again, and discard earlier results of the run.")
    ] = False,
    save_minutes: SaveMinutes = 5.0,
    save_steps: SaveSteps = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads to compute with; by default PyTorch's.")
    ] = None,
    device: Device = "cpu",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write event files to the run's folder.")
    ] = False,
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="last|task",
            help="Keep weights, heads and bases beside the record: the last ones, or those after "
            "every task.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON and nothing else.")
    ] = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
    log_format: LogFormat = None,
    progress: Annotated[
        str,
        typer.Option(
            metavar="bar|json",
            help="json is --log json for one run, with its progress five times a second and no "
            "tables.",
        ),
    ] = "bar",
) -> None:
    """Learn a stream of tasks with one or more methods, and compare them.

    If the command is cut short, repeat it to resume.
    """
    import torch

    from classgrad.distributed import join, leave, world
    from classgrad.experiments.jobs import Job, done_message, progress_sender
    from classgrad.experiments.remote import checkpoints_at, open_results
    from classgrad.report.page.pictures import draw_matrices
    from classgrad.runs.events import refuse_missing
    from classgrad.runs.run import (
        Run,
        has_saved_state,
        load_stream,
        refuse_other_processes,
        remove_runs,
        run_folder,
    )

    is_main_process = join(gpu=device.startswith("cuda")).is_main_process
    if progress not in ("bar", "json"):
        raise UserError(f"--progress takes bar or json (got {progress!r})")
    if progress == "json" and log_format == "text":
        raise UserError("--progress json and --log text contradict each other: give one of them")
    if threads is not None:
        torch.set_num_threads(threads)
    with ExitStack() as stack:
        log = stack.enter_context(
            open_log(
                "json" if progress == "json" else log_format,
                quiet=quiet,
                verbose=verbose,
                as_json=as_json and progress != "json",
                is_main_process=is_main_process,
            )
        )
        if tensorboard:
            refuse_missing()
        values, seeds = parse_settings(settings or [], weights), parse_seeds(seed)
        plans = [
            plan
            for n in seeds
            for plan in make_plans(benchmark, method, network, recipe, n, values)
        ]
        if name is not None and (len(plans) > 1 or name in ("", "..") or name != Path(name).name):
            raise UserError(f"--name is the name of one run's folder (got '{shown(name)}')")
        if progress == "json" and (as_json or len(plans) > 1):
            raise UserError("--progress json is for one run: give one method and seed, no --json")
        options = {"--device": device, "--fresh": fresh, "--resume": resume, "--keep": keep}
        refuse_other_processes(plans, options)
        if resume and fresh:
            raise UserError("--resume and --fresh contradict each other: give one of them")
        results = stack.enter_context(open_results(out))
        if results.url and (fresh or tensorboard or keep or world().size > 1):
            needs = "--fresh, --keep, --tensorboard and torchrun need a folder"
            raise UserError(f"{needs} for the results (got '{shown(out)}')")
        folders = [
            results.folder / name if name else run_folder(results.folder, plan) for plan in plans
        ]
        jobs = results.look_up(list(map(Job, plans, folders)))
        if resume and not any(has_saved_state(job.folder) for job in jobs):
            raise UserError(f"nothing to resume in '{out}': leave out --resume")

        def title(job: Job) -> str:
            name = job.plan.method.name
            return name if len(seeds) == 1 else f"{name}, seed {job.plan.seed}"

        def make_run(stream: "TaskStream", job: Job) -> Run:
            folder, checkpoints = stack.enter_context(
                checkpoints_at(job.folder, job.url, minutes=save_minutes, steps=save_steps)
            )
            return Run(
                job.plan,
                stream,
                folder,
                checkpoints,
                device=device,
                tensorboard=tensorboard,
                keep=keep,
            )

        records: list[RunRecord] = []
        with resumed_without_fresh(fresh):
            for n in seeds:
                jobs_of_seed = [job for job in jobs if job.plan.seed == n]
                with world().errors_shared():  # one of several machines may lack the data
                    stream = load_stream(jobs_of_seed[0].plan, data_dir)  # same for all methods
                runs: Iterable[Run] = map(partial(make_run, stream), jobs_of_seed)
                if n == seeds[0]:  # make all, so that errors show before the first run starts
                    runs = list(runs)
                    if fresh:
                        remove_runs(job.folder for job in jobs)
                for current, job in zip(runs, jobs_of_seed, strict=True):
                    assert current.checkpoints is not None
                    log.start(title(job), job.place, job.plan.folder_name())
                    showing: AbstractContextManager[Observer | None] = nullcontext()
                    if progress == "json" and isinstance(log, JsonLog):
                        showing = nullcontext(progress_sender(current, log.send))
                    elif log.has_bars:
                        showing = progress_bar(log.console, current)
                    with current.checkpoints.handle_stop_signals(), showing as observer:
                        records.append(current.resume(observer))
                        current.checkpoints.raise_if_stopped()
                    log.end(**done_message(records[-1]))
        leave()
    if not is_main_process or progress == "json":
        return
    if as_json:
        contents = [json.loads(record.to_json()) for record in records]
        print(json.dumps(contents[0] if len(contents) == 1 else contents, indent=1))
        return
    console = log.console
    show_records(console, records)
    places = ", ".join(job.place for job in jobs) if len(jobs) < 9 else out
    console.print(f"records   {places}", soft_wrap=True)
    if not results.url:
        file = Path(out) / "matrices.png" if len(jobs) > 1 else jobs[0].folder / "matrix.png"
        picture = draw_matrices(records[: len(records) // len(seeds)], file)
        console.print(f"picture   {picture}", soft_wrap=True)


@contextmanager
def progress_bar(console: "Console", run: "Run") -> "Iterator[Observer]":
    """Show a bar with task, epoch, loss and time left; yield the observer that moves it."""
    from classgrad.report.text import bar
    from classgrad.training.loop import Progress

    tasks = len(run.stream)
    with bar(console, f"{run.method.name:<10}") as move:

        def observer(at: Progress) -> None:
            move(
                run.share_done(at),
                f"task {at.task + 1}/{tasks} epoch {at.epoch + 1} loss {at.loss:.3f}",
            )

        yield observer
