"""The command predict: classes of images or of sentences, by a learner."""

import csv
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.cli.options import Device
from classgrad.cli.state import Model, SkipBad, State, load_learner, print_warnings
from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from classgrad.learner.inputs import InputKind
    from classgrad.prediction.calibration import Prediction

app = typer.Typer()


@app.command(
    epilog="Examples: classgrad predict state photo.jpg | classgrad predict state photos --task "
    "birds --top 3 | classgrad predict state photos --csv | classgrad predict assistant --text "
    "'how do i move my money'"
)
def predict(
    state: State,
    images: Annotated[
        list[str] | None, typer.Argument(help="Images, or folders with images at any depth.")
    ] = None,
    text: Annotated[list[str] | None, typer.Option(help="Or a sentence. Can be repeated.")] = None,
    sentences: Annotated[
        list[Path] | None,
        typer.Option(
            help="Or a file of sentences, one in a line, or a .csv, .tsv or .jsonl with text. Can "
            "be repeated."
        ),
    ] = None,
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
    top: Annotated[int, typer.Option(min=1, help="Number of classes to show for each.")] = 1,
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
    """Predict the classes of images, or of sentences.

    What cannot be read has a row that says why, unless --skip-bad leaves it out. By statistics,
    probabilities are relative to all classes, or to those of the task that is given; by confidence
    and by prototypes, to the classes of one task.
    """
    from rich.console import Console

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
    kind = learner.kind
    given = refuse_other_inputs(state, kind, images or [], [*(text or []), *(sentences or [])])
    with bar(messages, "reading", transient=True) as move:
        inputs, sources, bad = kind.attempt(
            given, lambda done, count: move(done / count, f"{done:,}")
        )
    if not len(inputs):
        raise kind.none_readable(sources, bad)
    if remark := kind.remark(inputs):
        messages.print(remark, soft_wrap=True)
    predictions: list[Prediction] = []
    with bar(messages, "predicting", transient=True) as move:
        for batch in inputs.split(batch_size):
            predictions += learner.predict(
                batch, task, by=by, unknown=unknown, batch_size=batch_size
            )
            move(len(predictions) / len(inputs), f"{len(predictions):,}")
    if not predictions[0].ranking:
        raise UserError("all classes that could be predicted are forgotten")
    rows = [*zip(map(str, sources), with_unreadable(predictions, bad), strict=True)]
    if skip_bad:
        names = kind.names(sources)
        for index, reason in bad.items():
            messages.print(f"skipped {names[index]}: {reason}", soft_wrap=True)
        rows = [(source, prediction) for source, prediction in rows if prediction.error is None]
    elif bad:
        messages.print(f"{len(bad)} of {len(sources)} {kind.several} cannot be read")
    show_predictions(rows, kind.source, top, as_json, as_csv)


def refuse_other_inputs(
    state: Path, kind: "InputKind", images: list[str], sentences: "list[str | Path]"
) -> "list[Any]":
    """Return images or sentences, whichever a learner reads; refuse others, and none."""
    wanted, others = (images, sentences) if kind.several == "images" else (sentences, images)
    if others or not wanted:
        how = "give files of images" if kind.several == "images" else "give --text or --sentences"
        raise UserError(f"'{state}' reads {kind.several}: {how}")
    return list(wanted)


def show_predictions(
    predictions: "list[tuple[str, Prediction]]", what: str, top: int, as_json: bool, as_csv: bool
) -> None:
    """Print the most probable classes of each file or text, or why it cannot be read."""
    from rich.console import Console
    from rich.table import Table

    if as_json:
        lines = [
            {
                what: source,
                "known": prediction.known,
                "p_value": prediction.p_value,
                "classes": [
                    {"class": guess.name, "task": guess.task, "probability": guess.probability}
                    for guess in prediction.ranking[:top]
                ],
                "error": prediction.error,
            }
            for source, prediction in predictions
        ]
        print(json.dumps(lines, indent=1))
        return
    rows = [
        (source, prediction, guess)
        for source, prediction in predictions
        for guess in prediction.ranking[:top] or [None]
    ]
    if as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([what, "class", "task", "probability", "known", "p_value", "error"])
        for source, prediction, guess in rows:
            values = (guess.name, guess.task, guess.probability) if guess else ("", "", "")
            known = str(prediction.known).lower()
            writer.writerow([source, *values, known, prediction.p_value, prediction.error])
        return
    table = Table(what, "class", "task", "probability")
    for column in table.columns:
        column.overflow = "fold"
    for source, prediction, guess in rows:
        if guess is None:
            table.add_row(shown(source), f"cannot be read: {prediction.error}", "", "")
            continue
        name = guess.name if prediction.known else f"none of these (nearest: {guess.name})"
        table.add_row(shown(source), name, guess.task, f"{guess.probability:.3f}")
    Console(markup=False).print(table)
