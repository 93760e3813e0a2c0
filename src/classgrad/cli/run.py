"""The command run: methods on a benchmark."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.options import (
    DataDir,
    Device,
    Methods,
    NetworkName,
    Recipe,
    SaveMinutes,
    SaveSteps,
    make_plans,
    parse_seeds,
    parse_settings,
    resumed_without_fresh,
    with_hint,
)
from classgrad.cli.show import show_records
from classgrad.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.runs.record import RunRecord
    from classgrad.runs.run import Run
    from classgrad.tasks import TaskStream
    from classgrad.training.loop import Observer

EXAMPLES = (
    "Examples: classgrad run split-digits --method cgp --set eta=0.8 --set lambda=0.1 | "
    "classgrad run --method cgp,gpm,finetune --seed 2 | classgrad run --method gpm --json | "
    "classgrad run --method all --seed 1,2,3 | classgrad run --tensorboard"
)


def run(
    benchmark: Annotated[
        str, typer.Argument(help="A stream of tasks; see 'classgrad list'.")
    ] = "permuted-digits",
    method: Methods = "cgp",
    network: NetworkName = None,
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
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
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
    device: Device = "cpu",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write event files to the run's folder.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record as JSON and nothing else.")
    ] = False,
) -> None:
    """Learn a stream of tasks with one or more methods, and compare them.

    If the command is cut short, repeat it to resume.
    """
    from rich.console import Console

    from classgrad.checkpoints import CheckpointManager
    from classgrad.distributed import join, leave, world
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
    if tensorboard:
        refuse_missing()
    values = parse_settings(settings or [])
    seeds = parse_seeds(seed)
    plans_by_seed = [make_plans(benchmark, method, network, recipe, n, values) for n in seeds]
    all_plans = [plan for plans in plans_by_seed for plan in plans]
    refuse_other_processes(all_plans, {"--device": device, "--fresh": fresh, "--resume": resume})
    folders = [run_folder(out, plan) for plan in all_plans]
    if resume and fresh:
        raise UserError("--resume and --fresh contradict each other: give one of them")
    if resume and not any(has_saved_state(folder) for folder in folders):
        raise UserError(f"nothing to resume in '{out}': leave out --resume")
    # No markup: names may contain brackets.
    console = Console(stderr=as_json, markup=False, quiet=not is_main_process)

    def tell(line: str, hint: str | None = None) -> None:
        console.print(with_hint(line, hint), soft_wrap=True)

    records: list[RunRecord] = []

    def make_runs(stream: "TaskStream", seed_index: int) -> "Iterator[Run]":
        for plan_index, plan in enumerate(plans_by_seed[seed_index]):
            folder = folders[seed_index * len(plans_by_seed[0]) + plan_index]
            checkpoints = CheckpointManager(folder, minutes=save_minutes, steps=save_steps)
            yield Run(plan, stream, folder, checkpoints, device=device, tensorboard=tensorboard)

    with resumed_without_fresh(fresh):
        for seed_index, plans in enumerate(plans_by_seed):
            with world().errors_shared():  # one of several machines may lack the data
                stream = load_stream(plans[0], data_dir)  # the same for all methods
            runs: Iterable[Run] = make_runs(stream, seed_index)
            if seed_index == 0:  # make all, so that errors show before the first run starts
                runs = list(runs)
                if fresh:
                    remove_runs(folders)
            for current in runs:
                assert current.checkpoints is not None
                with (
                    current.checkpoints.handle_stop_signals(),
                    progress_bar(console, current) as observer,
                ):
                    records.append(current.resume(observer, tell=tell))
                    current.checkpoints.raise_if_stopped()
    leave()
    if not is_main_process:
        return
    if as_json:
        contents = [json.loads(record.to_json()) for record in records]
        print(json.dumps(contents[0] if len(contents) == 1 else contents, indent=1))
        return
    show_records(console, records)
    picture = draw_matrices(
        records[: len(plans_by_seed[0])],
        out / "matrices.png" if len(records) > 1 else folders[0] / "matrix.png",
    )
    locations = ", ".join(str(folder) for folder in folders) if len(folders) < 9 else str(out)
    console.print(f"records   {locations}", soft_wrap=True)
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
