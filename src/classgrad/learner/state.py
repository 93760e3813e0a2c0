"""A learner on disk: tensors in safetensors, all else in JSON, as `docs/state.md` describes."""

import copy
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from classgrad.checkpoints.errors import understood
from classgrad.checkpoints.keeper import FOLDER, Keeper
from classgrad.checkpoints.store import Loaded, Store
from classgrad.errors import UserError, unknown
from classgrad.learner.learnt import LearntTask
from classgrad.methods import METHODS
from classgrad.methods.base import Method
from classgrad.prediction.calibration import KINDS
from classgrad.training.config import Training

if TYPE_CHECKING:
    from classgrad.learner.learner import Learner

KIND = "learner"


def taken(learner: "Learner") -> dict[str, Any]:
    """Return everything of a learner between two tasks, as copies."""
    net = learner._net
    return {
        "kind": KIND,
        "network": learner.network,
        "network_options": dict(learner.network_options),
        "embedding": None if net is None else net.embedding,
        "size": learner.size,
        "input_shape": list(learner.input_shape),
        "method": {"name": learner.method.name, **learner.method.model_dump()},
        "training": learner.training.model_dump(),
        "valid_fraction": learner.valid_fraction,
        "keeps_prototypes": learner.keeps_prototypes,
        "seed": learner.seed,
        "precision": learner.precision,
        "tasks": [asdict(task) for task in learner.tasks],
        "prototypes": [means.cpu().clone() for means in learner.prototypes],
        "net": None if net is None else {n: v.cpu().clone() for n, v in net.state_dict().items()},
        "memory": copy.deepcopy(learner.method.state_dict()),
        # Known to the method already, but only with a network.
        "dimensions": {r.name: r.dimension for r in (learner.method.room() if net else [])},
    }


def circumstances(learner: "Learner") -> dict[str, Any]:
    """Return what has to be the same when a task goes on that was cut short."""
    return {
        "network": learner.network,
        "network_options": dict(learner.network_options),
        "method": {"name": learner.method.name, **learner.method.model_dump()},
        "training": learner.training.model_dump(),
        "seed": learner.seed,
        "precision": learner.precision,
        "tasks": len(learner.tasks),
        "forgotten": [list(task.forgotten) for task in learner.tasks],
    }


def unfinished(keeper: Keeper, learnt: int) -> dict[str, Any] | None:
    """Return what is kept of a task that was cut short after so many others were learnt.

    A process that was killed right at the end of a task has left the state of its middle.
    """
    loaded = keeper.load()
    return None if loaded is None or loaded.state.get("tasks", learnt) < learnt else loaded.state


def put_back(learner: "Learner", state: dict[str, Any]) -> None:
    """Bring a learner with the settings of a state to that state."""
    learner.tasks = [LearntTask(**task) for task in state["tasks"]]
    learner.input_shape = tuple(state["input_shape"])
    refuse_parts(learner, state)
    learner.prototypes = [means.to(learner.device) for means in state["prototypes"]]
    learner.unfinished = None
    learner.method = learner.method.replace()
    learner._net = None
    if state["net"] is None:
        return
    learner.embedding = state["embedding"]
    for task in learner.tasks:
        learner.add_task(len(task.class_names))
    put_in(learner, state["memory"], state["net"])
    layers = {room.name for room in learner.method.room()}
    if any(task.ranks.keys() != layers for task in learner.tasks):
        raise ValueError("the layers of tasks are not those of the method")


def put_in(learner: "Learner", memory: dict[str, Any], values: dict[str, Any]) -> None:
    """Give a learner what its method keeps, and its weights."""
    # The method first: it gives layers their sizes.
    learner.method.take_up(memory, learner.net)
    refuse_other_layers(learner.net, values)
    learner.net.load_state_dict(values)


def refuse_parts(learner: "Learner", state: dict[str, Any]) -> None:
    """Refuse a state whose parts are not of the same tasks."""
    if any(type(size) is not int or size < 1 for size in learner.input_shape):
        raise ValueError("the shape of inputs is none")
    kinds = KINDS if learner.keeps_prototypes else ["confidence"]
    if any(task.sharpness.keys() != set(kinds) for task in learner.tasks):
        raise ValueError("tasks are calibrated for other ways to predict")
    counts = [len(task.class_names) for task in learner.tasks]
    if learner.keeps_prototypes and [len(means) for means in state["prototypes"]] != counts:
        raise ValueError("prototypes are not those of the tasks")


def refuse_other_layers(net: nn.Module, values: dict[str, Any]) -> None:
    """Refuse a trunk whose layers are not those of a state, by name."""
    here = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    there = {name: tuple(value.shape) for name, value in values.items()}
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            found = f"of shape {here[name]}" if name in here else "missing"
            wanted = f"{there[name]}" if name in there else "none"
            raise UserError(
                f"the trunk is not the one this learner was saved with: '{name}' is {found}, and "
                f"the saved one has {wanted}"
            )


def store_of(learner: "Learner", folder: Path) -> Store:
    """Return the store of a folder, which knows what this learner has loaded and saved there."""
    return learner.stores.setdefault(folder.resolve(), Store(folder / FOLDER))


def refuse_overtaken(learner: "Learner", folder: Path) -> None:
    """Refuse to save over what this learner has not seen."""
    if store_of(learner, folder).overtaken():
        raise UserError(
            f"'{folder}' holds a learner that this one did not come from, or that has learnt more "
            "since: load it from there, or give another folder"
        )


def save_locked(learner: "Learner", folder: Path) -> None:
    """Save to a folder that is locked."""
    learner.net  # noqa: B018  # says so if nothing was learnt
    store_of(learner, folder).save(taken(learner))


def load(
    kind: type["Learner"],
    folder: Path,
    trunk: nn.Module | None,
    method: Method | None,
    device: torch.device | str,
) -> "Learner":
    """Return the learner saved in a folder."""
    store = Store(folder / FOLDER)
    loaded = read(folder, store)
    with understood(f"what is kept in '{folder}'"):
        learner = rebuilt(kind, loaded.state, trunk, method, device)
        learner.stores[folder.resolve()] = store
        learner.warnings = loaded.warnings
        put_back(learner, loaded.state)
    return learner


def read(folder: Path, store: Store) -> Loaded:
    """Return what the store of a folder holds of a learner."""
    loaded = store.load()
    if loaded is None:
        raise UserError(f"'{folder}' holds no learner: give the folder it was saved in")
    if loaded.state.get("kind") != KIND:
        raise UserError(f"'{folder}' holds the state of a run, not a learner")
    return loaded


def rebuilt(
    kind: type["Learner"],
    state: dict[str, Any],
    trunk: nn.Module | None,
    method: Method | None,
    device: torch.device | str,
) -> "Learner":
    """Return a new learner with the settings of a state."""
    if state["network"] is None and trunk is None:
        raise UserError(
            "this learner has a trunk of your own: give it again, with trunk= or --model"
        )
    settings = dict(state["method"])
    name = settings.pop("name")
    if method is None:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
        method = METHODS[name](**settings)
    elif method.name != name:
        raise UserError(f"this learner learns by {name}, not by {method.name}")
    return kind(
        trunk if state["network"] is None else None,
        method,
        network=state["network"],
        network_options=state["network_options"],
        embedding=state["embedding"],
        size=state["size"],
        training=Training(**state["training"]),
        valid_fraction=state["valid_fraction"],
        prototypes=state["keeps_prototypes"],
        seed=state["seed"],
        device=device,
        precision=state["precision"],
    )
