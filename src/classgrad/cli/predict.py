"""The command that asks a learner: predict."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.state import Model, SkipBad, State, opened, tell_warnings
from classgrad.cli.words import Device
from classgrad.errors import UserError

if TYPE_CHECKING:
    from classgrad.prediction.calibration import Prediction

app = typer.Typer()


@app.command(
    epilog="Examples: classgrad predict state photo.jpg | classgrad predict state photos --task "
    "birds --top 3 | classgrad predict state photos --csv"
)
def predict(
    state: State,
    images: Annotated[list[str], typer.Argument(help="Images, or folders of images.")],
    task: Annotated[
        str | None,
        typer.Option(help="Their task, if it is known; else the surest one is believed."),
    ] = None,
    by: Annotated[
        str, typer.Option(help="confidence: of each task's own classifier; or prototypes.")
    ] = "confidence",
    top: Annotated[int, typer.Option(min=1, help="How many classes to show for an image.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="Images at once; more are faster, and may round otherwise.")
    ] = 1,
    model: Model = None,
    device: Device = "cpu",
    skip_bad: SkipBad = False,
) -> None:
    """Tell the classes of images.

    Probabilities are among the classes of one task.
    """
    from rich.console import Console

    from classgrad.data.pictures import read_pictures
    from classgrad.report.bar import bar

    if as_json and as_csv:
        raise UserError("--json and --csv contradict each other: give one of them")
    aside = Console(stderr=True, markup=False, highlight=False)
    learner = opened(state, model, device)
    tell_warnings(aside, learner)
    if task is not None:
        learner.task_number(task)  # refuses an unknown one before images are read
    with bar(aside, "reading", transient=True) as move:
        pictures, files, skipped = read_pictures(
            images, learner.size, skip_bad, lambda done, count: move(done / count, f"{done:,}")
        )
    for file, reason in skipped:
        aside.print(f"left out '{file}': {reason}", soft_wrap=True)
    found: list[Prediction] = []
    with bar(aside, "predicting", transient=True) as move:
        for some in pictures.split(batch_size):
            found += learner.predict(some, task, by=by, batch_size=batch_size)
            move(len(found) / len(files), f"{len(found):,}")
    if not found[0].ranking:
        raise UserError("all classes that could be told are forgotten")
    show_predictions(files, found, top, as_json, as_csv)


def show_predictions(
    files: list[Path], found: "list[Prediction]", top: int, as_json: bool, as_csv: bool
) -> None:
    """Print the likeliest classes of each file."""
    from rich.console import Console
    from rich.table import Table

    if as_json:
        lines = [
            {
                "file": str(file),
                "classes": [
                    {"class": one.name, "task": one.task, "probability": one.probability}
                    for one in prediction.ranking[:top]
                ],
            }
            for file, prediction in zip(files, found, strict=True)
        ]
        print(json.dumps(lines, indent=1))
        return
    rows = [
        (str(file), guess.name, guess.task, guess.probability)
        for file, prediction in zip(files, found, strict=True)
        for guess in prediction.ranking[:top]
    ]
    if as_csv:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(["file", "class", "task", "probability"])
        table.writerows(rows)
        return
    shown = Table("file", "class", "task", "probability")
    for column in shown.columns:
        column.overflow = "fold"
    for *words, probability in rows:
        shown.add_row(*words, f"{probability:.3f}")
    Console(markup=False).print(shown)
