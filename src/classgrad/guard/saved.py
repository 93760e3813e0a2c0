"""A guard's state in one file: safetensors, with the tree of the state in its metadata.

It includes what the guard knows about the tasks it has protected.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from classgrad.checkpoints import one_file
from classgrad.methods.base import Held

# Raise it whenever the form of a state changes, and keep reading the older ones.
SCHEMA = 2


@dataclass(config=ConfigDict(strict=True))
class ProtectedTask:
    """A task when it was protected. Names of fields are keys of saved states."""

    classes: Annotated[int, Field(ge=1)]  # how many; one that comes again counts again
    ranks: dict[str, Annotated[int, Field(ge=0)]]  # by layer
    held: list[Held]


def history_as_state(history: Sequence[ProtectedTask]) -> list[dict[str, Any]]:
    """Return the tasks of a guard as plain values."""
    return [asdict(task) for task in history]


def history_from_state(
    state: Sequence[dict[str, Any]], layers: Sequence[str]
) -> list[ProtectedTask]:
    """Return the tasks in a state; refuse those of other layers."""
    history = [task_from_state(each) for each in state]
    if any(task.ranks.keys() != set(layers) for task in history):
        raise ValueError("the history is of other layers")
    return history


def task_from_state(state: dict[str, Any]) -> ProtectedTask:
    """Return one task of a state."""
    held = [Held(**each) for each in state["held"]]
    return ProtectedTask(state["classes"], dict(state["ranks"]), held)


def write_file(path: Path, state: dict[str, Any]) -> None:
    """Write a state durably; a file of that name is replaced, or stays intact if that fails."""
    one_file.write(path, state, SCHEMA)


def read_file(path: Path) -> dict[str, Any]:
    """Return the state in a file; whatever is wrong with it is a UserError."""
    return one_file.read(path, SCHEMA, "guard")
