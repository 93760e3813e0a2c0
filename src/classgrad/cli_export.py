"""The command that writes one task of a learner to a file that PyTorch alone can use."""

import importlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from torch import nn

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
    from classgrad.learning.export import export as write
    from classgrad.learning.export import refuse_place
    from classgrad.learning.learner import Learner

    refuse_place(out, force)
    if not state.is_dir():
        raise UserError(f"no folder '{shown(state)}': give the one a learner was saved in")
    learner = Learner.load(state, trunk=None if model is None else own_trunk(model))
    if model is not None and learner.network is not None:
        raise UserError(f"this learner has the network {learner.network}: leave out --model")
    for warning in learner.warnings:
        typer.echo(warning, err=True)
    write(learner, out, task, force=force)
    print(out)


def own_trunk(model: str) -> "nn.Module":
    """Return the trunk that a function or class of the user's makes, in a module in this folder."""
    from torch import nn

    from classgrad.networks.network import global_chance_kept

    module, _, name = model.partition(":")
    if not module or not name:
        raise UserError(f"--model takes MODULE:NAME, such as mine:trunk (got '{shown(model)}')")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with global_chance_kept():
            trunk = getattr(importlib.import_module(module), name)()
    except Exception as error:  # whatever the user's own code does
        reason = shown(" ".join(f"{type(error).__name__}: {error}".split()))
        raise UserError(f"--model '{shown(model)}' makes no trunk: {reason}") from None
    if not isinstance(trunk, nn.Module):
        raise UserError(f"--model '{shown(model)}' makes a {type(trunk).__name__}, no nn.Module")
    return trunk
