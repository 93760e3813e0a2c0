"""The command that writes one task of a learner to a file that PyTorch alone can use."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from torch import nn

EXAMPLES = (
    "Examples: classgrad export state --task birds -o birds.pt2 | "
    "classgrad export state --task birds -o birds.pt2 --model my_model.py:trunk --force"
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
            metavar="FILE.py:NAME", help="The function that makes the trunk, if it is your own."
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a file that is there already.")
    ] = False,
) -> None:
    """Write one task of a learner to a file that torch.export.load reads, without classgrad.

    It takes images in [0, 1] and gives the probabilities of the task's classes.
    """
    from classgrad.learning.export import export as write
    from classgrad.learning.export import refuse_place
    from classgrad.learning.learner import Learner

    refuse_place(out, force)
    if not state.is_dir():
        raise UserError(f"no folder '{shown(state)}': give the one a learner was saved in")
    learner = Learner.load(state, trunk=None if model is None else own_trunk(model))
    for warning in learner.warnings:
        typer.echo(warning, err=True)
    write(learner, out, task, force=force)
    print(out)


def own_trunk(model: str) -> "nn.Module":
    """Return the trunk that a function in a file of the user's makes."""
    import runpy

    from torch import nn

    file, colon, name = model.rpartition(":")
    if not colon or not file.endswith(".py") or not Path(file).is_file():
        raise UserError(
            f"--model takes FILE.py:NAME of a file that is there (got '{shown(model)}')"
        )
    try:
        trunk = runpy.run_path(file)[name]()
    except Exception as error:  # whatever the user's own code does
        reason = shown(" ".join(f"{type(error).__name__} {error}".split()))
        raise UserError(f"--model {shown(model)} makes no trunk: {reason}") from error
    if not isinstance(trunk, nn.Module):
        raise UserError(f"--model {shown(model)} makes a {type(trunk).__name__}, no nn.Module")
    return trunk
