"""The commands on datasets: list, check, fetch."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.options import error_message, with_hint
from classgrad.errors import UserError

if TYPE_CHECKING:
    from classgrad.data.loading import Report

app = typer.Typer(
    help="List, check and download the datasets of the benchmarks.", no_args_is_help=True
)

Name = Annotated[str, typer.Argument(help="A dataset, or 'all'; see 'classgrad data list'.")]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        envvar="CLASSGRAD_DATA",
        help="Folder of the datasets; by default in the user's cache.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


def resolve_datasets(name: str) -> list[str]:
    """Return the datasets that a name stands for; 'all' means those the benchmarks use."""
    from classgrad.benchmarks import BENCHMARKS
    from classgrad.data import describe

    if name == "all":
        return list(dict.fromkeys(d for b in BENCHMARKS.values() for d in b.datasets))
    return [describe(name).name]


@app.command("list", epilog="Example: classgrad data list")
def list_datasets(data_dir: Folder = None, as_json: AsJson = False) -> None:
    """List the datasets, the benchmarks that use them, and the folder they are read from."""
    from rich.console import Console
    from rich.table import Table

    from classgrad.benchmarks import BENCHMARKS
    from classgrad.data import DATASETS
    from classgrad.data import data_dir as resolve

    root = resolve(data_dir)
    rows = [
        {
            "name": data.name,
            "title": data.title,
            "train": data.train.count,
            "test": data.test.count,
            "used_by": [b.name for b in BENCHMARKS.values() if data.name in b.datasets],
            "folder": str(root / data.folder),
            "licence": data.licence,
        }
        for data in DATASETS.values()
    ]
    if as_json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("name", "images", "used by", title="datasets", title_justify="left")
    for row in rows:
        used = row["used_by"]
        assert isinstance(used, list)
        table.add_row(str(row["name"]), f"{row['train']:,} + {row['test']:,}", ", ".join(used))
    console = Console()
    console.print(table)
    console.print(f"folder   {root}", soft_wrap=True)


@app.command(epilog="Examples: classgrad data check cifar100 | classgrad data check all --json")
def check(name: Name, data_dir: Folder = None, as_json: AsJson = False) -> None:
    """Compare the files of a dataset with the official release: shapes, counts, content.

    The exit code is 0 if all are complete, else 1.
    """
    from rich.console import Console
    from rich.table import Table

    from classgrad.data import data_dir as resolve
    from classgrad.data.loading import check as check_dataset

    root = resolve(data_dir)
    reports = []
    console = Console(stderr=True)
    for dataset in resolve_datasets(name):
        with console.status(f"checking {dataset}"):
            reports.append(check_dataset(dataset, root))
    if as_json:
        print(json.dumps([as_dict(report) for report in reports], indent=1))
    else:
        table = Table("dataset", "part", "images", "status", "remark")
        for report in reports:
            for finding in report.findings:
                note = with_hint(finding.note, finding.hint)
                table.add_row(
                    report.name, finding.split, f"{finding.count:,}", finding.status, note
                )
        Console().print(table)
    if any(report.status != "complete" for report in reports):
        raise typer.Exit(1)


def as_dict(report: "Report") -> dict[str, Any]:
    """Return a report for JSON, its hints as commands."""
    content = {**asdict(report), "status": report.status}
    for finding in content["findings"]:
        finding["note"] = with_hint(finding["note"], finding.pop("hint"))
    return content


@app.command(epilog="Examples: classgrad data fetch cifar100 | classgrad data fetch all")
def fetch(name: Name, data_dir: Folder = None) -> None:
    """Download a dataset from its official address; checksums are verified before unpacking."""
    from classgrad.data import data_dir as resolve
    from classgrad.data.fetch import fetch as fetch_dataset

    root = resolve(data_dir)
    failed = []
    for dataset in resolve_datasets(name):
        try:
            print(fetch_dataset(dataset, root).note)
        except UserError as error:
            if name != "all":
                raise
            failed.append(dataset)
            print(error_message(error))
    if failed:
        raise UserError(f"not fetched: {', '.join(failed)}; the reasons are above")
