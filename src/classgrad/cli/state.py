"""The learner that a command is about: what is said of it, made or loaded from its folder."""

import importlib
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from classgrad.learner.learner import Learner
    from classgrad.settings import Settings

State = Annotated[Path, typer.Argument(help="Folder of the learner.")]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME", help="Function or class that makes your own network, if it is yours."
    ),
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read.")]

NETWORK, METHOD, SIZE, SEED = "alexnet5", "cgp", 32, 1


@dataclass(frozen=True)
class Wanted:
    """What a command line says of a learner; None where it says nothing."""

    network: str | None = None
    model: str | None = None
    method: str | None = None
    size: int | None = None
    seed: int | None = None
    precision: str | None = None
    device: str = "cpu"
    no_prototypes: bool = False
    values: dict[str, Any] = field(default_factory=dict)  # by --set


def opened(folder: Path, model: str | None, device: str = "cpu") -> "Learner":
    """Return the learner in a folder."""
    from classgrad.learner.learner import Learner

    trunk = None if model is None else made(model, SEED)
    learner = Learner.load(folder, trunk=trunk, device=device)
    if model is not None and learner.network is not None:
        raise UserError(
            f"'{folder}' was learnt with network '{learner.network}': leave out --model"
        )
    return learner


def tell_warnings(console: "Console", learner: "Learner") -> None:
    """Say what was odd when a learner was loaded."""
    for warning in learner.warnings:
        console.print(f"{warning}; going on from the one before", soft_wrap=True)


def made_or_opened(folder: Path, wanted: Wanted) -> "Learner":
    """Return the learner in a folder, or a new one if there is none."""
    from classgrad.checkpoints.manager import FOLDER
    from classgrad.checkpoints.store import Store

    if wanted.network is not None and wanted.model is not None:
        raise UserError("--network and --model contradict each other: give one of them")
    refuse_other_folder(folder)
    if Store(folder / FOLDER).overtaken():  # there is something that a new store has not seen
        learner = opened(folder, wanted.model, wanted.device)
        refuse_changes(folder, learner, wanted)
        return learner
    return new_learner(wanted)


def refuse_other_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a learner: what a mistake could mix up."""
    from classgrad.checkpoints.lock import FILE_NAME
    from classgrad.checkpoints.manager import FOLDER
    from classgrad.learner.learner import LEARNING

    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(f"'{folder}' is not a folder that can be used: {error.strerror}") from None
    for name in names:
        if name not in (FOLDER, LEARNING, FILE_NAME) and not name.startswith("."):
            raise UserError(
                f"'{folder}' holds '{shown(name)}', which is not of a learner: give a folder of "
                "its own"
            )


def new_learner(wanted: Wanted) -> "Learner":
    """Return a learner that has learnt nothing yet."""
    from classgrad import methods
    from classgrad.learner.learner import DEFAULT_TRAINING, Learner

    network = None if wanted.model else wanted.network or NETWORK
    kind, seed = methods.kind(wanted.method or METHOD), SEED if wanted.seed is None else wanted.seed
    filled = settled(network, kind, {}, wanted.values)
    chosen = {kind.field_of(name) for name in filled["method"]}
    if wanted.no_prototypes and kind.accepts("similarity") and "similarity" not in chosen:
        filled["method"]["similarity"] = 1  # base refining would keep some
    return Learner(
        None if wanted.model is None else made(wanted.model, seed),
        kind(**filled["method"]),
        network=network,
        network_options=filled.get("network_options"),
        size=wanted.size or SIZE,
        training=DEFAULT_TRAINING.replace(**filled["training"]),
        prototypes=not wanted.no_prototypes,
        seed=seed,
        device=wanted.device,
        precision=wanted.precision,
    )


def refuse_changes(folder: Path, learner: "Learner", wanted: Wanted) -> None:
    """Refuse what differs from a learner that has begun; training may change with every task."""
    from classgrad import networks
    from classgrad.training.config import Training

    for option, there, here in [
        ("--network", learner.network or "a model of your own", wanted.network),
        ("--method", learner.method.name, wanted.method),
        ("--size", learner.size, wanted.size),
        ("--seed", learner.seed, wanted.seed),
        ("--precision", learner.precision or "full precision", wanted.precision),
        ("--no-prototypes", not learner.keeps_prototypes, wanted.no_prototypes or None),
    ]:
        if here is not None and here != there:
            begun = "prototypes" if option == "--no-prototypes" else there
            raise UserError(
                f"'{folder}' was begun with {begun}: leave out {option}, or give another folder"
            )
    before = {
        "method": learner.method.model_dump(),
        "training": learner.training.model_dump(),
        "network_options": learner.network_options,
    }
    filled = settled(learner.network, type(learner.method), before, wanted.values)
    refuse_values(folder, learner.method, type(learner.method)(**filled["method"]))
    if learner.network is not None:
        refuse_values(
            folder,
            networks.options(learner.network, **before["network_options"]),
            networks.options(learner.network, **filled["network_options"]),
        )
    learner.training = Training(**filled["training"])


def refuse_values(folder: Path, there: "Settings", here: "Settings") -> None:
    """Refuse settings that differ."""
    for name, value in there.model_dump().items():
        other = here.model_dump()[name]
        if other != value:
            raise UserError(
                f"'{folder}' was begun with {name}={value}, not {other}: only settings of training "
                "can change, or give another folder"
            )


def settled(
    network: str | None,
    kind: "type[Settings]",
    before: dict[str, dict[str, Any]],
    values: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return the settings of method, training and network: given values over those before."""
    from classgrad import networks
    from classgrad.errors import unknown
    from classgrad.runs.spec import assigned
    from classgrad.training.config import Training

    parts: dict[str, type[Settings]] = {"method": kind, "training": Training}
    if network is not None:
        if network not in networks.NETWORKS:
            raise unknown("network", network, networks.NETWORKS)
        parts["network_options"] = networks.NETWORKS[network].Options
    filled = {part: before.get(part, {}) for part in parts}
    return assigned(parts, filled, values, network or "a model of your own")


def made(model: str, seed: int) -> "nn.Module":
    """Call a function or class, given as "package.module:name", for a network of one's own."""
    import torch
    from torch import nn

    from classgrad.networks.network import preserved_rng

    home, colon, name = model.partition(":")
    if not (home and colon and name):
        raise UserError(
            f"--model takes package.module:name, for example mine:trunk (got {model!r})"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with preserved_rng():
            torch.manual_seed(seed)  # what draws the weights is not known
            found = getattr(importlib.import_module(home), name)()
    except UserError:
        raise
    except Exception as error:  # it is the user's code that runs
        reason = shown(" ".join(str(error).split()))
        raise UserError(
            f"--model '{model}' cannot be made: {type(error).__name__}: {reason}"
        ) from None
    if not isinstance(found, nn.Module):
        raise UserError(
            f"--model '{model}' makes a {type(found).__name__}: it has to make a module of PyTorch"
        )
    return found
