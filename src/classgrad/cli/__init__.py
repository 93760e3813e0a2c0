"""The command line: runs (run, list, show, report, watch, reproduce, sweep, data) and learners.

What is heavy is imported inside the commands.
"""

import os
import sys
from typing import Any, NoReturn

import typer

from classgrad.cli import data, export, info, learn, predict, report, reproduce, run, show, watch
from classgrad.cli.hints import told
from classgrad.errors import Stopped, UserError, shown

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
# In the order of the help.
app.command(epilog=run.EXAMPLES)(run.run)
app.command("list", epilog=show.LIST_EXAMPLES)(show.list_tables)
app.command(epilog=show.SHOW_EXAMPLES)(show.show)
app.command(epilog=report.EXAMPLES)(report.report)
app.command(epilog=watch.EXAMPLES)(watch.watch)
for part in (reproduce.app, learn.app, predict.app, info.app):
    app.registered_commands += part.registered_commands
app.command(epilog=export.EXAMPLES)(export.export)
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line; what a user can put right is one line on standard error, code 2."""
    try:
        refuse_several(sys.argv[1:])
        sys.exit(app(standalone_mode=False))
    except UserError as error:
        fail(told(error))
    except CLICK_ERROR as error:
        if not error.format_message():  # no command was given, and the help is printed already
            sys.exit(2)
        fail(error.format_message())
    except Stopped as stop:
        fail("stopped; the same command goes on from here", code=128 + stop.number)
    except typer.Abort:
        fail("stopped", code=130)
    except KeyboardInterrupt:
        fail("stopped", code=130)


def refuse_several(words: list[str]) -> None:
    """Refuse commands that torchrun starts several times and that would all do the same."""
    command = words[0] if words and not words[0].startswith("-") else "run"
    if os.environ.get("WORLD_SIZE", "1") != "1" and command != "run":
        raise UserError(f"only 'run' is for torchrun: start '{shown(command)}' without it")


def fail(message: str, code: int = 2) -> NoReturn:
    """Say what is wrong on one line of standard error, and leave; one of several processes does."""
    from classgrad.distributed import leave, world

    if "--fresh" in sys.argv:
        message = message.replace("same command goes on", "same command without --fresh goes on")
    if world().speaker.speaks():
        print(f"classgrad: {' '.join(message.split())}", file=sys.stderr, flush=True)
    world().speaker.spoken()
    leave()  # threads that carry messages could abort the process at its end
    sys.exit(code)
