"""Options that several commands share, parsers of their values, and hints that name flags.

An error of the library says what to do without naming a flag or a command. Its `hint` is a key of
`HINTS`, optionally followed by a colon and a value for the braces.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.completion import complete_list, complete_names
from classgrad.errors import Stopped, UserError, shown

if TYPE_CHECKING:
    from classgrad.runs.spec import Plan


HINTS = {
    "card": "classgrad card --json prints it",
    "check_trunk": "in Python, by Learner.load",
    "fetch": "classgrad data fetch {}",
    "force": "--force",
    "fresh": "--fresh starts again",
    "keep": "--keep last",
    "model": "--model",
    "network": "--network mlp",
    "other_folder": "--out names another folder",
    "other_run": "--out names another folder, --fresh starts again",
    "resume": "the same command resumes it",
    "resume_fresh": "the same command without --fresh resumes it",
    "same_classes": "--same-classes merge",
    "skip_bad": "--skip-bad",
    "tensorboard": "--tensorboard",
    "tune": "--tune last",
}


def with_hint(message: str, hint: str | None) -> str:
    """Return a message followed by its hint's flag or command, if it has a hint.

    >>> with_hint("MNIST is missing; fetch it", "fetch:mnist")
    'MNIST is missing; fetch it (classgrad data fetch mnist)'
    """
    name, _, value = (hint or "").partition(":")
    return f"{message} ({HINTS[name].format(value)})" if name in HINTS else message


def error_message(error: UserError) -> str:
    """Return the message of an error as the command line prints it."""
    return with_hint(str(error), error.hint)


@contextmanager
def resumed_without_fresh(fresh: bool) -> Iterator[None]:
    """If a command was given --fresh, let its errors say that it is resumed without that flag."""
    try:
        yield
    except (Stopped, UserError) as error:
        if fresh and error.hint == "resume":
            error.hint = "resume_fresh"
        raise


Benchmark = Annotated[
    str,
    typer.Argument(
        help="A stream of tasks; see 'classgrad list'.",
        autocompletion=complete_names("benchmarks"),
    ),
]
Methods = Annotated[
    str,
    typer.Option(
        "--method",
        "-m",
        help="Methods separated by commas, or all; MODULE:NAME is one of your own.",
        autocompletion=complete_list("methods"),
    ),
]
NetworkName = Annotated[
    str | None,
    typer.Option(
        help="A network; by default that of the recipe.",
        autocompletion=complete_names("networks"),
    ),
]
Weights = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="First weights of the network: a safetensors file."),
]
Recipe = Annotated[
    str,
    typer.Option(
        help="A recipe by name, or a .toml file.", autocompletion=complete_names("recipes")
    ),
]
Out = Annotated[
    str, typer.Option(help="Folder for the results, or a URL such as s3://bucket/folder.")
]
DataDir = Annotated[
    Path | None, typer.Option(envvar="CLASSGRAD_DATA", help="Folder of the datasets.")
]
Device = Annotated[
    str, typer.Option(help="Device to compute on: cpu, cuda (or a certain GPU, cuda:1), mps.")
]
SaveMinutes = Annotated[
    float, typer.Option(min=0, help="Minutes between checkpoints within a task.")
]
SaveSteps = Annotated[
    int | None, typer.Option(min=1, help="Also save a checkpoint after this many steps.")
]


def make_plans(
    benchmark: str,
    methods: str,
    network: str | None,
    recipe: str,
    seed: int,
    values: dict[str, Any],
) -> "list[Plan]":
    """Return a plan for each method; a value is passed to the methods that have the setting."""
    from classgrad.runs.spec import make_plan

    return [
        make_plan(benchmark, name, network=network, recipe=recipe, seed=seed, values=method_values)
        for name, method_values in values_by_method(methods, values).items()
    ]


def values_by_method(methods: str, values: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the values for each method, without those of settings that only another one has."""
    from classgrad.methods import METHODS, own

    names = [name.strip() for name in methods.split(",") if name.strip()]
    if "all" in names:
        names = list(METHODS)
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        raise UserError(f"--method names '{repeated[0]}' twice")
    if not names:
        raise UserError("--method names no method: see 'classgrad list'")
    kinds = [own.find(name) for name in names]
    called = [kind.name for kind in kinds]
    repeated = [name for name in called if called.count(name) > 1]
    if repeated:  # two classes; their runs would have the same names
        raise UserError(f"--method names two methods that are called '{repeated[0]}'")
    return {
        name: {
            key: value
            for key, value in values.items()
            if kind.accepts(key) or not any(other.accepts(key) for other in kinds)
        }
        for name, kind in zip(names, kinds, strict=True)
    }


def parse_seeds(text: str, option: str = "--seed") -> list[int]:
    """Parse seeds separated by commas.

    >>> parse_seeds("1,2, 3")
    [1, 2, 3]
    """
    words = [word.strip() for word in text.split(",") if word.strip()]
    if not words or not all(word.isascii() and word.isdigit() for word in words):
        raise UserError(f"{option} takes whole numbers from 0, for example 1,2,3 (got {text!r})")
    seeds = [int(word) for word in words]
    if len(set(seeds)) < len(seeds):
        raise UserError(f"{option} names a seed twice (got {text!r})")
    return seeds


def parse_settings(given: list[str], weights: Path | None = None) -> dict[str, Any]:
    """Parse NAME=VALUE pairs; a value is JSON if it parses as such, else a string.

    The file of --weights is one more value.

    >>> parse_settings(["eta=0.8", "reading=text", "correct_only=false"])
    {'eta': 0.8, 'reading': 'text', 'correct_only': False}
    """
    values: dict[str, Any] = {}
    for pair in given:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise UserError(f"--set takes NAME=VALUE, for example eta=0.8 (got {pair!r})")
        if name in values:
            raise UserError(f"--set gives '{name}' twice")
        values[name] = parse_value(text)
    if weights is not None:
        if "weights" in values:
            raise UserError("--weights and --set weights are the same: give one of them")
        values["weights"] = str(weights)
    return values


def parse_grid(given: list[str]) -> dict[str, list[Any]]:
    """Parse NAME=VALUE,VALUE,... pairs; values that contain commas are given as a JSON list.

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
        parsed = parse_value(text)
        words = [word.strip() for word in text.split(",") if word.strip()]
        values = parsed if isinstance(parsed, list) else [parse_value(word) for word in words]
        if not values:
            raise UserError(f"--over gives '{name}' no value: give some, for example eta=0.5,0.7")
        repeated = [value for value in values if values.count(value) > 1]
        if repeated:
            raise UserError(f"--over gives '{name}' the value {shown(repr(repeated[0]))} twice")
        grid[name] = values
    return grid


def parse_value(text: str) -> Any:
    """Parse a value: JSON if it parses as such, else a string."""
    try:
        return json.loads(text)
    except ValueError:
        return text
