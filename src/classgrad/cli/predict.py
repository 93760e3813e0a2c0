"""The command predict: classes of images, by a learner."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli.options import Device
from classgrad.cli.state import Model, SkipBad, State, load_learner, print_warnings
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
        typer.Option(help="Their task, if it is known; by default all tasks."),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            help="Predict by statistics of all classes, by confidence (of each task's classifier) "
            "or by prototypes; by default the first that the learner has."
        ),
    ] = None,
    unknown: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="Call images none of these that resemble no class, so that at most this share of "
            "images of known classes is: 0.05, for example. By statistics only.",
        ),
    ] = 0.0,
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show per image.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV and nothing else.")] = False,
    batch_size: Annotated[
        int,
        typer.Option(
            min=1, help="Images at once; more are faster, and may be rounded differently."
        ),
    ] = 1,
    model: Model = None,
    device: Device = "cpu",
    skip_bad: SkipBad = False,
) -> None:
    """Predict the classes of images.

    By statistics, probabilities are relative to all classes, or to those of the task that is given;
    by confidence and by prototypes, to the classes of one task.
    """
    from rich.console import Console

    from classgrad.data.pictures import read_pictures
    from classgrad.report.text import bar

    if as_json and as_csv:
        raise UserError("--json and --csv contradict each other: give one of them")
    messages = Console(stderr=True, markup=False, highlight=False)
    learner = load_learner(state, model, device)
    print_warnings(messages, learner)
    if task is not None:
        learner.task_number(task)  # refuses an unknown task before images are read
    if by is None and learner.classifier is None:
        by = learner.default_way(task)
        messages.print(f"this learner has no class statistics: predicting by {by}")
    if unknown and (by or learner.default_way(task)) != "statistics":
        raise UserError("--unknown needs class statistics: leave it out, or predict by statistics")
    with bar(messages, "reading", transient=True) as move:
        pictures, files, skipped = read_pictures(
            images, learner.size, skip_bad, lambda done, count: move(done / count, f"{done:,}")
        )
    for file, reason in skipped:
        messages.print(f"skipped '{file}': {reason}", soft_wrap=True)
    predictions: list[Prediction] = []
    with bar(messages, "predicting", transient=True) as move:
        for batch in pictures.split(batch_size):
            predictions += learner.predict(
                batch, task, by=by, unknown=unknown, batch_size=batch_size
            )
            move(len(predictions) / len(files), f"{len(predictions):,}")
    if not predictions[0].ranking:
        raise UserError("all classes that could be predicted are forgotten")
    show_predictions(files, predictions, top, as_json, as_csv)


def show_predictions(
    files: list[Path], predictions: "list[Prediction]", top: int, as_json: bool, as_csv: bool
) -> None:
    """Print the most probable classes of each file."""
    from rich.console import Console
    from rich.table import Table

    if as_json:
        lines = [
            {
                "file": str(file),
                "known": prediction.known,
                "p_value": prediction.p_value,
                "classes": [
                    {"class": guess.name, "task": guess.task, "probability": guess.probability}
                    for guess in prediction.ranking[:top]
                ],
            }
            for file, prediction in zip(files, predictions, strict=True)
        ]
        print(json.dumps(lines, indent=1))
        return
    rows = [
        (str(file), guess.name, guess.task, guess.probability, prediction)
        for file, prediction in zip(files, predictions, strict=True)
        for guess in prediction.ranking[:top]
    ]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["file", "class", "task", "probability", "known", "p_value"])
        for *values, prediction in rows:
            p_value = "" if prediction.p_value is None else prediction.p_value
            writer.writerow([*values, str(prediction.known).lower(), p_value])
        return
    table = Table("file", "class", "task", "probability")
    for column in table.columns:
        column.overflow = "fold"
    for file, name, task, probability, prediction in rows:
        known = name if prediction.known else f"none of these (nearest: {name})"
        table.add_row(file, known, task, f"{probability:.3f}")
    Console(markup=False).print(table)
