"""Load or create the learner of a command, and refuse options that contradict a saved one."""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from classgrad.errors import UserError, shown

if TYPE_CHECKING:
    from rich.console import Console
    from torch import nn

    from classgrad.learner.inputs import InputKind
    from classgrad.learner.learner import Learner
    from classgrad.methods.base import Method
    from classgrad.settings import Settings

State = Annotated[Path, typer.Argument(help="Folder of the learner.")]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:NAME", help="Function or class that makes the trunk, if it is your own."
    ),
]
SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Skip images or sentences that cannot be read.")
]

METHOD, SEED = "cgp", 1


@dataclass(frozen=True)
class LearnerOptions:
    """Options of a learner on the command line; None where one is not given."""

    reads: str = "images"  # or sentences: what is given to it
    network: str | None = None
    model: str | None = None
    method: str | None = None
    size: int | None = None
    seed: int | None = None
    precision: str | None = None
    device: str = "cpu"
    no_prototypes: bool = False
    tune: str | None = None
    values: dict[str, Any] = field(default_factory=dict)  # by --set


def load_learner(folder: Path, model: str | None, device: str = "cpu") -> "Learner":
    """Load the learner in a folder, with a trunk of the user's own if `model` names one."""
    from classgrad.learner.learner import Learner

    trunk = None if model is None else make_model(model, SEED)
    learner = Learner.load(folder, trunk=trunk, device=device)
    if model is not None and learner.network is not None:
        raise UserError(
            f"'{folder}' was learnt with network '{learner.network}': leave out --model"
        )
    return learner


def print_warnings(console: "Console", learner: "Learner") -> None:
    """Print why newer checkpoints of a loaded learner could not be used."""
    for warning in learner.warnings:
        console.print(f"{warning}; resuming from the previous one", soft_wrap=True)


def load_or_create(folder: Path, options: LearnerOptions) -> "Learner":
    """Load the learner in a folder, or create a new one if there is none."""
    from classgrad.checkpoints.manager import FOLDER
    from classgrad.checkpoints.store import Store

    if options.network is not None and options.model is not None:
        raise UserError("--network and --model contradict each other: give one of them")
    refuse_other_folder(folder)
    if Store(folder / FOLDER).is_stale():  # it has checkpoints that a new store has not seen
        learner = load_learner(folder, options.model, options.device)
        refuse_other_kind(f"'{folder}'", type(learner.kind), options.reads)
        refuse_changes(folder, learner, options)
        return learner
    return new_learner(options)


def refuse_other_folder(folder: Path) -> None:
    """Refuse a folder that holds anything but a learner: it was probably given by mistake."""
    from classgrad.checkpoints.lock import FILE_NAME
    from classgrad.checkpoints.manager import FOLDER
    from classgrad.learner.learner import LEARNING

    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return
    except OSError as error:
        raise UserError(
            f"'{folder}' cannot be used: {error.strerror}; give another folder"
        ) from None
    for name in names:
        if name not in (FOLDER, LEARNING, FILE_NAME) and not name.startswith("."):
            raise UserError(
                f"'{folder}' holds '{shown(name)}', which does not belong to a learner: give an "
                "empty folder"
            )


def new_learner(options: LearnerOptions) -> "Learner":
    """Create a learner that has learnt nothing yet."""
    from classgrad import methods
    from classgrad.learner.kinds import NETWORK, kind_of
    from classgrad.learner.learner import DEFAULT_TRAINING, Learner

    for name, value in [("size", options.size), ("precision", options.precision)]:
        if value is not None and options.values.get(name, value) != value:
            raise UserError(f"--{name} and --set {name} contradict each other: give one of them")
    network = None if options.model else options.network or NETWORK[options.reads]
    inputs = kind_of(network)
    refuse_other_kind(f"network '{network}'" if network else "--model", inputs, options.reads)
    kind, seed = (
        methods.kind(options.method or METHOD),
        SEED if options.seed is None else options.seed,
    )
    settings = merge_settings(network, kind, {}, options.values)
    given = {kind.field_of(name) for name in settings["method"]}
    if options.no_prototypes and kind.accepts("similarity") and "similarity" not in given:
        settings["method"]["similarity"] = 1  # base refining would store prototypes
    method: Method | None = None
    if options.method or settings["method"]:
        usual = inputs.method_settings.items()
        added = {n: value for n, value in usual if kind.accepts(n) and n not in given}
        method = kind(**added, **settings["method"])
    training = settings["training"]
    usually = inputs.training or DEFAULT_TRAINING
    return Learner(
        None if options.model is None else make_model(options.model, seed),
        method,
        network=network,
        network_options=settings["network_options"],
        size=options.size,
        training=usually.replace(**training) if training else None,
        tune=options.tune,
        prototypes=not options.no_prototypes,
        seed=seed,
        device=options.device,
        precision=options.precision,
    )


