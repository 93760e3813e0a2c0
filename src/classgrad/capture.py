"""The inputs that reach each layer of any model, as the rows its weight matrix multiplies.

A site is a weight matrix W (o x d) with the rows x it is applied to: y = W x. A Linear layer or a
convolution is one site; a convolution in g groups is g sites, because each group sees its own
channels.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from classgrad import linalg
from classgrad.errors import UserError
from classgrad.networks.scaled import ScaledConv2d, ScaledLinear

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
# Scaled layers change their weight only where no later update reaches: plain to a guard.
PLAIN = {kind.forward for kind in (nn.Linear, *CONVOLUTIONS, ScaledLinear, ScaledConv2d)}


@dataclass(frozen=True)
class Site:
    """One weight matrix of a model: rows `start` to `stop` of a layer's weight."""

    name: str
    layer: nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d
    group: int
    start: int
    stop: int
    dimension: int

    @property
    def weight(self) -> Tensor:
        """Return the parameter this site is a part of."""
        return self.layer.weight

    def matrix(self, tensor: Tensor) -> Tensor:
        """View the part of a weight-shaped tensor that belongs to this site as (o x d)."""
        return tensor[self.start : self.stop].reshape(self.stop - self.start, self.dimension)

    def share(self, x: Tensor) -> Tensor:
        """Return the channels of an input of the layer that this site sees."""
        if isinstance(self.layer, nn.Linear) or self.layer.groups == 1:
            return x
        width = self.layer.in_channels // self.layer.groups
        return x[:, self.group * width : (self.group + 1) * width]

    def rows(self, x: Tensor, every: int = 1) -> Tensor:
        """Unfold an input of the layer (n, ...) into the rows W multiplies (n * positions x d).

        Of a convolution's positions only every so many along each axis, from the first.
        """
        if isinstance(self.layer, nn.Linear):
            return x.reshape(-1, x.shape[-1])
        return _patches(self.layer, self.share(x), every)

    def gram(self, x: Tensor) -> Tensor:
        """Return C Cᵀ of the rows of an input (d x d, float64).

        Patches of a convolution overlap. Where it moves by one, lines of patches are enough: those
        unfolded along all axes but the first.
        """
        layer = self.layer
        if isinstance(layer, nn.Linear) or not layer.stride[0] == layer.dilation[0] == 1:
            return linalg.gram(self.rows(x))
        lines, window = _lines(layer, self.share(x).double()), layer.kernel_size[0]
        if window == 1 or len(lines) < 2 * window - 1:
            return linalg.gram(self.rows(x))
        products = linalg.window_products(lines, window)
        channels = layer.in_channels // layer.groups
        products = products.view(window, window, channels, -1, channels, lines.shape[2] // channels)
        # The weight has channels first: (C, window, rest of the kernel).
        return products.permute(2, 0, 3, 4, 1, 5).reshape(self.dimension, self.dimension)


def sites(model: nn.Module) -> dict[str, Site]:
    """List the trainable weight matrices by dotted name; a group of a convolution as `name[g]`.

    >>> [s.dimension for s in sites(nn.Sequential(nn.Conv2d(3, 8, 5), nn.Linear(7, 2))).values()]
    [75, 7]
    """
    found: dict[str, Site] = {}
    owners: dict[int, str] = {}
    for name, layer in model.named_modules():
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            continue
        if isinstance(layer, nn.MultiheadAttention):
            raise UserError(
                f"layer '{name}' (MultiheadAttention) hides the inputs of its weights: build it "
                "from nn.Linear layers, or freeze it with requires_grad_(False)"
            )
        if not isinstance(layer, (nn.Linear, *CONVOLUTIONS)):
            continue
        weight = layer.weight
        if isinstance(weight, nn.UninitializedParameter):
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) has no size yet: run the model once first"
            )
        if not isinstance(weight, nn.Parameter) or type(layer).forward not in PLAIN:
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) cannot be protected: its weight is "
                "computed, or its forward is not that of nn.Linear or nn.Conv; use a plain layer, "
                "or freeze it with requires_grad_(False)"
            )
        if not weight.requires_grad:
            continue
        groups = 1 if isinstance(layer, nn.Linear) else layer.groups
        if id(weight) in owners:
            raise UserError(
                f"layers '{owners[id(weight)]}' and '{name}' share one weight: use one module "
                "twice, so that its inputs are seen together"
            )
        owners[id(weight)] = name
        height = weight.shape[0] // groups
        for group in range(groups):
            label = name if groups == 1 else f"{name}[{group}]"
            found[label] = Site(
                label, layer, group, group * height, (group + 1) * height, weight[0].numel()
            )
    return found


