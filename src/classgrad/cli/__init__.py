"""The command line: runs (run, show, report, watch, reproduce, sweep, tune, ...) and learners.

Commands import torch and other slow packages when they are called, so that --help stays fast.
"""

import atexit
import gc
import importlib
import os
import sys
from typing import Annotated, Any, NoReturn

import typer

from classgrad import __version__
from classgrad.cli import (
    card,
    data,
    doctor,
    history,
    info,
    learn,
    lists,
    predict,
    report,
    reproduce,
    run,
    show,
    tune,
)
from classgrad.cli.options import HINTS, error_message
from classgrad.errors import RequirementNotMet, Stopped, UserError, shown


def click_exception(exported: type[Exception]) -> Any:
    """Return the base class of all errors in a command line, given one that typer exports.

    Some versions of typer use click, others a copy of it. Both define all their errors in one
    module.
    """
    return importlib.import_module(exported.__module__).ClickException


COMMAND_LINE_ERROR = click_exception(typer.BadParameter)
app = typer.Typer(
    name="classgrad",
    epilog="Start with: classgrad run",
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)


def print_version(wanted: bool) -> None:
    """Print the version and end, if that is wanted."""
    if wanted:
        print(f"classgrad {__version__}")
        raise typer.Exit


@app.callback()
def classgrad(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=print_version),
    ] = False,
) -> None:
    """Continual learning by gradient projection: learn tasks one after another, keep the old."""


# The help lists commands in this order.
app.command(epilog=run.EXAMPLES)(run.run)
app.command("list", epilog=lists.EXAMPLES)(lists.list_tables)
app.command(epilog=show.SHOW_EXAMPLES)(show.show)
app.command(epilog=report.REPORT_EXAMPLES)(report.report)
app.command(epilog=report.WATCH_EXAMPLES)(report.watch)
app.registered_commands += reproduce.app.registered_commands
app.command(epilog=tune.EXAMPLES)(tune.tune)
for group in (learn.app, predict.app, info.app, card.app, history.app):
    app.registered_commands += group.registered_commands
app.command(epilog=info.EXPORT_EXAMPLES)(info.export)
app.command(epilog=doctor.EXAMPLES)(doctor.doctor)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; print an error a user can put right as one line, and exit with 2."""
    arguments = sys.argv[1:]
    # Python would search everything, torch included, for cycles before it ends.
    atexit.register(gc.freeze)
    try:
        refuse_torchrun(arguments)
        sys.exit(app(arguments, standalone_mode=False))
    except RequirementNotMet as error:
        fail(error_message(error), code=3)
    except UserError as error:
        fail(error_message(error))
    except COMMAND_LINE_ERROR as error:
        if not error.format_message():  # no command was given, and the help is printed already
            sys.exit(2)
        fail(error.format_message())
    except Stopped as stop:
        fail(f"stopped; {HINTS[stop.hint]}", code=128 + stop.number)
    except typer.Abort:
        fail("stopped", code=130)
    except KeyboardInterrupt:
        fail("stopped", code=130)


def refuse_torchrun(arguments: list[str]) -> None:
    """Refuse commands that would do the same in every process that torchrun starts."""
    command = arguments[0] if arguments and not arguments[0].startswith("-") else "run"
    if not started_alone() and command != "run":
        raise UserError(f"only 'run' is for torchrun: start '{shown(command)}' without it")


def started_alone() -> bool:
    """Tell whether this process is not one of several that torchrun has started."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def fail(message: str, code: int = 2) -> NoReturn:
    """Print an error as one line of standard error, in one of several processes, and exit."""
    line = f"classgrad: {' '.join(message.split())}"
    if started_alone():
        print(line, file=sys.stderr, flush=True)
        sys.exit(code)
    from classgrad.distributed import leave, world

    if world().speaker.speaks():
        print(line, file=sys.stderr, flush=True)
    world().speaker.spoken()
    leave()  # threads that carry messages could abort the process at its end
    sys.exit(code)
