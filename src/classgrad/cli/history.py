"""The commands undo and diff: the state of a learner before, and what differs between two."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.state import (
    Model,
    SkipBad,
    State,
    load_learner,
    one_of,
    refuse_other_kind,
)
from classgrad.errors import counted, shown

if TYPE_CHECKING:
    from classgrad.learner.history import Differences
    from classgrad.learner.info import Info

app = typer.Typer()
SHOWN = 20  # images or sentences with another prediction


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
        f"undone: '{state}' has {counted(len(after.tasks), 'task')}, as of "
        f"{after.tasks[-1].when[:10]}",
        soft_wrap=True,
    )
    print_differences(console, compare(before, after), after)


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
    sentences: Annotated[
        list[Path] | None, typer.Option(help="Or a file of sentences, for the same.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    model: Model = None,
    skip_bad: SkipBad = False,
) -> None:
    """Show what differs between two learners: classes, their images, settings, predictions."""
    from rich.console import Console

    from classgrad.learner.history import compare
    from classgrad.learner.info import read

    differences = compare(read(first), read(second))
    answers, several = None, ""
    if images or sentences:
        several = one_of(images=images, sentences=sentences)
        given: list[Any] = [*(images or []), *(sentences or [])]
        answers = predictions(several, given, [first, second], model, skip_bad)
    if as_json:
        content = asdict(differences) | {"predictions": answers}
        print(json.dumps(content, indent=1))
        return
    console = Console(markup=False, highlight=False)
    print_differences(console, differences, read(second))
    if answers is None:
        return
    changed = [one for one in answers if one["first"] != one["second"]]
    console.print(f"{several:<10} {len(changed)} of {len(answers)} predictions differ")
    for one in changed[:SHOWN]:
        what, old, new = one.values()
        console.print(f"{'':<10} {shown(what)}: {old}, {new}", soft_wrap=True)
    if len(changed) > SHOWN:
        console.print(f"{'':<10} and {len(changed) - SHOWN} more: --json has all")


def predictions(
    several: str, given: list[Any], states: list[Path], model: str | None, skip_bad: bool
) -> list[dict[str, str]]:
    """Return what two learners predict for each image or sentence."""
    answers: list[list[str]] = []
    for state in states:
        learner = load_learner(state, model)
        refuse_other_kind(f"'{state}'", type(learner.kind), several)
        inputs, sources = learner.kind.read_all(given, skip_bad)
        predicted = learner.predict(inputs)  # nothing, if all classes are forgotten
        answers.append([f"{one.task}/{one.name}" if one.ranking else "-" for one in predicted])
    return [
        {learner.kind.source: str(source), "first": old, "second": new}
        for source, old, new in zip(sources, *answers, strict=True)
    ]


def print_differences(console: Any, differences: "Differences", after: "Info") -> None:
    """Print what differs, a line for each kind."""
    from classgrad.learner.kinds import named_kind

    several = named_kind(after.settings["network"]).several

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
    line(several, pairs(differences.images))
    line("settings", pairs(differences.settings))
    line("accuracy", pairs(rounded))
    if not any(asdict(differences).values()):
        console.print(f"no differences in classes, {several}, settings or accuracy")
