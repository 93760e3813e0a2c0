"""The command doctor: tries what classgrad needs on this machine, and says what came of it."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from classgrad.cli.data import Folder

EXAMPLES = "Examples: classgrad doctor | classgrad doctor --data-dir /data --json"


def doctor(
    data_dir: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """Try what classgrad needs on this machine: learn, decode pictures, write, draw a page.

    The exit code is 1 if something that everything else needs has failed.
    """
    from rich.console import Console
    from rich.table import Table

    from classgrad.cli.checks import attempt, checks

    console = Console(markup=False, highlight=False)
    results = []
    for check in checks(data_dir):
        with Console(stderr=True).status(f"trying {check.name}"):
            results.append(attempt(check))
        if not as_json:
            result = results[-1]
            row = Table.grid(padding=(0, 2))
            row.add_column(width=6)
            row.add_column(width=11)
            row.add_column()
            row.add_row(result.status, result.name, result.found)
            row.add_row("", "", f"> {result.advice}")
            console.print(row)
    failed = [result.name for result in results if result.status == "failed" and result.essential]
    if as_json:
        print(json.dumps({"ok": not failed, "checks": [asdict(one) for one in results]}, indent=1))
    if failed:
        raise typer.Exit(1)
