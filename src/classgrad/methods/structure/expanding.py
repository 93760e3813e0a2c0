"""The base of methods that add units: growing layers, and training of some weights only.

A mask for each parameter says which entries are trained; all others keep their bits with every
optimiser. Gradients are masked, and where an optimiser moves weights without a gradient (weight
decay) the old values are restored after its step.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from pydantic import PrivateAttr
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.projector import updates_follow_gradients
from classgrad.methods.base import Method, Step
from classgrad.methods.structure.growing import (
    make_growing,
    resize,
    unit_columns,
    units,
    width,
    wires,
)
from classgrad.networks.network import Network
from classgrad.tasks import Task


class Expanding(Method):
    """Add units for new tasks; train only what is free."""

    _free: dict[str, Tensor] | None = PrivateAttr(default=None)  # masks by name; None: all free
    _kept: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # values that may not change
    _units: dict[str, list[int]] = PrivateAttr(default_factory=dict)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Convert the layers to growing ones."""
        make_growing(net, self.name)
        self._units = units(net)
        return net

    def set_free(self, net: Network, masks: dict[str, Tensor] | None) -> None:
        """Train only the entries marked in these masks from now on; None: everything."""
        self._free = masks and {name: mask for name, mask in masks.items() if mask.any()}
        self._kept, self._units = {}, units(net)

    def parameters(self, net: Network, tasks: Sequence[Task]) -> Iterator[nn.Parameter]:
        """Yield the parameters with a free entry."""
        free = self._free
        if free is None:
            yield from super().parameters(net, tasks)
        else:
            yield from (p for name, p in net.named_parameters() if name in free)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the cross-entropy; without gradients of the trunk if no part of it is free."""
        trains_trunk = self._free is None or any(name.startswith("trunk") for name in self._free)
        with torch.set_grad_enabled(trains_trunk):
            features = net.embed(step.x, step.task.id)
        return functional.cross_entropy(net.classify(features, step.task.id), step.y)

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Mask the gradients."""
        if self._free is None:
            return
        named = dict(net.named_parameters())
        if not self._kept and not updates_follow_gradients(step.optimizer):
            self._kept = {name: named[name].detach().clone() for name in self._free}
        for name, mask in self._free.items():
            gradient = named[name].grad
            if gradient is not None:
                gradient.masked_fill_(~mask, 0)

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Restore frozen entries, where masking gradients is not enough."""
        if self._free is None or not self._kept:
            return
        named = dict(net.named_parameters())
        for name, value in self._kept.items():
            named[name].copy_(torch.where(self._free[name], named[name], value))

    def state_dict(self) -> dict[str, Any]:
        """Return the units of every task, and the masks of free entries."""
        sizes = {target: list(by_task) for target, by_task in self._units.items()}
        return {"units": sizes, "free": self._free and dict(self._free)}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state; give layers their sizes, the network's state has their values."""
        make_growing(net, self.name)
        if units(net) != state["units"]:
            resize(net, state["units"])
        self.set_free(net, state["free"])


def among(net: Network, chosen: dict[str, Tensor]) -> dict[str, Tensor]:
    """Mark the shared weights that connect chosen units: masks by parameter name.

    `chosen` has a bool for every unit before each ReLU; inputs count as chosen.
    """
    masks = {}
    for wire, layer, norm in wires(net):
        out = chosen[wire.target]
        mask = out.view(-1, *[1] * (layer.weight.dim() - 1)).expand_as(layer.weight).clone()
        if wire.source is not None:
            seen = chosen[wire.source]
            inputs = unit_columns(seen, layer.weight.shape[1] // len(seen))
            mask &= inputs.view(1, -1, *[1] * (layer.weight.dim() - 2))
        masks[f"trunk.{wire.layer}.weight"] = mask
        if layer.bias is not None:
            masks[f"trunk.{wire.layer}.bias"] = out
        if norm is not None and (norm.affine == "first" or norm.tasks == 1):
            masks[f"trunk.{wire.norm}.scale_0"] = masks[f"trunk.{wire.norm}.shift_0"] = out
    return masks


def newest_own(net: Network) -> dict[str, Tensor]:
    """Mark the parameters that only the newest task has: its head, scales and shifts."""
    newest = len(net.heads) - 1
    names = {f"heads.{newest}.{name}" for name, _ in net.heads[newest].named_parameters()}
    for wire, _, norm in wires(net):
        if norm is not None and norm.affine == "task" and norm.tasks > 1:
            names |= {f"trunk.{wire.norm}.{kind}_{newest}" for kind in ("scale", "shift")}
    return {
        name: torch.ones_like(parameter, dtype=torch.bool)
        for name, parameter in net.named_parameters()
        if name in names
    }


def added(net: Network, before: dict[str, int]) -> dict[str, Tensor]:
    """Mark the weights of units beyond the first `before`, and all of the newest task's own."""
    device = next(net.parameters()).device
    numbers = {target: torch.arange(n, device=device) for target, n in width(net).items()}
    old = {target: number < before[target] for target, number in numbers.items()}
    masks = {name: ~mask for name, mask in among(net, old).items()}
    return {**masks, **newest_own(net)}
