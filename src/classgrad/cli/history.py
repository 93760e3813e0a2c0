"""The commands undo and diff: the state of a learner before, and what differs between two."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.state import Model, SkipBad, State, load_learner

if TYPE_CHECKING:
    from classgrad.learner.history import Differences

app = typer.Typer()
SHOWN = 20  # images with another prediction


@app.command(epilog="Examples: classgrad undo state")
def undo(state: State) -> None:
    """Return a learner to its state before the last learn.

    Two states are kept, so this works once; 'learn --keep 10' keeps more. A forgotten class cannot
    be brought back.
    """
    from rich.console import Console

    from classgrad.learner.history import compare
    from classgrad.learner.history import undo as undo_last
    from classgrad.learner.info import read

    before = read(state)
    undo_last(state)
    after = read(state)
    console = Console(markup=False, highlight=False)
    console.print(
        f"undone: '{state}' has {len(after.tasks)} tasks, as of {after.tasks[-1].when[:10]}",
        soft_wrap=True,
    )
    print_differences(console, compare(before, after))


@app.command(
    epilog="Examples: classgrad diff state backup/state | classgrad diff state new --images photos"
)
def diff(
    first: Annotated[Path, typer.Argument(help="Folder of a learner.")],
    second: Annotated[Path, typer.Argument(help="Folder of another, or of a copy of it.")],
    images: Annotated[
        list[str] | None,
        typer.Option(help="An image or a folder of images, to compare predictions."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    model: Model = None,
    skip_bad: SkipBad = False,
) -> None:
    """Show what differs between two learners: classes, images, settings, predictions."""
    from rich.console import Console

    from classgrad.learner.history import compare
    from classgrad.learner.info import read

    differences = compare(read(first), read(second))
    answers = predictions(images, [first, second], model, skip_bad) if images else None
    if as_json:
        content = asdict(differences) | {"predictions": answers}
        print(json.dumps(content, indent=1))
        return
    console = Console(markup=False, highlight=False)
    print_differences(console, differences)
    if answers is None:
        return
    changed = [one for one in answers if one["first"] != one["second"]]
    console.print(f"{'images':<10} {len(changed)} of {len(answers)} predictions differ")
    for one in changed[:SHOWN]:
        console.print(f"{'':<10} {one['file']}: {one['first']}, {one['second']}", soft_wrap=True)
    if len(changed) > SHOWN:
        console.print(f"{'':<10} and {len(changed) - SHOWN} more: --json has all")


def predictions(
    images: list[str], states: list[Path], model: str | None, skip_bad: bool
) -> list[dict[str, str]]:
    """Return what two learners predict for each image."""
    from classgrad.data.pictures import read_pictures

    answers: list[list[str]] = []
    for state in states:
        learner = load_learner(state, model)
        pictures, files, _ = read_pictures(images, learner.size, skip_bad)
        predicted = learner.predict(pictures)  # nothing, if all classes are forgotten
        answers.append([f"{one.task}/{one.name}" if one.ranking else "-" for one in predicted])
    return [
        {"file": str(file), "first": old, "second": new}
        for file, old, new in zip(files, *answers, strict=True)
    ]


def print_differences(console: Any, differences: "Differences") -> None:
    """Print what differs, a line for each kind."""

    def line(title: str, text: str) -> None:
        if text:
            console.print(f"{title:<10} {text}", soft_wrap=True)

    def pairs(values: dict[str, tuple[Any, Any]]) -> str:
        return ", ".join(f"{name} {old} to {new}" for name, (old, new) in values.items())

    def percent(value: float | None) -> str:
        return "unknown" if value is None else f"{value:.1f} %"

    rounded = {
        name: (percent(old), percent(new)) for name, (old, new) in differences.accuracy.items()
    }
    line("removed", ", ".join(differences.removed))
    line("added", ", ".join(differences.added))
    line("images", pairs(differences.images))
    line("settings", pairs(differences.settings))
    line("accuracy", pairs(rounded))
    if not any(asdict(differences).values()):
        console.print("no differences in classes, images, settings or accuracy")
