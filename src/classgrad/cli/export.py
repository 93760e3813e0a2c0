"""The command export: write one task of a learner to a file that needs PyTorch only."""

from pathlib import Path
from typing import Annotated

import typer

from classgrad.cli.state import load_learner, print_warnings

EXAMPLES = (
    "Examples: classgrad export state --task birds -o birds.pt2 | "
    "classgrad export state --task birds -o birds.pt2 --model mine:trunk --force"
)


def export(
    state: Annotated[Path, typer.Argument(help="Folder of the learner.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: NAME.pt2.")],
    task: Annotated[
        str | None, typer.Option(help="The task; optional if there is only one.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="Function or class that makes the trunk, if it is your own."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write one task of a learner to a file that torch.export.load reads, without classgrad.

    The exported program takes images in [0, 1] and returns the probabilities of the task's classes.
    """
    from rich.console import Console

    from classgrad.learner.export import export as write
    from classgrad.learner.export import refuse_place

    refuse_place(out, force)
    learner = load_learner(state, model)
    print_warnings(Console(stderr=True), learner)
    write(learner, out, task, force=force)
    print(out)
