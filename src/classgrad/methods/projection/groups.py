"""Groups of classes that are similar at one layer, for base refining (CGP, MM 2022)."""

from typing import Any

import torch
from torch import Tensor

from classgrad.errors import UserError


class Groups:
    """Prototypes of the classes so far, the group of each, and the basis columns of each group."""

    def __init__(self) -> None:
        self.prototypes: list[Tensor] = []
        self.group_of: list[int] = []
        self.cosines: list[float] = []  # with the most similar class; 1 for the first of a group
        self.columns: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.columns)

    def find(self, prototype: Tensor, similarity: float) -> tuple[int, float]:
        """Return the group of the most similar class if its cosine exceeds η, else a new one.

        Also return that cosine (1 for a new group).
        """
        if self.prototypes:
            if self.prototypes[0].shape != prototype.shape:
                raise UserError(
                    f"a layer's inputs now have {len(prototype)} numbers, before "
                    f"{len(self.prototypes[0])}: class prototypes need images of one size"
                )
            cosines = torch.stack(self.prototypes).to(prototype) @ prototype
            nearest = int(cosines.argmax())
            # Rounding can give equal prototypes a cosine above 1; with η = 1 they must not merge.
            cosine = min(float(cosines[nearest]), 1.0)
            if cosine > similarity:
                return self.group_of[nearest], cosine
        return self.open(), 1.0

    def open(self) -> int:
        """Start a new group."""
        self.columns.append([])
        return len(self.columns) - 1

    def join(self, group: int, prototype: Tensor, cosine: float) -> None:
        """Add a class to a group."""
        self.prototypes.append(prototype.float())
        self.group_of.append(group)
        self.cosines.append(cosine)

    def gain(self, group: int, columns: list[int]) -> None:
        """Add basis columns to a group."""
        self.columns[group] = sorted({*self.columns[group], *columns})

    def forget(self, number: int) -> None:
        """Drop the prototype of a class: no later class is similar to it."""
        self.prototypes[number] = torch.zeros_like(self.prototypes[number])

    def keep(self, columns: list[int]) -> None:
        """Renumber the columns after all others were dropped from the basis."""
        renumbered = {old: new for new, old in enumerate(columns)}
        self.columns = [[renumbered[c] for c in group if c in renumbered] for group in self.columns]

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as tensors, numbers and lists."""
        return {
            "prototypes": torch.stack(self.prototypes),
            "group_of": list(self.group_of),
            "cosines": list(self.cosines),
            "columns": [list(columns) for columns in self.columns],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Groups":
        """Return the groups of a state."""
        groups = cls()
        groups.prototypes = list(state["prototypes"])
        groups.group_of = list(state["group_of"])
        groups.cosines = list(state["cosines"])
        groups.columns = [list(columns) for columns in state["columns"]]
        return groups
