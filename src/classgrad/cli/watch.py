"""The command watch: a page in the browser that follows running runs."""

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
        list[Path], typer.Argument(help="Folders of runs, or folders that contain such folders.")
    ],
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="By default 8123 or the next free port; 0 takes any free port."
        ),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show runs in a browser, on this machine only; the page is updated while they run.

    Runs that start later appear, too: their folders need not exist yet. Stop with Ctrl-C.
    """
    import webbrowser

    from classgrad.checkpoints.manager import on_stop_signal
    from classgrad.report.server import WatchedRuns, open_server

    def stop_server(number: int, frame: object) -> None:
        raise Stopped(number)  # the server handles any Exception as one of a request

    watched = WatchedRuns(runs, published_lines())
    try:
        with on_stop_signal(stop_server), open_server(watched, port) as server:
            print(f"{server.address}  (Ctrl-C to stop)", flush=True)
            if open_page:
                webbrowser.open(server.address)
            server.serve_forever()
    except Stopped as stop:
        raise typer.Exit(128 + stop.number) from None
