"""The commands list and show: what can be run, and the records of finished runs."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from classgrad.runs.record import RunRecord

LIST_EXAMPLES = "Examples: classgrad list | classgrad list cgp | classgrad list --json"
SHOW_EXAMPLES = (
    "Examples: classgrad show runs | classgrad show runs/permuted-digits-cgp-seed1-... | "
    "classgrad show runs/*cgp*"
)


def list_tables(
    name: Annotated[
        str | None,
        typer.Argument(
            help="List the settings of this method, benchmark or network, or of training."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List methods, benchmarks, networks, recipes and experiments; or the settings of one."""
    from rich.console import Console
    from rich.table import Table

    from classgrad.cli import tables

    listed = tables.all_tables() if name is None else {name: tables.settings_of(name)}
    if as_json:
        print(json.dumps(listed, indent=1))
        return
    for title, entries in listed.items():
        table = Table("name", "what it is", title=title, title_justify="left")
        for entry, summary in entries.items():
            table.add_row(entry, summary)
        Console().print(table)


def show(
    runs: Annotated[list[str], typer.Argument(help="Runs, or folders of them.")],
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the records as JSON and nothing else.")
    ] = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print means over seeds as a Markdown table.")
    ] = False,
) -> None:
    """Show the record of a run, or compare several."""
    from rich.console import Console

    from classgrad.cli.report import read_records

    records = read_records([Path(run) for run in runs])
    if as_json:
        contents = [json.loads(record.to_json()) for record in records]
        print(json.dumps(contents[0] if len(contents) == 1 else contents, indent=1))
        return
    if as_markdown:
        from classgrad.report.terminal import markdown

        print(markdown(records), end="")
        return
    show_records(Console(markup=False), records)


def show_records(console: "Console", records: "list[RunRecord]") -> None:
    """Print a comparison; for one run also its accuracy matrix and the ranks of its layers."""
    from classgrad.report import terminal as report

    several_seeds = len(report.summaries(records)) < len(records)
    console.print(report.means(records) if several_seeds else report.comparison(records))
    if len(records) == 1:
        console.print(report.matrix_table(records[0]))
        if records[0].layers:
            console.print(report.rank_table(records[0]))
    if any(not record.complete for record in records):
        console.print("Some runs are not finished: their figures cover the tasks learnt so far.")
