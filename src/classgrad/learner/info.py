"""What a saved state says about its learner, read without building the network.

So a trunk of the user's own need not be given.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgrad import defaults
from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import Store
from classgrad.learner.learner import KIND, LEARNING, read_state, unfinished_state
from classgrad.learner.learnt import LearntTask, forecast_of
from classgrad.learner.movement import Drift, drifts_in
from classgrad.methods import METHODS
from classgrad.methods.base import nbytes
from classgrad.methods.projection.forecast import LayerForecast
from classgrad.methods.saved_state import restore_method

NEWER = ("tune", "priors", "kept_features", "kept_states")  # settings that older states do not have


@dataclass(frozen=True)
class Info:
    """What is known about a learner on disk; names of fields are keys of the JSON output."""

    tasks: list[LearntTask]
    unfinished: str | None  # name of a task that was cut short
    free_rank: list[LayerForecast]
    drift: list[Drift]  # of the features of each task
    settings: dict[str, Any]  # of network, method, training and learner
    bytes: dict[str, int]  # of weights, method, prototypes, statistics, movement; on disk
    warnings: tuple[str, ...]  # why newer states could not be used


def read_begun(folder: Path) -> Info | None:
    """Return what is known about a learner whose first task was cut short; None of any other."""
    unfinished = None
    if not Store(folder / FOLDER).is_stale():  # it has no states
        unfinished = unfinished_state(CheckpointManager(folder / LEARNING), 0)
    if unfinished is None:
        return None
    with raising_bad_checkpoint(f"the state in '{folder}'"):
        names = ("network", "network_options", "method", "training", "seed", "precision")
        return Info(
            tasks=[],
            unfinished=str(unfinished["task"]),
            free_rank=[],
            drift=[],
            settings={name: unfinished[name] for name in names}
            | {"tune": unfinished.get("tune", "all")},  # earlier versions had no choice
            bytes={"disk": bytes_on_disk(folder)},
            warnings=(),
        )


def read(folder: Path) -> Info:
    """Return what is known about the learner in a folder."""
    loaded = read_state(folder, Store(folder / FOLDER))
    state = loaded.state
    with raising_bad_checkpoint(f"the state in '{folder}'"):
        tasks = [LearntTask(**task) for task in state["tasks"]]
        unfinished = unfinished_state(CheckpointManager(folder / LEARNING), len(tasks))
        version = defaults.check_version(state.get("defaults", 1))
        earlier = defaults.of(KIND, version)
        known = state["method"]["name"] in METHODS  # not one of the user's own
        method = restore_method(state["method"], None, version) if known else None
        names = ("network", "network_options", "method", "training", "size", "seed", "precision")
        return Info(
            tasks=tasks,
            unfinished=str(unfinished["task"]) if unfinished else None,
            free_rank=list(forecast_of(state["dimensions"], tasks, method).layers),
            drift=drifts_in(tasks, state.get("tune") or earlier["tune"], state.get("movement")),
            settings={
                **{name: state[name] for name in (*names, "keeps_prototypes")},
                **{name: state.get(name, earlier[name]) for name in NEWER},
            },
            bytes={
                "weights": nbytes(state["net"]),
                "method": nbytes(state["memory"]),
                "prototypes": nbytes(state["prototypes"]),
                "statistics": nbytes(state.get("classifier") or {}),
                "movement": nbytes(state.get("movement") or {}),
                "disk": bytes_on_disk(folder),
            },
            warnings=loaded.warnings,
        )


def bytes_on_disk(folder: Path) -> int:
    """Return how many bytes all files in a folder have."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
