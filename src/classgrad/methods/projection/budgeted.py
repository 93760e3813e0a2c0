"""Projection methods whose bases can be kept below a limit of memory."""

from typing import Any

from pydantic import Field, PrivateAttr
from torch import nn

from classgrad.core.collect import Collected
from classgrad.errors import UserError
from classgrad.methods.projection.base import Projected
from classgrad.methods.projection.budget import MEGABYTE, Held, Shares, strongest
from classgrad.networks.network import Network


class Budgeted(Projected):
    """Drop the weakest directions after a task until the bases of all layers fit.

    A method that keeps something for each column of a basis overrides `keep`.
    """

    max_basis_mb: float | None = Field(
        default=None,
        gt=0,
        description="MB (10^6 bytes) for all bases; beyond that the weakest directions go",
    )

    _shares: dict[str, Shares] = PrivateAttr(default_factory=dict)

    def attach(self, model: nn.Module) -> None:
        """Guard this model from now on, if a direction of every layer fits."""
        super().attach(model)
        least = sum(self._direction_bytes().values()) / MEGABYTE
        if self.max_basis_mb is not None and self.max_basis_mb < least:
            raise UserError(
                f"max_basis_mb={self.max_basis_mb} is too little: one direction for each layer "
                f"takes {least} MB, give at least that"
            )

    def trim(self, collected: Collected) -> None:
        """Note what the bases hold of the new classes, then drop what does not fit."""
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
        """Return, by layer and class, the share of its energy that is still protected, at least.

        Classes that had no energy at a layer are not named there.
        """
        return [held for name, shares in self._shares.items() for held in shares.held(name)]

    def state_dict(self) -> dict[str, Any]:
        """Return the bases and, if there is a limit, what they hold of each class."""
        if self.max_basis_mb is None:
            return super().state_dict()
        shares = {name: shares.state_dict() for name, shares in self._shares.items()}
        return {**super().state_dict(), "shares": shares}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state."""
        super().load_state_dict(state, net)
        if self.max_basis_mb is not None:
            self._shares = {name: Shares.from_state(part) for name, part in state["shares"].items()}

    def _enter(self, collected: Collected) -> None:
        """Measure the classes of the task at hand, while their inputs are there."""
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
        return {name: s.dimension * s.basis.itemsize for name, s in self._subspaces.items()}
