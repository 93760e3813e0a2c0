"""The command that writes one task of a learner to a file that PyTorch alone can use."""

from pathlib import Path
from typing import Annotated

import typer

from classgrad.cli.state import opened, tell_warnings

EXAMPLES = (
    "Examples: classgrad export state --task birds -o birds.pt2 | "
    "classgrad export state --task birds -o birds.pt2 --model mine:trunk --force"
)


def export(
    state: Annotated[Path, typer.Argument(help="Folder that a learner was saved in.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The file to write: NAME.pt2.")],
    task: Annotated[
        str | None, typer.Option(help="The task; the only one need not be named.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME", help="Function or class that makes the trunk, if it is your own."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there already.")
    ] = False,
) -> None:
    """Write one task of a learner to a file that torch.export.load reads, without classgrad.

    It takes images in [0, 1] and gives the probabilities of the task's classes.
    """
    from rich.console import Console

    from classgrad.learner.export import export as write
    from classgrad.learner.export import refuse_place

    refuse_place(out, force)
    learner = opened(state, model)
    tell_warnings(Console(stderr=True), learner)
    write(learner, out, task, force=force)
    print(out)
