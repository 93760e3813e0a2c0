"""The command show: the records of finished runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.report import experiment_lines, read_records
from classgrad.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.runs.record import RunRecord

SHOW_EXAMPLES = (
    "Examples: classgrad show runs | classgrad show runs/permuted-digits-cgp-seed1-... | "
    "classgrad show runs/*cgp*"
)


def show(
    runs: Annotated[list[str], typer.Argument(help="Runs, or folders of them.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the records as JSON and nothing else.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print means over seeds as a Markdown table.")
    ] = False,
    details: Annotated[
        bool,
        typer.Option(
            "--details", help="Of one run, also show losses, the energy held, and stability."
        ),
    ] = False,
) -> None:
    """Show the record of a run, or compare several."""
    from rich.console import Console

    records = read_records([Path(run) for run in runs])
    if as_json:
        contents = [json.loads(record.to_json()) for record in records]
        print(json.dumps(contents[0] if len(contents) == 1 else contents, indent=1))
        return
    if as_markdown:
        from classgrad.report.terminal import markdown

        print(markdown(records, experiment_lines(records)), end="")
        return
    if details and len(records) > 1:
        raise UserError(f"--details are those of one run, and these are {len(records)}: give one")
    show_records(Console(markup=False), records, details=details)


def show_records(console: "Console", records: "list[RunRecord]", *, details: bool = False) -> None:
    """Print a comparison; for one run also its accuracy matrix and the ranks of its layers."""
    from classgrad.report import details as more
    from classgrad.report import terminal as report

    lines = experiment_lines(records) if len(records) > 1 else []  # one need not be told apart
    console.print(report.comparison(records, lines))
    if len(records) == 1:
        console.print(report.matrix_table(records[0], console.width))
        if records[0].layers:
            console.print(report.rank_table(records[0], console.width))
        for table in more.tables(records[0]) if details else []:
            console.print(table)
        for line in more.in_short(records[0]):
            console.print(line, soft_wrap=True)
    if any(not record.complete for record in records):
        console.print("Some runs are not finished: their figures cover the tasks learnt so far.")