def by_layer(value: Any, names: Iterable[str]) -> dict[str, Any]:
    """Spread a setting over sites: one value, or one for each by name, or by the first pattern.

    A group of a convolution goes by the name of its layer. Names can leave out `trunk.`, which a
    layer's has only where all tasks share a head; values for `heads` wait for that too.

    >>> by_layer({"*": 2, "fc1": 1}, ["conv1", "fc1"])
    {'conv1': 2, 'fc1': 1}
    """
    names = list(names)
    if not isinstance(value, dict):
        return dict.fromkeys(names, value)
    chosen = {}
    for name in names:
        layer = name.split("[")[0]
        labels = (layer, layer.removeprefix("trunk."))
        fits = [key for key in value if key in labels]
        fits += [key for key in value if any(fnmatchcase(label, key) for label in labels)]
        if not fits:
            raise UserError(f"no value for layer '{name}' in {value}: add it, or '*' for the rest")
        chosen[name] = fits[0]
    for key in value:
        if key not in chosen.values() and not key.startswith("heads"):
            raise UserError(
                f"'{key}' fits no layer that no earlier pattern fits: there are {', '.join(names)}"
            )
    return {name: value[key] for name, key in chosen.items()}


@contextmanager
def tap(watched: Iterable[Site]) -> Iterator[dict[nn.Module, list[Tensor]]]:
    """Record the inputs of the layers of these sites while the block runs.

    Yields a dict, layer -> the inputs of its calls, oldest first; clear it between batches.
    Inputs are copied when the layer is entered, so a later in-place operation cannot change them.
    The hooks are gone when the block ends, however it ends.
    """
    seen: dict[nn.Module, list[Tensor]] = {}

    def record(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        x = args[0] if args else kwargs["input"]
        seen.setdefault(layer, []).append(x.detach().clone())

    layers = {site.layer for site in watched}
    handles = [layer.register_forward_pre_hook(record, with_kwargs=True) for layer in layers]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def _patches(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, every: int = 1) -> Tensor:
    """Unfold (n, C, *size) into a convolution's patches (n * positions, C * kernel)."""
    x = _unfolded(layer, x, range(len(layer.kernel_size)), every)
    # (n, C, *positions, *kernel) -> (n, *positions, C, *kernel)
    axes = len(layer.kernel_size)
    order = [0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes)]
    return x.permute(order).reshape(-1, x.shape[1] * math.prod(layer.kernel_size))


def _lines(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor) -> Tensor:
    """Unfold (n, C, h, *size) along all axes but the first (h, n * positions, C * kernel)."""
    x = _unfolded(layer, x, range(1, len(layer.kernel_size)))
    axes = len(layer.kernel_size)
    # (n, C, h, *positions, *kernel) -> (h, n, *positions, C, *kernel)
    order = [2, 0, *range(3, 2 + axes), 1, *range(2 + axes, 1 + 2 * axes)]
    return x.permute(order).reshape(x.shape[2], -1, x.shape[1] * math.prod(layer.kernel_size[1:]))


def _unfolded(
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, x: Tensor, axes: Iterable[int], every: int = 1
) -> Tensor:
    """Pad (n, C, *size) as a convolution does, and unfold some axes: positions, last the kernel."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    margins: list[int] = []  # last dimension first, before and after, as functional.pad wants them
    for axis in reversed(range(len(kernel))):
        if not isinstance(layer.padding, str):
            margins += [layer.padding[axis]] * 2
        else:
            total = dilation[axis] * (kernel[axis] - 1) if layer.padding == "same" else 0
            margins += [total // 2, total - total // 2]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    x = functional.pad(x, margins, mode=mode)
    for axis in axes:
        span = dilation[axis] * (kernel[axis] - 1) + 1
        x = x.unfold(2 + axis, span, stride[axis] * every)[..., :: dilation[axis]]
    return x
