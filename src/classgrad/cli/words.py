"""What the words of a command line ask for: seeds, settings, and a plan for each method."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from classgrad.runs.spec import Plan


Methods = Annotated[
    str, typer.Option("--method", "-m", help="A method, several with commas, or all.")
]
NetworkName = Annotated[str | None, typer.Option(help="A network; by default the recipe's choice.")]
Recipe = Annotated[str, typer.Option(help="A recipe by name, or a .toml file.")]
DataDir = Annotated[
    Path | None, typer.Option(envvar="CLASSGRAD_DATA", help="Folder of the datasets.")
]
Device = Annotated[
    str, typer.Option(help="Where to compute: cpu, cuda (or one of several, cuda:1), mps.")
]
SaveMinutes = Annotated[
    float, typer.Option(min=0, help="Save the state after so many minutes within a task.")
]
SaveSteps = Annotated[
    int | None, typer.Option(min=1, help="Save the state after so many steps, too.")
]


def make_plans(
    benchmark: str,
    methods: str,
    network: str | None,
    recipe: str,
    seed: int,
    values: dict[str, Any],
) -> "list[Plan]":
    """Return a plan for each method; a value goes to the methods that have such a setting."""
    from classgrad.methods import METHODS
    from classgrad.methods import kind as find
    from classgrad.runs.spec import make_plan

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if "all" in names:
        names = list(METHODS)
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"--method names '{twice[0]}' twice")
    if not names:
        raise UserError("--method names no method: see 'classgrad list'")
    kinds = [find(name) for name in names]
    plans = []
    for name, kind in zip(names, kinds, strict=True):
        # With several methods, a setting that only another one has is not for this one.
        others = [other for other in kinds if other is not kind]
        own = {
            key: value
            for key, value in values.items()
            if kind.accepts(key) or not any(other.accepts(key) for other in others)
        }
        plans.append(
            make_plan(benchmark, name, network=network, recipe=recipe, seed=seed, values=own)
        )
    return plans


def parse_seeds(text: str, option: str = "--seed") -> list[int]:
    """Read one seed or several.

    >>> parse_seeds("1,2, 3")
    [1, 2, 3]
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f"{option} takes whole numbers from 0 on, for example 1,2,3 (got {text!r})")
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{option} names one seed twice (got {text!r})")
    return seeds


def parse_settings(given: list[str]) -> dict[str, Any]:
    """Read NAME=VALUE pairs; a value is JSON where it can be, else the text itself.

    >>> parse_settings(["eta=0.8", "rule=joint", "correct_only=false"])
    {'eta': 0.8, 'rule': 'joint', 'correct_only': False}
    """
    values: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set takes NAME=VALUE, for example eta=0.8 (got {pair!r})")
        if name in values:
            raise UserError(f"--set gives '{name}' twice")
        values[name] = parse_value(text)
    return values


def parse_grid(given: list[str]) -> dict[str, list[Any]]:
    """Read NAME=VALUE,VALUE,... pairs; values that hold commas are given as a JSON list.

    >>> parse_grid(["eta=0.5,0.7", 'energy=[{"*": 0.9}, 0.95]'])
    {'eta': [0.5, 0.7], 'energy': [{'*': 0.9}, 0.95]}
    """
    grid: dict[str, list[Any]] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(
                f"--over takes NAME=VALUE,VALUE, for example eta=0.5,0.7 (got {pair!r})"
            )
        if name in grid:
            raise UserError(f"--over gives '{name}' twice: give all its values at once")
        whole = parse_value(text)
        words = [word.strip() for word in text.split(",") if word.strip()]
        values = whole if isinstance(whole, list) else [parse_value(word) for word in words]
        if not values:
            raise UserError(f"--over gives '{name}' no value, for example eta=0.5,0.7")
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise UserError(f"--over gives '{name}' the value {shown(repr(twice[0]))} twice")
        grid[name] = values
    return grid


def parse_value(text: str) -> Any:
    """Read a value: JSON where it can be, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text
