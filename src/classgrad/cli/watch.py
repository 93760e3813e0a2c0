"""The command that shows runs in a browser while they go on."""

from pathlib import Path
from typing import Annotated

import typer

from classgrad.cli.report import published_lines
from classgrad.errors import Stopped

EXAMPLES = (
    "Examples: classgrad watch runs | classgrad watch runs --open | "
    "classgrad watch runs/split-cifar100-* --port 9000"
)


def watch(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of runs, or folders that hold such folders.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="By default 8123 or the next free one; 0 takes any free one."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs in a browser, on this machine only; the page follows runs that go on.

    Runs that begin later appear, too: the folders need not exist yet. Ctrl-C ends it.
    """
    import webbrowser

    from classgrad.checkpoints.manager import on_stop_signal
    from classgrad.report.server import WatchedRuns, open_server

    def end(number: int, frame: object) -> None:
        raise Stopped(number)  # no Exception, which the server would take for one of a request

    watched = WatchedRuns(runs, published_lines())
    try:
        with on_stop_signal(end), open_server(watched, port) as server:
            print(f"{server.address}  (Ctrl-C ends)", flush=True)
            if open_page:
                webbrowser.open(server.address)
            server.serve_forever()
    except Stopped as stop:
        raise typer.Exit(128 + stop.number) from None
