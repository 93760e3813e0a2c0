"""The command predict: classes of images, by a learner."""

import csv
import json
import sys
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
    images: Annotated[
        list[str], typer.Argument(help="Images, or folders with images at any depth.")
    ],
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

    An image that cannot be read has a row that says why, unless --skip-bad leaves it out. By
    statistics, probabilities are relative to all classes, or to those of the task that is given; by
    confidence and by prototypes, to the classes of one task.
    """
    from rich.console import Console

    from classgrad.data.pictures import none_readable, try_pictures
    from classgrad.prediction.calibration import with_unreadable
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
        pictures, files, bad = try_pictures(
            images, learner.size, lambda done, count: move(done / count, f"{done:,}")
        )
    if not len(pictures):
        raise none_readable(files, bad)
    predictions: list[Prediction] = []
    with bar(messages, "predicting", transient=True) as move:
        for batch in pictures.split(batch_size):
            predictions += learner.predict(
                batch, task, by=by, unknown=unknown, batch_size=batch_size
            )
            move(len(predictions) / len(pictures), f"{len(predictions):,}")
    if not predictions[0].ranking:
        raise UserError("all classes that could be predicted are forgotten")
    names = [str(file) for file in files]
    rows = [*zip(names, with_unreadable(predictions, bad), strict=True)]
    if skip_bad:
        for index, reason in bad.items():
            messages.print(f"skipped '{names[index]}': {reason}", soft_wrap=True)
        rows = [(file, prediction) for file, prediction in rows if prediction.error is None]
    elif bad:
        messages.print(f"{len(bad)} of {len(files)} images cannot be read")
    show_predictions(rows, top, as_json, as_csv)


def show_predictions(
    predictions: "list[tuple[str, Prediction]]", top: int, as_json: bool, as_csv: bool
) -> None:
    """Print the most probable classes of each file, or why it cannot be read."""
    from rich.console import Console
    from rich.table import Table

    if as_json:
        lines = [
            {
                "file": file,
                "known": prediction.known,
                "p_value": prediction.p_value,
                "classes": [
                    {"class": guess.name, "task": guess.task, "probability": guess.probability}
                    for guess in prediction.ranking[:top]
                ],
                "error": prediction.error,
            }
            for file, prediction in predictions
        ]
        print(json.dumps(lines, indent=1))
        return
    rows = [
        (file, prediction, guess)
        for file, prediction in predictions
        for guess in prediction.ranking[:top] or [None]
    ]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["file", "class", "task", "probability", "known", "p_value", "error"])
        for file, prediction, guess in rows:
            values = (guess.name, guess.task, guess.probability) if guess else ("", "", "")
            known = str(prediction.known).lower()
            writer.writerow([file, *values, known, prediction.p_value, prediction.error])
        return
    table = Table("file", "class", "task", "probability")
    for column in table.columns:
        column.overflow = "fold"
    for file, prediction, guess in rows:
        if guess is None:
            table.add_row(file, f"cannot be read: {prediction.error}", "", "")
            continue
        name = guess.name if prediction.known else f"none of these (nearest: {guess.name})"
        table.add_row(file, name, guess.task, f"{guess.probability:.3f}")
    Console(markup=False).print(table)
