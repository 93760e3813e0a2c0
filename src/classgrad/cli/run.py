"""The command run: methods on a benchmark."""

import json
import os
import select
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.options import (
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
    with_hint,
)
from classgrad.cli.show import show_records
from classgrad.errors import Stopped, UserError, shown

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.experiments.jobs import Send
    from classgrad.runs.record import RunRecord
    from classgrad.runs.run import Run
    from classgrad.tasks import TaskStream
    from classgrad.training.loop import Observer

EXAMPLES = (
    "Examples: classgrad run split-digits --method cgp --set eta=0.8 --set lambda=0.1 | "
    "classgrad run --method cgp,gpm,finetune --seed 2 | classgrad run --method gpm --json | "
    "classgrad run --method all --seed 1,2,3 | classgrad run --tensorboard | "
    "classgrad run split-cifar100 --progress json --out s3://bucket/runs"
)


def run(
    benchmark: Annotated[
        str, typer.Argument(help="A stream of tasks; see 'classgrad list'.")
    ] = "permuted-digits",
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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON and nothing else.")
    ] = False,
    progress: Annotated[
        str,
        typer.Option(
            metavar="bar|json",
            help="json prints the progress of one run as lines of JSON, and nothing else. If "
            "their reader ends, the run saves its state and ends, too.",
        ),
    ] = "bar",
) -> None:
    """Learn a stream of tasks with one or more methods, and compare them.

    If the command is cut short, repeat it to resume.
    """
    import torch
    from rich.console import Console

    from classgrad.distributed import join, leave, world
    from classgrad.experiments.jobs import Job, message, resume_with_messages
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
    if threads is not None:
        torch.set_num_threads(threads)
    with ExitStack() as stack:
        send = stack.enter_context(message_lines(is_main_process)) if progress == "json" else None
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
        if send and (as_json or len(plans) > 1):
            raise UserError("--progress json is for one run: give one method and seed, no --json")
        refuse_other_processes(plans, {"--device": device, "--fresh": fresh, "--resume": resume})
        if resume and fresh:
            raise UserError("--resume and --fresh contradict each other: give one of them")
        results = stack.enter_context(open_results(out))
        if results.url and (fresh or tensorboard or world().size > 1):
            needs = "--fresh, --tensorboard and torchrun need a folder"
            raise UserError(f"{needs} for the results (got '{shown(out)}')")
        folders = [
            results.folder / name if name else run_folder(results.folder, plan) for plan in plans
        ]
        jobs = results.look_up(list(map(Job, plans, folders)))
        if resume and not any(has_saved_state(job.folder) for job in jobs):
            raise UserError(f"nothing to resume in '{out}': leave out --resume")
        if send:
            send({"folder": jobs[0].place, "plan": plans[0].folder_name()})
        # No markup: names may contain brackets.
        console = Console(stderr=as_json, markup=False, quiet=not is_main_process)

        def tell(line: str, hint: str | None = None) -> None:
            console.print(with_hint(line, hint), soft_wrap=True)

        def make_run(stream: "TaskStream", job: Job) -> Run:
            folder, checkpoints = stack.enter_context(
                checkpoints_at(job.folder, job.url, minutes=save_minutes, steps=save_steps)
            )
            plan = job.plan
            return Run(plan, stream, folder, checkpoints, device=device, tensorboard=tensorboard)

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
                for current in runs:
                    assert current.checkpoints is not None
                    with current.checkpoints.handle_stop_signals():
                        if send:
                            records.append(resume_with_messages(current, send))
                        else:
                            with progress_bar(console, current) as observer:
                                records.append(current.resume(observer, tell=tell))
                        current.checkpoints.raise_if_stopped()
        leave()
        if send:
            send(message(records[0], end="done", done=1.0))
            return
    if not is_main_process:
        return
    if as_json:
        contents = [json.loads(record.to_json()) for record in records]
        print(json.dumps(contents[0] if len(contents) == 1 else contents, indent=1))
        return
    show_records(console, records)
    places = ", ".join(job.place for job in jobs) if len(jobs) < 9 else out
    console.print(f"records   {places}", soft_wrap=True)
    if not results.url:
        file = Path(out) / "matrices.png" if len(jobs) > 1 else jobs[0].folder / "matrix.png"
        picture = draw_matrices(records[: len(records) // len(seeds)], file)
        console.print(f"picture   {picture}", soft_wrap=True)


@contextmanager
def message_lines(is_main_process: bool) -> "Iterator[Send]":
    """Yield what prints a message, see `jobs.Status`, as a line of JSON; print errors so, too.

    Nothing else goes to standard output. When its reader has ended, this process gets SIGTERM.
    """
    from classgrad.experiments.jobs import end_message

    output = sys.stdout

    def send(message: dict[str, Any]) -> None:
        if is_main_process:
            with suppress(BrokenPipeError):
                print(json.dumps(message), file=output, flush=True)

    threading.Thread(target=stop_without_reader, daemon=True).start()
    try:
        with redirect_stdout(sys.stderr):
            yield send
    except (UserError, Stopped, KeyboardInterrupt) as error:
        send(end_message(error))
        raise


def stop_without_reader() -> None:
    """Wait until nothing reads standard output any more, then send SIGTERM to this process."""
    poll = select.poll()
    poll.register(1, 0)  # no event but an error, which is that the other end is closed
    poll.poll()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the next line would fail to be written
    os.kill(os.getpid(), signal.SIGTERM)


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
