"""The command line: runs (run, list, show, report, watch, reproduce, sweep, data) and learners.

What is heavy is imported inside the commands.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from classgrad import (
    cli_data,
    cli_export,
    cli_info,
    cli_learn,
    cli_predict,
    cli_report,
    cli_reproduce,
    cli_watch,
)
from classgrad.cli_words import (
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
from classgrad.errors import Stopped, UserError

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.loop import Observer
    from classgrad.records import RunRecord
    from classgrad.runs import Run

# typer's own class for a wrong command line, below the one it exports: in some versions it is
# click's, in others a copy that typer brings along.
CLICK_ERROR: Any = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="classgrad",
    help="Continual learning by gradient projection: learn tasks one after another, keep the old.",
    epilog="Start with: classgrad run",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)
app.add_typer(cli_data.app, name="data")
for part in (cli_learn.app, cli_predict.app, cli_info.app, cli_reproduce.app):
    app.registered_commands += part.registered_commands
app.command(epilog=cli_export.EXAMPLES)(cli_export.export)
app.command(epilog=cli_report.EXAMPLES)(cli_report.report)
app.command(epilog=cli_watch.EXAMPLES)(cli_watch.watch)


@app.command(
    epilog="Examples: classgrad run split-digits --method cgp --set eta=0.8 --set lambda=0.1 | "
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
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the network; rarely faster on a CPU.")
    ] = False,
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
    from functools import partial

    from rich.console import Console

    from classgrad import run_parallel
    from classgrad.checkpoints import Keeper
    from classgrad.distributed import join, leave, world
    from classgrad.events import refuse_missing
    from classgrad.report import draw_matrices
    from classgrad.run_state import go_on, something_kept
    from classgrad.runs import Run, load_stream, run_folder

    first = join(graphics=device.startswith("cuda")).first
    if tensorboard:
        refuse_missing()
    values = {**parse_settings(settings or []), **({"compile": True} if compiled else {})}
    seeds = parse_seeds(seed)
    groups = [make_plans(benchmark, method, network, recipe, one, values) for one in seeds]
    all_plans = [plan for plans in groups for plan in plans]
    run_parallel.agree(all_plans, device=device, fresh=fresh, resume=resume)
    folders = [run_folder(out, plan) for plan in all_plans]
    if resume and fresh:
        raise UserError("--resume and --fresh contradict each other: give one of them")
    if resume and not any(something_kept(folder) for folder in folders):
        raise UserError(f"nothing in '{out}' to go on with: leave out --resume")
    # Brackets in names are no markup.
    console = Console(stderr=as_json, markup=False, quiet=not first)
    tell = partial(console.print, soft_wrap=True)
    records: list[RunRecord] = []
    for plans in groups:
        with world().errors_shared():  # one of several machines may lack the data
            stream = load_stream(plans[0], data_dir)  # the same for all methods
        if not records:
            for plan in plans:  # whatever is wrong shows before the first run
                Run(plan, stream, device=device)
        for plan in plans:
            folder = folders[len(records)]
            keeper = Keeper(folder, minutes=save_minutes, steps=save_steps)
            one = Run(plan, stream, folder, keeper, device=device, tensorboard=tensorboard)
            with keeper.listening(), progress_bar(console, one) as observer:
                records.append(go_on(one, observer, fresh=fresh, tell=tell))
                keeper.obey()
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


@app.command("list", epilog="Examples: classgrad list | classgrad list cgp | classgrad list --json")
def list_tables(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List the settings of this method, benchmark, network, or of training."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List methods, benchmarks, networks and recipes; or what can be set on one of them."""
    from rich.console import Console
    from rich.table import Table

    from classgrad import tables

    found = tables.everything() if name is None else {name: tables.settings_of(name)}
    if as_json:
        print(json.dumps(found, indent=1))
        return
    for title, entries in found.items():
        table = Table("name", "what it is", title=title, title_justify="left")
        for entry, summary in entries.items():
            table.add_row(entry, summary)
        Console().print(table)


@app.command(
    epilog="Examples: classgrad show runs/permuted-digits-cgp-seed1-... | classgrad show runs/*"
)
def show(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the records and nothing else.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print means over seeds as a Markdown table.")
    ] = False,
) -> None:
    """Show the record of a run, or compare several."""
    from rich.console import Console

    from classgrad.page.found import runs_among
    from classgrad.records import RunRecord

    records = [RunRecord.load(path) for path in runs_among(map(Path, runs))]
    if not records:
        raise UserError("only pictures, pages or tables are named: give folders of runs")
    if as_json:
        found = [json.loads(record.to_json()) for record in records]
        print(json.dumps(found[0] if len(found) == 1 else found, indent=1))
        return
    if as_markdown:
        from classgrad.report import markdown

        print(markdown(records), end="")
        return
    show_records(Console(markup=False), records)


@contextmanager
def progress_bar(console: "Console", run: "Run") -> "Iterator[Observer]":
    """Show a bar with task, epoch, loss and time left; yield what moves it."""
    from classgrad.cli_bar import bar
    from classgrad.loop import Progress

    tasks = len(run.stream)
    with bar(console, f"{run.method.name:<10}") as move:

        def observer(at: Progress) -> None:
            move(
                run.share_done(at),
                f"task {at.task + 1}/{tasks} epoch {at.epoch + 1} loss {at.loss:.3f}",
            )

        yield observer


def show_records(console: "Console", records: "list[RunRecord]") -> None:
    """Print a comparison; for one run also its accuracy matrix and the room left."""
    from classgrad import report

    several = len(report.summaries(records)) < len(records)
    console.print(report.means(records) if several else report.comparison(records))
    if len(records) == 1:
        console.print(report.matrix_table(records[0]))
        if records[0].layers:
            console.print(report.room_table(records[0]))
    if any(not record.complete for record in records):
        console.print("Some runs did not end: their figures are of the tasks learnt so far.")


def main() -> None:
    """Run the command line; what a user can put right is one line on standard error, code 2."""
    try:
        refuse_several(sys.argv[1:])
        sys.exit(app(standalone_mode=False))
    except UserError as error:
        fail(str(error))
    except CLICK_ERROR as error:
        if not error.format_message():  # no command was given, and the help is printed already
            sys.exit(2)
        fail(error.format_message())
    except Stopped as stop:
        same = "the same command" + (" without --fresh" if "--fresh" in sys.argv else "")
        fail(f"stopped; {same} goes on from here", code=128 + stop.number)
    except typer.Abort:
        fail("stopped", code=130)
    except KeyboardInterrupt:
        fail("stopped", code=130)


def refuse_several(words: list[str]) -> None:
    """Refuse commands that torchrun starts several times and that would all do the same."""
    alone = ("reproduce", "sweep", "learn", "forget", "export", "report", "data")
    if os.environ.get("WORLD_SIZE", "1") != "1" and words[:1] and words[0] in alone:
        raise UserError(f"only 'run' is for torchrun: start '{words[0]}' without it")


def fail(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong on one line of standard error, and leave; one of several processes does."""
    from classgrad.distributed import leave, world

    if world().speaks():
        print(f"classgrad: {' '.join(message.split())}", file=sys.stderr, flush=True)
    world().spoken()
    leave()  # threads that carry messages could abort the process at its end
    sys.exit(code)
