"""Networks whose layers get more units during training, with timestamps.

A unit is an output of a Linear layer or a filter of a convolution. New units come after the old
ones: the layer's weight gets rows, the weights that see the units (of the next layer, and of the
newest task's head) get columns, a norm gets channels; after a flattened convolution a unit has a
column for each of its positions. Task t uses the first `out_t` rows and `in_t` columns of a weight,
the sizes it was learnt with, so it never sees later units. The slices have the memory layout the
whole weight had then, so outputs keep their bits as long as the weights do.

Layers are converted by changing their class, so that names and weights stay.
"""

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.networks.layers import PerTask, TaskBatchNorm
from classgrad.networks.network import Network, draw
from classgrad.networks.trunk import Trunk, Wire


class Growing(PerTask):
    """The base of both layer types: for each task the number of (outputs, inputs) it uses."""

    weight: Tensor
    bias: Any  # a parameter or None
    sizes: list[tuple[int, int]]

    def add_task(self) -> None:
        """Let the next task begin with all existing units."""
        self.sizes.append(self.sizes[-1])

    @property
    def task_dependent(self) -> bool:
        """Whether some tasks have more units than others."""
        return len(set(self.sizes)) > 1

    def weight_and_bias(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight and the bias of the selected task."""
        rows, columns = self.sizes[self.task]
        if self.weight.shape[:2] == (rows, columns):
            return self.weight, self.bias
        bias = None if self.bias is None else self.bias[:rows]
        return laid_out(self.weight[:rows, :columns]), bias


class GrowingLinear(Growing, nn.Linear):
    """A Linear layer that can get more units."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the weight of the selected task."""
        return functional.linear(input, *self.weight_and_bias())


class GrowingConv2d(Growing, nn.Conv2d):
    """A convolution that can get more filters."""

    def forward(self, input: Tensor) -> Tensor:
        """Apply the filters of the selected task."""
        out: Tensor = self._conv_forward(input, *self.weight_and_bias())
        return out


class GrowingNorm(TaskBatchNorm):
    """A norm that can get more channels; a task uses the first `widths[task]` of a shared scale."""

    widths: list[int]

    def add_task(self) -> None:
        """Add the state of one more task, with all existing channels."""
        self.channels = self.widths[-1]
        super().add_task()
        self.widths.append(self.widths[-1])

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return the scale and the shift of the selected task's channels."""
        scale, shift = super().scale_and_shift()
        width = self.widths[self.task]
        return (scale, shift) if len(scale) == width else (scale[:width], shift[:width])

    def values(self, task: int) -> list[tuple[str, float]]:
        """Name parameters and buffers with a value per channel, and the value of a new channel."""
        names = [(f"{kind}_{task}", start) for kind, start in (("scale", 1.0), ("shift", 0.0))]
        if self.affine == "first":
            names = [("scale_0", 1.0), ("shift_0", 0.0)]
        if self.statistics == "stored":
            names += [(f"mean_{task}", 0.0), (f"variance_{task}", 1.0)]
        return names


def make_growing(net: Network, method: str) -> None:
    """Convert the layers of a network to growing ones; `method` is named in a refusal."""
    kind = type(net.trunk).__name__
    if not isinstance(net.trunk, Trunk):
        raise UserError(
            f"{method} cannot tell how the layers of a {kind} are connected: derive it from "
            "classgrad.networks.trunk.Trunk, or choose network mlp, lenet5 or alexnet5"
        )
    wiring = net.trunk.wiring()
    if [wire.source for wire in wiring] != [None, *(wire.target for wire in wiring[:-1])]:
        raise UserError(
            f"{method} cannot add units to {kind}: its layers are not in sequence; "
            "choose network mlp, lenet5 or alexnet5"
        )
    if net.shared_head:
        raise UserError(f"{method} needs a head for each task, not heads=shared: use heads=task")
    for wire in net.trunk.wiring():
        layer = net.trunk.get_submodule(wire.layer)
        if not isinstance(layer, Growing):
            if type(layer) not in (nn.Linear, nn.Conv2d):
                raise UserError(
                    f"{method} cannot add units to layer '{wire.layer}' ({type(layer).__name__}) "
                    f"of {kind}: use nn.Linear or nn.Conv2d"
                )
            weight = layer.get_parameter("weight")
            linear = isinstance(layer, nn.Linear)
            layer.__class__ = GrowingLinear if linear else GrowingConv2d
            cast(Growing, layer).sizes = [(weight.shape[0], weight.shape[1])]
        norm = wire.norm and net.trunk.get_submodule(wire.norm)
        if isinstance(norm, TaskBatchNorm) and not isinstance(norm, GrowingNorm):
            if norm.statistics == "first":
                raise UserError(
                    f"{method} adds units, of which the first task has no statistics: use "
                    "norm=stored or norm=batch"
                )
            norm.__class__ = GrowingNorm
            cast(GrowingNorm, norm).widths = [norm.channels]
    net.find_layers()


def wires(net: Network) -> list[tuple[Wire, Growing, GrowingNorm | None]]:
    """Return how the layers are connected, each with its layer and its norm."""
    assert isinstance(net.trunk, Trunk), "the network comes from `make_growing`"
    connections = []
    for wire in net.trunk.wiring():
        layer = net.trunk.get_submodule(wire.layer)
        norm = net.trunk.get_submodule(wire.norm) if wire.norm else None
        assert isinstance(layer, Growing)
        assert norm is None or isinstance(norm, GrowingNorm)
        connections.append((wire, layer, norm))
    return connections


def units(net: Network) -> dict[str, list[int]]:
    """Return the number of units before each ReLU, for each task."""
    return {wire.target: [rows for rows, _ in layer.sizes] for wire, layer, _ in wires(net)}


def width(net: Network) -> dict[str, int]:
    """Return the number of units before each ReLU."""
    return {target: by_task[-1] for target, by_task in units(net).items()}


def rearrange(net: Network, taken: dict[str, Tensor]) -> None:
    """Give the newest task other units: for each ReLU, the numbers of existing units, in order.

    A number may occur twice; -1 is a new unit, whose weights are zeros. The units of earlier tasks
    must stay in their positions.
    """
    before = width(net)
    newest = len(net.heads) - 1
    for wire, layer, norm in wires(net):
        rows = taken[wire.target]
        weight = picked(layer.weight, 0, rows)
        if wire.source is not None:
            positions = layer.weight.shape[1] // before[wire.source]
            weight = picked(weight, 1, unit_columns(taken[wire.source], positions))
        layer.weight = nn.Parameter(laid_out(weight))
        if layer.bias is not None:
            layer.bias = nn.Parameter(picked(layer.bias, 0, rows))
        _note_size(layer)
        if norm is not None:
            for name, fresh in norm.values(newest):
                _put(norm, name, picked(getattr(norm, name), 0, rows, fresh))
            norm.widths[-1] = len(rows)
    target = wires(net)[-1][0].target
    head = net.heads[newest]
    assert isinstance(head, nn.Linear)
    positions = head.weight.shape[1] // before[target]
    head.weight = nn.Parameter(picked(head.weight, 1, unit_columns(taken[target], positions)))
    net.embedding = head.in_features = head.weight.shape[1]


def grow(net: Network, more: dict[str, int], generator: torch.Generator) -> None:
    """Add units for the newest task, `more[target]` before each ReLU.

    Their incoming weights are drawn as those of the network were. Old units, and the head, see them
    with weights that start at zero: the network's outputs stay the same, except with local response
    normalisation, where new filters are neighbours of old ones.
    """
    before = width(net)
    rearrange(net, {t: extended(torch.arange(n), [-1] * more[t]) for t, n in before.items()})
    kind = type(net.trunk)
    assert issubclass(kind, Trunk)
    relu = kind.scheme == "relu"
    for wire, layer, _ in wires(net):
        with torch.no_grad():
            fresh = layer.weight[before[wire.target] :]
            bound = math.sqrt((6 if relu else 1) / layer.weight[0].numel())
            drawn = torch.empty(fresh.shape, dtype=fresh.dtype)
            fresh.copy_(drawn.uniform_(-bound, bound, generator=generator))
            if layer.bias is not None and not relu:
                draw(layer.bias[before[wire.target] :], bound, generator)


def resize(net: Network, sizes: dict[str, list[int]]) -> None:
    """Give every task the numbers of units in `sizes`; new values are zeros."""
    before = width(net)
    for wire, layer, norm in wires(net):
        rows = sizes[wire.target]
        columns = [layer.weight.shape[1]] * len(rows)
        if wire.source is not None:
            positions = layer.weight.shape[1] // before[wire.source]
            columns = [positions * number for number in sizes[wire.source]]
        layer.weight = nn.Parameter(laid_out(fitted(layer.weight, rows[-1], columns[-1])))
        if layer.bias is not None:
            layer.bias = nn.Parameter(fitted(layer.bias, rows[-1]))
        layer.sizes = list(zip(rows, columns, strict=True))
        _note_size(layer)
        if norm is not None:
            norm.widths = list(rows)
            for task, number in enumerate(rows):
                for name, _ in norm.values(task):
                    common = norm.affine == "first" and name in ("scale_0", "shift_0")
                    size = rows[-1] if common else number
                    _put(norm, name, fitted(getattr(norm, name), size))
    target = wires(net)[-1][0].target
    positions = net.embedding // before[target]
    for head, number in zip(net.heads, sizes[target], strict=True):
        assert isinstance(head, nn.Linear)
        head.weight = nn.Parameter(fitted(head.weight, len(head.weight), positions * number))
        net.embedding = head.in_features = head.weight.shape[1]


def extended(taken: Tensor, more: list[int]) -> Tensor:
    """Return numbers of units with some more appended."""
    return torch.cat([taken, torch.tensor(more, dtype=taken.dtype)])


def unit_columns(values: Tensor, positions: int) -> Tensor:
    """Map numbers or masks of units to those of their columns, `positions` for each unit.

    >>> unit_columns(torch.tensor([2, -1]), 3).tolist()
    [6, 7, 8, -1, -1, -1]
    """
    if values.dtype == torch.bool:
        return values.repeat_interleave(positions)
    columns = values[:, None] * positions + torch.arange(positions, device=values.device)
    return torch.where(values[:, None] < 0, -1, columns).flatten()


def picked(values: Tensor, dim: int, numbers: Tensor, fresh: float = 0.0) -> Tensor:
    """Return a copy with these rows or columns in this order; -1 gives one filled with `fresh`."""
    numbers = numbers.to(values.device)
    selected = values.detach().index_select(dim, numbers.clamp(min=0))
    return selected.index_fill_(dim, (numbers < 0).nonzero().flatten(), fresh)


def fitted(values: Tensor, *size: int) -> Tensor:
    """Return a copy whose first dimensions are truncated to `size`, or padded with zeros."""
    resized = values.new_zeros(*size, *values.shape[len(size) :])
    overlap = tuple(slice(min(a, b)) for a, b in zip(size, values.shape, strict=False))
    resized[overlap] = values.detach()[overlap]
    return resized


def laid_out(weight: Tensor) -> Tensor:
    """Return a weight in the memory layout of `build`: channels last for convolutions."""
    if weight.dim() == 4:
        return weight.contiguous(memory_format=torch.channels_last)
    return weight.contiguous(memory_format=torch.contiguous_format)


def _put(module: nn.Module, name: str, values: Tensor) -> None:
    """Replace a parameter or a buffer."""
    setattr(module, name, nn.Parameter(values) if name in module._parameters else values)


def _note_size(layer: Growing) -> None:
    rows, columns = layer.weight.shape[:2]
    layer.sizes[-1] = (rows, columns)
    if isinstance(layer, nn.Linear):
        layer.out_features, layer.in_features = rows, columns
    elif isinstance(layer, nn.Conv2d):
        layer.out_channels, layer.in_channels = rows, columns
