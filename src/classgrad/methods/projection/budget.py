"""A limit on the memory of bases: which directions stay, and what they hold of each class.

δ_j = ||s_jᵀ C||² is the energy of a class along column j of a basis, E = ||C||² all it has. δ_j / E
has no unit, so classes and layers can be compared; its sum over the classes learnt is the strength
of a direction, and the weakest directions are the first to go. Columns are orthonormal, so what a
basis holds of a class is the sum of its δ_j / E.

The data of a class are gone when later columns are added. What those hold of it is not known and
counts as nothing: shares are lower bounds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

MEGABYTE = 1e6


@dataclass(frozen=True)
class Held:
    """What a layer's basis holds of a class, at least, as a share of its energy, 0 to 1.

    `promised` is the ε the class was learnt with. Tasks count from 0; without a label it is a whole
    task.
    """

    layer: str
    task: int
    label: int | None
    promised: float
    share: float


class Shares:
    """δ_j / E of the classes so far (lines of `table`) along the columns of one layer's basis."""

    def __init__(self) -> None:
        self.table = torch.zeros(0, 0, dtype=torch.float64)
        self.tasks: list[int] = []
        self.labels: list[int | None] = []
        self.promised: list[float] = []

    def enter(self, task: int, label: int | None, promised: float, shares: Tensor) -> None:
        """Add a class with its shares along all columns, of which some may be new."""
        count, known = self.table.shape
        unknown = self.table.new_zeros(count, len(shares) - known)
        self.table = torch.cat([torch.cat([self.table, unknown], dim=1), shares[None]])
        self.tasks.append(task)
        self.labels.append(label)
        self.promised.append(promised)

    def strengths(self) -> Tensor:
        """Return the sum over the classes for each column."""
        return self.table.sum(0)

    def keep(self, columns: list[int]) -> None:
        """Forget all other columns."""
        self.table = self.table[:, columns]

    def held(self, layer: str) -> list[Held]:
        """Return what is held of each class, in the order they were learnt."""
        shares = self.table.sum(1).clamp(max=1).tolist()
        lines = zip(self.tasks, self.labels, self.promised, shares, strict=True)
        return [Held(layer, *line) for line in lines]

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as a tensor and lists."""
        return {
            "table": self.table,
            "tasks": list(self.tasks),
            "labels": list(self.labels),
            "promised": list(self.promised),
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Shares":
        """Return the shares of a state."""
        shares = cls()
        shares.table = state["table"]
        shares.tasks = list(state["tasks"])
        shares.labels = list(state["labels"])
        shares.promised = list(state["promised"])
        return shares


def strongest(
    strengths: Mapping[str, Tensor], sizes: Mapping[str, int], megabytes: float
) -> dict[str, list[int]]:
    """Return by layer the columns that stay: the weakest of all layers go until the rest fit.

    A direction of a layer takes `sizes[layer]` bytes. Each layer keeps its strongest one.

    >>> strengths = {"a": torch.tensor([0.5, 0.3, 0.1]), "b": torch.tensor([0.2])}
    >>> strongest(strengths, {"a": 8, "b": 80}, 96e-6)
    {'a': [0, 1], 'b': [0]}
    """
    stay = {name: set(range(len(values))) for name, values in strengths.items()}
    taken = sum(sizes[name] * len(columns) for name, columns in stay.items())
    order = sorted(
        (strength, name, column)
        for name, values in strengths.items()
        for column, strength in enumerate(values.tolist())
    )
    for _, name, column in order:
        if taken / MEGABYTE <= megabytes:
            break
        if len(stay[name]) > 1:
            stay[name].remove(column)
            taken -= sizes[name]
    return {name: sorted(columns) for name, columns in stay.items()}
