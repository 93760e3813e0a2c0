"""The command that runs methods on a benchmark."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.hints import worded
from classgrad.cli.show import show_records
from classgrad.cli.words import (
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
)
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
        str, typer.Option(help="Same seed, same result. Several with commas: also their mean.")
    ] = "1",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="A setting by word or letter. Can be repeated."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("runs"),
    data_dir: DataDir = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on with runs that were cut short, which is usual anyway."
        ),
    ] = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Learn again what was learnt before.")
    ] = False,
    save_minutes: SaveMinutes = 5.0,
    save_steps: SaveSteps = None,
    device: Device = "cpu",
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write curves to the run's folder, too.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the record and nothing else.")
    ] = False,
) -> None:
    """Learn a stream of tasks with one or more methods, and compare them.

    A run that was cut short goes on where it was when the command is repeated.
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

    first = join(gpu=device.startswith("cuda")).is_main_process
    if tensorboard:
        refuse_missing()
    values = parse_settings(settings or [])
    seeds = parse_seeds(seed)
    groups = [make_plans(benchmark, method, network, recipe, one, values) for one in seeds]
    all_plans = [plan for plans in groups for plan in plans]
    refuse_other_processes(all_plans, device=device, fresh=fresh, resume=resume)
    folders = [run_folder(out, plan) for plan in all_plans]
    if resume and fresh:
        raise UserError("--resume and --fresh contradict each other: give one of them")
    if resume and not any(has_saved_state(folder) for folder in folders):
        raise UserError(f"nothing in '{out}' to go on with: leave out --resume")
    # Brackets in names are no markup.
    console = Console(stderr=as_json, markup=False, quiet=not first)

    def tell(line: str, hint: str | None = None) -> None:
        console.print(worded(line, hint), soft_wrap=True)

    records: list[RunRecord] = []

    def runs(stream: "TaskStream", number: int) -> "Iterator[Run]":
        for place, plan in enumerate(groups[number]):
            folder = folders[number * len(groups[0]) + place]
            checkpoints = CheckpointManager(folder, minutes=save_minutes, steps=save_steps)
            yield Run(plan, stream, folder, checkpoints, device=device, tensorboard=tensorboard)

    for number, plans in enumerate(groups):
        with world().errors_shared():  # one of several machines may lack the data
            stream = load_stream(plans[0], data_dir)  # the same for all methods
        one_after_another: Iterable[Run] = runs(stream, number)
        if number == 0:  # whatever is wrong shows before the first run
            one_after_another = list(one_after_another)
            if fresh:
                remove_runs(folders)
        for one in one_after_another:
            assert one.checkpoints is not None
            with one.checkpoints.handle_stop_signals(), progress_bar(console, one) as observer:
                records.append(one.resume(observer, tell=tell))
                one.checkpoints.raise_if_stopped()
    leave()
    if not first:
        return
    if as_json:
        found = [json.loads(record.to_json()) for record in records]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=1))
        return
    show_records(console, records)
    picture = draw_matrices(
        records[: len(groups[0])],
        out / "matrices.png" if len(records) > 1 else folders[0] / "matrix.png",
    )
    where = ", ".join(str(folder) for folder in folders) if len(folders) < 9 else str(out)
    console.print(f"records   {where}", soft_wrap=True)
    console.print(f"picture   {picture}", soft_wrap=True)


@contextmanager
def progress_bar(console: "Console", run: "Run") -> "Iterator[Observer]":
    """Show a bar with task, epoch, loss and time left; yield what moves it."""
    from classgrad.report.bar import bar
    from classgrad.training.loop import Progress

    tasks = len(run.stream)
    with bar(console, f"{run.method.name:<10}") as move:

        def observer(at: Progress) -> None:
            move(
                run.share_done(at),
                f"task {at.task + 1}/{tasks} epoch {at.epoch + 1} loss {at.loss:.3f}",
            )

        yield observer
