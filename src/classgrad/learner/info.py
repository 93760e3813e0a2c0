"""What a state says of its learner, without the network: a trunk of one's own need not be there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.manager import FOLDER
from classgrad.checkpoints.store import Store
from classgrad.learner.forecast import LayerForecast, forecast_all
from classgrad.learner.learner import LEARNING, read_state, unfinished_state
from classgrad.learner.learnt import LearntTask
from classgrad.methods.base import nbytes


@dataclass(frozen=True)
class Info:
    """What is known of a learner on disk."""

    tasks: list[LearntTask]
    unfinished: str | None  # name of a task that was cut short
    room: list[LayerForecast]
    settings: dict[str, Any]  # network, method, training and all else that was set
    bytes: dict[str, int]  # of weights, memory of the method, prototypes, and on disk
    warnings: tuple[str, ...]  # why newer states could not be used


def read(folder: Path) -> Info:
    """Return what is known of the learner in a folder."""
    loaded = read_state(folder, Store(folder / FOLDER))
    found = loaded.state
    with raising_bad_checkpoint(f"what is kept in '{folder}'"):
        tasks = [LearntTask(**task) for task in found["tasks"]]
        kept = unfinished_state(CheckpointManager(folder / LEARNING), len(tasks))
        names = ("network", "network_options", "method", "training", "size", "seed", "precision")
        return Info(
            tasks=tasks,
            unfinished=str(kept["task"]) if kept else None,
            room=forecast_all(found["dimensions"], tasks),
            settings={name: found[name] for name in (*names, "keeps_prototypes")},
            bytes={
                "weights": nbytes(found["net"]),
                "method": nbytes(found["memory"]),
                "prototypes": nbytes(found["prototypes"]),
                "disk": sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()),
            },
            warnings=loaded.warnings,
        )
