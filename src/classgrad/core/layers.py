"""The inputs that reach each layer of any model, as the rows its weight matrix multiplies.

A site is a weight matrix W (o x d) with the rows x it is applied to: y = W x. A Linear layer or a
convolution is one site; a convolution in g groups is g sites, because each group sees its own
channels; nn.MultiheadAttention is four, for queries, keys, values and what comes out.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from operator import attrgetter
from typing import Any

from torch import Tensor, nn

from classgrad.core import attention, linalg
from classgrad.core.patches import lines_of, patches
from classgrad.errors import UserError
from classgrad.methods.projection.scaled import ScaledConv2d, ScaledLinear

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS, nn.MultiheadAttention)
# Scaled layers change their weight only where no later update reaches: plain to a guard.
PLAIN = {kind.forward for kind in (*LAYERS, ScaledLinear, ScaledConv2d)}

Layer = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.MultiheadAttention
Source = nn.Module | tuple[nn.Module, int]  # a layer, or a matrix of one that has several inputs


@dataclass(frozen=True)
class Site:
    """One weight matrix of a model: rows `start` to `stop` of a parameter of a layer."""

    name: str
    layer: Layer
    parameter: str
    group: int
    start: int
    stop: int
    dimension: int

    @property
    def weight(self) -> Tensor:
        """Return the parameter this site is a part of."""
        return self.layer.get_parameter(self.parameter)

    @property
    def source(self) -> Source:
        """Return what the inputs of this site go by in `tap`."""
        attends = isinstance(self.layer, nn.MultiheadAttention)
        return (self.layer, self.group) if attends else self.layer

    def matrix(self, tensor: Tensor) -> Tensor:
        """View the part of a weight-shaped tensor that belongs to this site as (o x d)."""
        return tensor[self.start : self.stop].reshape(self.stop - self.start, self.dimension)

    def share(self, x: Tensor) -> Tensor:
        """Return the channels of an input of the layer that this site sees."""
        if not isinstance(self.layer, CONVOLUTIONS) or self.layer.groups == 1:
            return x
        width = self.layer.in_channels // self.layer.groups
        return x[:, self.group * width : (self.group + 1) * width]

    def rows(self, x: Tensor, every: int = 1) -> Tensor:
        """Unfold an input of the layer (n, ...) into the rows W multiplies (n * positions x d).

        Of a convolution's positions only every so many along each axis, from the first.
        """
        if not isinstance(self.layer, CONVOLUTIONS):
            return x.reshape(-1, x.shape[-1])
        return patches(self.layer, self.share(x), every)

    def gram(self, x: Tensor) -> Tensor:
        """Return C Cᵀ of the rows of an input (d x d, float64).

        Patches of a convolution overlap. Where it moves by one, lines of patches are enough: those
        unfolded along all axes but the first.
        """
        layer = self.layer
        if not isinstance(layer, CONVOLUTIONS) or not layer.stride[0] == layer.dilation[0] == 1:
            return linalg.gram(self.rows(x))
        lines, window = lines_of(layer, self.share(x).double()), layer.kernel_size[0]
        if window == 1 or len(lines) < 2 * window - 1:
            return linalg.gram(self.rows(x))
        products = linalg.window_products(lines, window)
        channels = layer.in_channels // layer.groups
        products = products.view(window, window, channels, -1, channels, lines.shape[2] // channels)
        # The weight has channels first: (C, window, rest of the kernel).
        return products.permute(2, 0, 3, 4, 1, 5).reshape(self.dimension, self.dimension)


def sites(model: nn.Module) -> dict[str, Site]:
    """List the trainable weight matrices by dotted name.

    A group of a convolution is `name[g]`; the matrices of nn.MultiheadAttention are `name[query]`,
    `name[key]`, `name[value]` and `name.out_proj`.

    >>> [s.dimension for s in sites(nn.Sequential(nn.Conv2d(3, 8, 5), nn.Linear(7, 2))).values()]
    [75, 7]
    """
    found: dict[str, Site] = {}
    owners: dict[tuple[int, int], str] = {}
    inside = {m.out_proj for m in model.modules() if isinstance(m, nn.MultiheadAttention)}
    for name, layer in model.named_modules():
        if not isinstance(layer, LAYERS) or layer in inside:
            continue
        if not any(parameter.requires_grad for parameter in layer.parameters()):
            continue
        for site in _sites_of(name, layer):
            place = (id(site.weight), site.start)
            if place in owners:
                raise UserError(
                    f"layers '{owners[place]}' and '{site.name}' share one weight: use one module "
                    "twice, so that its inputs are seen together"
                )
            owners[place] = site.name
            found[site.name] = site
    return found


def _sites_of(name: str, layer: Layer) -> Iterator[Site]:
    """Yield the trainable weight matrices of one layer; refuse those that cannot be protected."""
    for group, (end, parameter, start, stop) in enumerate(_matrices(name, layer)):
        weight = attrgetter(parameter)(layer)
        if not isinstance(weight, nn.Parameter) or not _is_plain(layer):
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) cannot be protected: its weight is "
                "computed, or its forward is not that of nn.Linear, nn.Conv or "
                "nn.MultiheadAttention; use a plain layer, or freeze it with requires_grad_(False)"
            )
        if weight.requires_grad:
            yield Site(name + end, layer, parameter, group, start, stop, weight[0].numel())


def _matrices(name: str, layer: Layer) -> list[tuple[str, str, int, int]]:
    """Say where each matrix is: end of its name, parameter, its first row and the one after it."""
    if isinstance(layer, nn.MultiheadAttention):
        return attention.matrices(layer)
    if isinstance(layer.weight, nn.UninitializedParameter):
        raise UserError(
            f"layer '{name}' ({type(layer).__name__}) has no size yet: run the model once first"
        )
    if isinstance(layer, nn.Linear) or layer.groups == 1:
        return [("", "weight", 0, len(layer.weight))]
    height = len(layer.weight) // layer.groups
    return [(f"[{g}]", "weight", g * height, (g + 1) * height) for g in range(layer.groups)]


def _is_plain(layer: Layer) -> bool:
    # A guard gives Linear layers a forward of their own, and says so itself if it finds one.
    own = "forward" in vars(layer) and not isinstance(layer, nn.Linear)
    return type(layer).forward in PLAIN and not own


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
def tap(watched: Iterable[Site]) -> Iterator[dict[Source, list[Tensor]]]:
    """Record the inputs of these sites' layers while the block runs.

    Yields a dict, `Site.source` -> the inputs of its calls, oldest first; clear it between batches.
    Inputs are copied when the layer is entered, so a later in-place operation cannot change them.
    The hooks are gone when the block ends, however it ends.
    """
    seen: dict[Source, list[Tensor]] = {}

    def record(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        keep(layer, args[0] if args else kwargs["input"])

    def keep(source: Source, x: Tensor) -> None:
        seen.setdefault(source, []).append(x.detach().clone())

    with ExitStack() as stack:
        stack.enter_context(attention.every_layer_called())
        for layer in {site.layer for site in watched}:
            if isinstance(layer, nn.MultiheadAttention):
                stack.enter_context(attention.opened(layer, keep))
            else:
                handle = layer.register_forward_pre_hook(record, with_kwargs=True)
                stack.callback(handle.remove)
        yield seen
