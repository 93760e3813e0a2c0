"""What commands say while they work: a bar on a terminal, else lines; or messages, as JSON.

All of it goes through the logger `classgrad`, see `training/log.py`; the log of a command shows it.
What cannot be written is lost, and stops nothing.
"""

import json
import logging
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.options import with_hint
from classgrad.errors import Stopped, UserError, shown

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from typing import TextIO

    from rich.console import Console

    from classgrad.report.text import Move

Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Print warnings and the result, nothing else.")
]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Print a line for every epoch, however short.")
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log",
        metavar="text|json",
        help="Print lines, or one JSON object per line on standard output (docs/reproduce.md); "
        "by default a bar on a terminal, else lines.",
    ),
]
TRAINING = ("task", "epoch", "progress")  # events that a bar shows as well


class TextLog:
    """Lines on a console, which is for the result as well; on a terminal, bars.

    `notes` is the console for everything but the result, and `title` names the current run.
    """

    def __init__(
        self, console: "Console", *, quiet: bool = False, verbose: bool = False, lines: bool = False
    ) -> None:
        from rich.console import Console

        self.console, self.quiet, self.verbose = console, quiet, verbose
        self.notes = Console(quiet=True) if quiet else console
        self.has_bars = console.is_interactive and not lines and not quiet
        self.title = ""

    def start(self, title: str, place: str, plan: str | None = None) -> None:
        """Begin with a run."""
        self.title = title

    def end(self, **values: Any) -> None:
        """End with the current run: the result says the rest."""

    def take(self, record: logging.LogRecord) -> None:
        """Print a line of the log, but not what a bar shows."""
        from classgrad.report.text import print_line
        from classgrad.training.log import as_message

        message = as_message(record)
        if message["event"] in TRAINING and self.has_bars and not self.verbose:
            return
        text = f"{self.title}: {message['text']}" if self.title else record.getMessage()
        print_line(self.console, with_hint(text, message.get("hint")))

    def bar(self, title: str) -> "AbstractContextManager[Move]":
        """Show how far something is that the log says nothing of."""
        from classgrad.report.text import bar, lines_for

        if self.has_bars:
            return bar(self.console, title)
        return nullcontext(lines_for(title, self.notes))


class JsonLog:
    """Messages as lines of JSON; `console`, for everything else, is standard error."""

    has_bars = False

    def __init__(self, output: "TextIO", *, quiet: bool = False, verbose: bool = False) -> None:
        from rich.console import Console

        self.output, self.quiet, self.verbose = output, quiet, verbose
        self.console = Console(stderr=True, markup=False, highlight=False)
        self.notes = Console(quiet=True) if quiet else self.console
        self.run: dict[str, str] = {}  # the current one, by its title

    def send(self, message: Mapping[str, Any]) -> None:
        """Write a message, with the time and the current run."""
        from classgrad.training.log import timestamp

        first = {"event": message["event"], "time": timestamp(time.time()), **self.run}
        with suppress(OSError):
            print(json.dumps({**first, **message}), file=self.output, flush=True)

    def start(self, title: str, place: str, plan: str | None = None) -> None:
        """Begin with a run."""
        self.run = {"run": title} if title else {}
        self.send({"event": "start", "folder": place, "plan": plan})

    def end(self, **values: Any) -> None:
        """End with the current run, if there is one, else with the command."""
        self.send({"event": "end", **values})
        self.run = {}

    def take(self, record: logging.LogRecord) -> None:
        """Send a line of the log."""
        from classgrad.training.log import as_message

        self.send(as_message(record))

    def bar(self, title: str) -> "AbstractContextManager[Move]":
        """Say on standard error how far something is that the log says nothing of."""
        from classgrad.report.text import lines_for

        return nullcontext(lines_for(title, self.notes))


Log = TextLog | JsonLog


@contextmanager
def open_log(
    form: str | None,
    *,
    quiet: bool,
    verbose: bool,
    as_json: bool = False,
    several: bool = False,
    highlight: bool = True,
    is_main_process: bool = True,
) -> Iterator[Log]:
    """Yield the log of a command; with `as_json` standard output is for its result alone.

    Of its messages, an error is the last; a command with `several` runs has an end in any case.
    When nothing reads messages any more, this process gets SIGTERM.
    """
    from rich.console import Console

    from classgrad.training.log import handled

    if form not in (None, "text", "json"):
        raise UserError(f"--log takes text or json (got '{shown(form)}')")
    if quiet and verbose:
        raise UserError("--quiet and --verbose contradict each other: give one of them")
    if form == "json" and as_json:
        raise UserError("--log json and --json both print JSON: give one of them")
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    if form != "json":
        console = Console(
            stderr=as_json, markup=False, highlight=highlight, quiet=not is_main_process
        )
        text_log = TextLog(console, quiet=quiet, verbose=verbose, lines=form == "text")
        with handled(text_log.take, level):
            yield text_log
        return
    with ExitStack() as stack:
        output = sys.stdout if is_main_process else stack.enter_context(open(os.devnull, "w"))
        log = JsonLog(output, quiet=quiet, verbose=verbose)
        threading.Thread(target=stop_without_reader, daemon=True).start()
        try:
            with redirect_stdout(sys.stderr), handled(log.take, level):
                yield log
            if several:
                log.end(end="done")
        except (UserError, Stopped, KeyboardInterrupt) as error:
            from classgrad.experiments.jobs import end_message

            log.end(**end_message(error))
            raise


def stop_without_reader() -> None:
    """Wait until nothing reads standard output any more, then send SIGTERM to this process."""
    poll = select.poll()
    poll.register(1, 0)  # no event but an error, which is that the other end is closed
    poll.poll()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the next line would fail to be written
    os.kill(os.getpid(), signal.SIGTERM)
