"""What a guard knows about the tasks it has protected."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from classgrad.methods.base import Held


@dataclass(config=ConfigDict(strict=True))
class ProtectedTask:
    """A task when it was protected. Names of fields are keys of saved states."""

    classes: Annotated[int, Field(ge=1)]  # how many; one that comes again counts again
    ranks: dict[str, Annotated[int, Field(ge=0)]]  # by layer
    held: list[Held]


def as_state(history: Sequence[ProtectedTask]) -> list[dict[str, Any]]:
    """Return a history as plain values."""
    return [asdict(task) for task in history]


def from_state(state: Sequence[dict[str, Any]], layers: Sequence[str]) -> list[ProtectedTask]:
    """Return the history of a state; refuse one of other layers."""
    history = [task_from_state(each) for each in state]
    if any(task.ranks.keys() != set(layers) for task in history):
        raise ValueError("the history is of other layers")
    return history


def task_from_state(state: dict[str, Any]) -> ProtectedTask:
    """Return one task of a history."""
    held = [Held(**each) for each in state["held"]]
    return ProtectedTask(state["classes"], dict(state["ranks"]), held)
