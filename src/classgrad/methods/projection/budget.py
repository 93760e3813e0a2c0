"""A budget for the memory of bases: which directions stay, and the share of each class they hold.

δ_j = ||s_jᵀ C||² is the energy of a class along column j of a basis, E = ||C||² its total energy.
δ_j / E has no unit, so classes and layers can be compared; its sum over the classes learnt is the
strength of a direction, and the weakest directions are dropped first. Columns are orthonormal, so
the share of a class that a basis holds is the sum of its δ_j / E.

The data of a class are gone when later columns are added, so its energy along them is unknown and
counts as 0: shares are lower bounds.
"""

from collections.abc import Mapping
from typing import Any

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from classgrad.core.collect import Collected
from classgrad.errors import UserError
from classgrad.methods.base import Held, a_dict
from classgrad.methods.projection.base import Projected

MEGABYTE = 1e6


class Shares:
    """δ_j / E of the classes so far (rows of `table`) along the columns of one layer's basis."""

    def __init__(self) -> None:
        self.table = torch.zeros(0, 0, dtype=torch.float64)
        self.tasks: list[int] = []
        self.labels: list[int | None] = []
        self.promised: list[float] = []

    def enter(self, task: int, label: int | None, promised: float, shares: Tensor) -> None:
        """Add a class with its shares along all columns, some of which may be new."""
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
        """Drop all other columns."""
        self.table = self.table[:, columns]

    def held(self, layer: str) -> list[Held]:
        """Return the share held of each class, in the order they were learnt."""
        shares = self.table.sum(1).clamp(max=1).tolist()
        rows = zip(self.tasks, self.labels, self.promised, shares, strict=True)
        return [Held(layer, *row) for row in rows]

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
        shares, state = cls(), a_dict(state)
        shares.table = state["table"]
        shares.tasks = list(state["tasks"])
        shares.labels = list(state["labels"])
        shares.promised = list(state["promised"])
        return shares


def strongest(
    strengths: Mapping[str, Tensor], sizes: Mapping[str, int], megabytes: float
) -> dict[str, list[int]]:
    """Return the columns to keep by layer: the weakest of all are dropped until the rest fit.

    A direction of a layer takes `sizes[layer]` bytes. Each layer keeps its strongest direction.

    >>> strengths = {"a": torch.tensor([0.5, 0.3, 0.1]), "b": torch.tensor([0.2])}
    >>> strongest(strengths, {"a": 8, "b": 80}, 96e-6)
    {'a': [0, 1], 'b': [0]}
    """
    kept = {name: set(range(len(values))) for name, values in strengths.items()}
    used = sum(sizes[name] * len(columns) for name, columns in kept.items())
    order = sorted(
        (strength, name, column)
        for name, values in strengths.items()
        for column, strength in enumerate(values.tolist())
    )
    for _, name, column in order:
        if used / MEGABYTE <= megabytes:
            break
        if len(kept[name]) > 1:
            kept[name].remove(column)
            used -= sizes[name]
    return {name: sorted(columns) for name, columns in kept.items()}


class Budgeted(Projected):
    """Drop the weakest directions after a task until the bases of all layers fit the budget.

    A method with values for each column of a basis overrides `keep`.
    """

    max_basis_mb: float | None = Field(
        default=None,
        gt=0,
        description="MB (10^6 bytes) for all bases; beyond that the weakest directions are dropped",
    )

    _shares: dict[str, Shares] = PrivateAttr(default_factory=dict)

    def attach(self, model: nn.Module, *, freezes_rest: bool = False) -> None:
        """Protect this model from now on; refuse a budget below one direction per layer."""
        super().attach(model, freezes_rest=freezes_rest)
        least = sum(self._direction_bytes().values()) / MEGABYTE
        if self.max_basis_mb is not None and self.max_basis_mb < least:
            raise UserError(
                f"max_basis_mb={self.max_basis_mb} is too little: one direction for each layer "
                f"takes {least} MB, give at least that"
            )

    def trim(self, collected: Collected) -> None:
        """Measure the shares of the new classes, then drop directions that do not fit."""
        if self.max_basis_mb is None:
            return
        self._enter(collected)
        strengths = {name: shares.strengths() for name, shares in self._shares.items()}
        kept = strongest(strengths, self._direction_bytes(), self.max_basis_mb)
        for name, columns in kept.items():
            if len(columns) < self._subspaces[name].rank:
                self.keep(name, columns)

    def keep(self, site: str, columns: list[int]) -> None:
        """Drop all but these columns of a site's basis."""
        self._subspaces[site] = self._subspaces[site].reduced(columns)
        self._shares[site].keep(columns)

    def held(self) -> list[Held]:
        """Return, by layer and class, a lower bound of the share that is still protected.

        Classes without energy at a layer are left out there.
        """
        return [held for name, shares in self._shares.items() for held in shares.held(name)]

    def state_dict(self) -> dict[str, Any]:
        """Return the bases and, with a budget, the shares of each class along their columns."""
        if self.max_basis_mb is None:
            return super().state_dict()
        shares = {name: shares.state_dict() for name, shares in self._shares.items()}
        return {**super().state_dict(), "shares": shares}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Load a state for the model this method is attached to."""
        super().load_memory(state)
        if self.max_basis_mb is not None:
            self._shares = {name: Shares.from_state(part) for name, part in state["shares"].items()}

    def _enter(self, collected: Collected) -> None:
        """Measure the shares of the current task's classes, while their inputs are known."""
        promised = self.thresholds()
        for label, inputs in collected.classes.items():
            for name, c in inputs.representations.items():
                if c.energy() > 0:
                    along = c.energy_along(self._subspaces[name].basis).clamp(min=0)
                    self._shares.setdefault(name, Shares()).enter(
                        self._learnt,
                        None if collected.pooled else label,
                        promised[name],
                        along / c.energy(),
                    )

    def _direction_bytes(self) -> dict[str, int]:
        return {
            name: s.dimension * self.stored_type(name).itemsize
            for name, s in self._subspaces.items()
        }
