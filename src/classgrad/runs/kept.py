"""What a run keeps beside its record: weights, heads and what the method protects them by.

After some task, they are one safetensors file, `weights/after-task-N.safetensors` in the folder of
the run. Any program that reads such files finds `net.trunk.fc1.weight` in it, and for a projection
method `method.bases.fc1`, columns of length one.
"""

import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgrad.checkpoints import one_file
from classgrad.errors import UserError
from classgrad.methods.base import Method
from classgrad.networks.network import Network
from classgrad.runs.record import RunRecord
from classgrad.tasks import TaskStream

Keep = Literal["last", "task"]

FOLDER = "weights"
# Raise it whenever the form of a state changes, and keep reading the older ones.
SCHEMA = 1


@dataclass(frozen=True)
class Result:
    """A run with what it has learnt: the network and the method, after `tasks` of its tasks."""

    record: RunRecord
    net: Network
    method: Method
    stream: TaskStream
    tasks: int


def file_after(folder: Path, tasks: int) -> Path:
    """Return the file of a run that holds what it has learnt in its first tasks."""
    return folder / FOLDER / f"after-task-{tasks}.safetensors"


def kept_after(folder: Path) -> list[int]:
    """Return the numbers of tasks after which a run has kept what it has learnt."""
    names = [path.name for path in (folder / FOLDER).glob("*.safetensors")]
    matches = [re.fullmatch(r"after-task-([1-9]\d*)\.safetensors", name) for name in names]
    return sorted(int(match[1]) for match in matches if match)


def write(folder: Path, tasks: int, state: dict[str, Any]) -> None:
    """Keep the state of a session."""
    one_file.write(file_after(folder, tasks), state, SCHEMA, by_place=True)


def read(folder: Path, tasks: int) -> dict[str, Any]:
    """Return the state of a session that was kept."""
    return one_file.read(file_after(folder, tasks), SCHEMA, "weights of a run")


def refuse_missing(folder: Path, wanted: Iterable[int]) -> None:
    """Refuse a run that has learnt tasks without keeping what is wanted of them."""
    missing = [number for number in wanted if number not in kept_after(folder)]
    if missing:
        raise UserError(
            f"'{folder}' holds a run that has not kept its weights after task {missing[0]}: give "
            "another folder, or start afresh",
            hint="other_run",
        )


def remove(folder: Path) -> None:
    """Remove all that a run has kept."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