def refuse_other_kind(who: str, kind: "type[InputKind]", given: str) -> None:
    """Refuse sentences for who reads images, and the reverse."""
    if given != kind.several:
        raise UserError(f"{who} reads {kind.several}: give --{kind.several}, not --{given}")


def one_of(**given: Any) -> str:
    """Return the only one of several options that is given; refuse none or more of them."""
    names = [name for name, value in given.items() if value]
    if len(names) != 1:
        raise UserError(f"give one of {', '.join(f'--{name}' for name in given)}")
    return names[0]


def refuse_changes(folder: Path, learner: "Learner", options: LearnerOptions) -> None:
    """Refuse options that contradict a saved learner; training may change with every task."""
    from classgrad import networks
    from classgrad.learner.inputs import OwnTrunk
    from classgrad.training.config import Training

    for flag, saved, given in [
        ("--network", learner.network or "a model of your own", options.network),
        ("--method", learner.method.name, options.method),
        ("--size", learner.size, options.size),
        ("--seed", learner.seed, options.seed),
        ("--precision", learner.precision or "full precision", options.precision),
        ("--no-prototypes", not learner.keeps_prototypes, options.no_prototypes or None),
        ("--tune", learner.tune, options.tune),
    ]:
        if given is not None and given != saved:
            created_with = "prototypes" if flag == "--no-prototypes" else saved
            created_with = f"tune={saved}" if flag == "--tune" else created_with
            raise UserError(
                f"'{folder}' was created with {created_with}: leave out {flag}, or give another "
                "folder"
            )
    before = {
        "method": learner.method.model_dump(),
        "training": learner.training.model_dump(),
        "network_options": learner.network_options,
    }
    settings = merge_settings(learner.network, type(learner.method), before, options.values)
    refuse_different(folder, learner.method, type(learner.method)(**settings["method"]))
    checked: Callable[..., Settings] = OwnTrunk
    if learner.network is not None:
        checked = partial(networks.options, learner.network)
    refuse_different(
        folder, checked(**before["network_options"]), checked(**settings["network_options"])
    )
    if learner.tune == "none" and settings["training"] != before["training"]:
        raise UserError(
            f"'{folder}' was created with tune=none, so no layer learns: leave out settings of "
            "training, or give another folder"
        )
    learner.training = Training(**settings["training"])


def refuse_different(folder: Path, saved: "Settings", given: "Settings") -> None:
    """Refuse settings that differ from the saved ones."""
    for name, value in saved.model_dump().items():
        given_value = given.model_dump()[name]
        if given_value != value:
            raise UserError(
                f"'{folder}' was created with {name}={value}, not {given_value}: change only "
                "settings of training, or give another folder"
            )


def merge_settings(
    network: str | None,
    kind: "type[Settings]",
    before: dict[str, dict[str, Any]],
    values: dict[str, Any],
) -> dict[str, dict[str, Any]]:
    """Return the settings of method, training and network: given values override earlier ones."""
    from classgrad import networks
    from classgrad.errors import unknown
    from classgrad.learner.inputs import OwnTrunk
    from classgrad.runs.spec import assign_values
    from classgrad.training.config import Training

    parts: dict[str, type[Settings]] = {
        "method": kind,
        "training": Training,
        "network_options": OwnTrunk,
    }
    if network is not None:
        if network not in networks.NETWORKS:
            raise unknown("network", network, networks.NETWORKS)
        parts["network_options"] = networks.NETWORKS[network].Options
    settings = {part: before.get(part, {}) for part in parts}
    return assign_values(parts, settings, values, network or "a model of your own")


def make_model(model: str, seed: int) -> "nn.Module":
    """Make a user's own trunk by calling a function or class, given as "package.module:name"."""
    import torch
    from torch import nn

    from classgrad.networks.network import preserved_rng

    module_name, colon, name = model.partition(":")
    if not (module_name and colon and name):
        raise UserError(
            f"--model takes package.module:name, for example mine:trunk (got {model!r})"
        )
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        with preserved_rng():
            torch.manual_seed(seed)  # the user's code may draw from the global generator
            trunk = getattr(importlib.import_module(module_name), name)()
    except UserError:
        raise
    except Exception as error:  # the user's code can raise anything
        reason = shown(" ".join(str(error).split()))
        raise UserError(
            f"--model '{model}' cannot be made: {type(error).__name__}: {reason}"
        ) from None
    if not isinstance(trunk, nn.Module):
        raise UserError(
            f"--model '{model}' makes a {type(trunk).__name__}: it has to make a torch.nn.Module"
        )
    return trunk
