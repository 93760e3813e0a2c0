"""Scaled Gradient Projection (Saha, Roy; AAAI 2023): GPM with an importance for each direction.

The basis M of a layer grows by GPM's rule. Every direction m_i also has an importance λ_i between 0
and 1, and gradients become g - g M Λ Mᵀ with Λ = diag(λ): along m_i a step keeps the share 1 - λ_i.

After a task with inputs R of the layer, s_i = ||m_iᵀ R|| for every direction, stored or new: for a
new one this is its singular value σ̂_i. With s_max the largest of them, the task's importances are

    λ_i = (α + 1) s_i / (α s_i + s_max)

which is 1 for the strongest direction. They are added to those of stored directions, up to 1. With
α = 0 λ_i is s_i / s_max; with α = ∞ every λ is 1: GPM.

With optimisers whose update is not along the gradient (Adam, weight decay) it is the update that is
scaled, and the gradient is left as it is; see `classgrad.core.projector`.

Differences from the released code: the first task's basis is the smallest that reaches ε, not one
direction less (`gpm_compat=True` gives that); ε stops growing at `energy_limit`. Both as in GPM.
"""

import math
from collections.abc import Callable
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr, field_serializer
from torch import Tensor
from torch.nn import functional

from classgrad.core.collect import Collected
from classgrad.core.projector import Projection, ScaledProjection
from classgrad.methods.projection.gpm import GPM


class SGP(GPM):
    """Scale gradients along each protected direction by its importance to the tasks."""

    name: ClassVar[str] = "sgp"
    summary: ClassVar[str] = "Scaled Gradient Projection: directions by importance (AAAI 2023)"
    aliases: ClassVar[dict[str, str]] = {"epsilon": "energy", "alpha": "scale"}

    scale: float = Field(
        default=10.0,
        ge=0,
        allow_inf_nan=True,
        description="how fast importance grows (α); 0: with the singular value, inf: GPM",
    )

    if TYPE_CHECKING:  # aliases, see Settings
        alpha: InitVar[float] = scale

    _importance: dict[str, Tensor] = PrivateAttr(default_factory=dict)

    @field_serializer("scale")
    def _as_json(self, value: float) -> float | str:
        return value if math.isfinite(value) else "inf"  # JSON has no infinity

    @property
    def importance(self) -> dict[str, Tensor]:
        """Importance of each protected direction by site."""
        return self._importance

    def grow(self, gather: Callable[..., Collected]) -> Collected:
        """Add the task's main directions, then its importances."""
        collected = super().grow(gather)
        for name, c in collected.classes[0].representations.items():
            s = c.energy_along(self._subspaces[name].basis).clamp(min=0).sqrt()
            before = self._importance.get(name, s[:0])
            grown = functional.pad(before, (0, len(s) - len(before)))
            self._importance[name] = (grown + importance(s, self.scale)).clamp(max=1)
        return collected

    def keep(self, site: str, columns: list[int]) -> None:
        """Drop all but these columns of a site's basis, with their importances."""
        super().keep(site, columns)
        self._importance[site] = self._importance[site][columns]

    @property
    def removes_directions(self) -> bool:
        """Whether steps along protected directions are removed, and not scaled: they are scaled."""
        return False

    def protect(self) -> None:
        """Protect the subspaces, each direction by its importance."""
        projections: dict[str, Projection] = {}
        for name, subspace in self._subspaces.items():
            weight = self.projector.sites[name].weight
            if subspace.rank and bool((self._importance[name] == 1).all()):
                projections[name] = Projection(subspace, weight)
            elif subspace.rank:
                projections[name] = ScaledProjection(subspace, weight, self._importance[name])
        self.projector.set_projections(projections, self._frozen)

    def state_dict(self) -> dict[str, Any]:
        """Return bases and importances."""
        return {**super().state_dict(), "importance": dict(self._importance)}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Load a state for the model this method is attached to."""
        self._importance = dict(state["importance"])
        super().load_memory(state)


def importance(s: Tensor, alpha: float) -> Tensor:
    """Singular values s (r) -> λ = (α + 1) s / (α s + s_max); zeros where there is no energy.

    >>> importance(torch.tensor([4.0, 1.0]), 2.0).tolist()
    [1.0, 0.5]
    """
    if math.isinf(alpha):
        return torch.ones_like(s)
    if not s.any():
        return torch.zeros_like(s)
    return (alpha + 1) * s / (alpha * s + s.max())
