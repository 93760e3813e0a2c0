"""The command list: what can be run, and what each entry has."""

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli import tables
from classgrad.cli.completion import complete_entry, complete_names

if TYPE_CHECKING:
    from rich.console import Console

EXAMPLES = (
    "Examples: classgrad list | classgrad list cgp | classgrad list cgp --benchmark split-cifar100 "
    "| classgrad list fast | classgrad list cifar100 | classgrad list --json"
)


def list_tables(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A method, benchmark, network, recipe or experiment, or training, to show.",
            autocompletion=complete_entry,
        ),
    ] = None,
    benchmark: Annotated[
        str | None,
        typer.Option(
            "--benchmark",
            "-b",
            help="Show also the values that the recipe has on this benchmark.",
            autocompletion=complete_names("benchmarks"),
        ),
    ] = None,
    recipe: Annotated[
        str,
        typer.Option(
            help="With --benchmark: a recipe by name, or a .toml file.",
            autocompletion=complete_names("recipes"),
        ),
    ] = "fast",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
) -> None:
    """List methods, benchmarks, networks, recipes and experiments; or what one of them has."""
    from rich.console import Console

    console = Console(markup=False)  # descriptions may contain brackets
    if benchmark is not None:
        print_settings(console, name or benchmark, benchmark, recipe, as_json)
        return
    listed = tables.all_tables() if name is None else tables.what_it_has(name)
    if as_json:
        print(json.dumps(listed, indent=1))
        return
    for title, rows in listed.items():
        print_table(console, title, ("name", "what it is"), rows.items())
    if name in tables.all_tables()["methods"] and tables.settings(name):
        console.print(
            f"recipes have other values: classgrad list {name} --benchmark split-cifar100",
            soft_wrap=True,
        )


def print_settings(
    console: "Console", name: str, benchmark: str, recipe: str, as_json: bool
) -> None:
    """Print the settings of an entry with their defaults and a recipe's values on a benchmark."""
    from classgrad.runs import recipes

    loaded = recipes.load(recipe)
    found = tables.settings_in_recipe(name, benchmark, loaded)
    if as_json:
        print(json.dumps(found, indent=1))
        return
    of_method = f"{name} on " if name in tables.all_tables()["methods"] else ""
    network = name if name in tables.all_tables()["networks"] else loaded.network_for(benchmark)
    console.print(
        f"{of_method}{benchmark} with recipe {loaded.name}: network {network}. Where the recipe "
        "has no value, the default is used.",
        soft_wrap=True,
    )
    for title, entries in found.items():
        rows = [
            (
                label,
                tables.as_text(entry["default"]),
                tables.as_text(entry["value"]) if "value" in entry else "",
                entry["description"],
            )
            for label, entry in entries.items()
        ]
        print_table(console, title, ("name", "default", loaded.name, "what it is"), rows)


def print_table(
    console: "Console", title: str, columns: Iterable[str], rows: Iterable[Iterable[str]]
) -> None:
    """Print a table with a title, or say that there is nothing in it."""
    from rich.table import Table

    rows = list(rows)
    if not rows:
        console.print(f"{title} has no settings")
        return
    table = Table(*columns, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    console.print(table)
