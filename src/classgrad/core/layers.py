"""The inputs of each layer of any model, as the rows that its weight matrix multiplies.

A site is a weight matrix W (o x d) with the rows x it is applied to: y = W x. A Linear layer or a
convolution is one site; a convolution with g groups is g sites, because each group sees its own
channels; nn.MultiheadAttention is four: queries, keys, values and the out-projection. A recurrent
layer has two for each of its layers and directions: of its inputs and of its hidden states.

A `LayerKind` describes one type of layer; `register_layer` adds it.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core import linalg
from classgrad.errors import UserError

L = TypeVar("L", bound=nn.Module)

Record = Callable[[int, Tensor], None]  # called with the index of a layer's input, and the input
Source = tuple[nn.Module, int]  # a layer and the index of one of its inputs

# With fewer channels, products of single channels are too small to be fast.
MIN_CHANNELS = 32


class Matrix(NamedTuple):
    """Where one weight matrix of a layer is: rows `start` to `stop` of a parameter."""

    suffix: str  # of its name, after that of the layer
    parameter: str
    start: int
    stop: int
    input: int = 0  # which input of the layer it multiplies


class LayerKind(Generic[L]):
    """What gradient projection has to know about a type of layer.

    The defaults: one matrix, `weight`, which multiplies the last dimension of the only input.
    """

    # Whether layer(x) is functional.linear(linear_input(layer, x), layer.weight, layer.bias), so
    # that the gradient can be taken through projected rows.
    linear = False
    # Whether weights have inputs before outputs, (d, o): `Matrix` then counts inputs.
    transposed = False

    def matrices(self, layer: L) -> list[Matrix]:
        """List the weight matrices of a layer."""
        return [Matrix("", "weight", 0, len(attrgetter("weight")(layer)))]

    def inner_modules(self, layer: L) -> Iterable[nn.Module]:
        """List the modules inside a layer whose parameters it uses without calling them."""
        return ()

    def record_inputs(self, layer: L, record: Record) -> AbstractContextManager[None]:
        """Pass every input of the layer in the block to `record`; outputs stay the same."""
        return _record_only_input(layer, record)

    def matrix_input(self, layer: L, number: int, x: Tensor) -> Tensor:
        """Return the part of an input of the layer that matrix `number` multiplies."""
        return x

    def rows(self, layer: L, x: Tensor, patch_stride: int = 1) -> Tensor:
        """Unfold the input (n, ...) of a matrix into the rows it multiplies (n * positions x d).

        Of a convolution's positions, take one in `patch_stride` along each axis, from the first.
        """
        return x.reshape(-1, x.shape[-1])

    def gram(self, layer: L, x: Tensor) -> Tensor:
        """Return C Cᵀ of the rows of a matrix's input (d x d, float64)."""
        return linalg.gram(self.rows(layer, x))

    def linear_input(self, layer: L, x: Tensor) -> Tensor:
        """Return the tensor that a `linear` layer's weight multiplies in the forward pass."""
        return x


@contextmanager
def _record_only_input(layer: nn.Module, record: Record) -> Iterator[None]:
    def hook(_layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        record(0, args[0] if args else kwargs["input"])

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


_LAYERS: dict[type[nn.Module], LayerKind[Any]] = {}
_NORMS: list[type[nn.Module]] = []


def register_layer(layer: type[L], kind: LayerKind[L]) -> None:
    """Let gradient projection protect layers of a class, and of subclasses with the same forward.

    The layer's output for an old input must not change as long as every update of a matrix is
    orthogonal to the rows of that input.

    >>> class Doubled(nn.Linear):
    ...     def forward(self, input: Tensor) -> Tensor:
    ...         return 2 * super().forward(input)
    >>> register_layer(Doubled, LayerKind())
    >>> list(sites(nn.Sequential(nn.ReLU(), Doubled(3, 2))))
    ['1']
    """
    _LAYERS[layer] = kind


def register_norm(layer: type[nn.Module]) -> None:
    """Allow layers of a class whose only parameters are a scale and a shift.

    These are frozen once a task has used them.
    """
    _NORMS.append(layer)


def layer_kind(layer: nn.Module) -> LayerKind[Any] | None:
    """Return the kind registered for a layer's class, or for its nearest base class."""
    base = _registered(layer)
    return None if base is None else _LAYERS[base]


def is_norm(layer: nn.Module) -> bool:
    """Tell whether a layer's only parameters are a scale and a shift."""
    return isinstance(layer, tuple(_NORMS))


def inner_modules(layer: nn.Module) -> Iterable[nn.Module]:
    """List the modules inside a layer whose parameters it uses without calling them."""
    kind = layer_kind(layer)
    return () if kind is None else kind.inner_modules(layer)


def _registered(layer: nn.Module) -> type[nn.Module] | None:
    return next((base for base in type(layer).__mro__ if base in _LAYERS), None)


class LinearKind(LayerKind[nn.Linear]):
    """One matrix, which multiplies the last dimension of the input."""

    linear = True


Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


class ConvolutionKind(LayerKind[Convolution]):
    """One matrix for each group of a convolution, which multiplies patches of its channels."""

    def matrices(self, layer: Convolution) -> list[Matrix]:
        """List the matrices of the groups."""
        return _by_group(layer)

    def matrix_input(self, layer: Convolution, number: int, x: Tensor) -> Tensor:
        """Return the channels of one group."""
        return _channels_of_group(layer, number, x)

    def rows(self, layer: Convolution, x: Tensor, patch_stride: int = 1) -> Tensor:
        """Unfold (n, C, *size) into patches (n * positions, C * kernel)."""
        axes = len(layer.kernel_size)
        x = self.patches(layer, x, patch_stride)
        # (n, C, *positions, *kernel) -> (n, *positions, C, *kernel)
        order = [0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes)]
        return x.permute(order).reshape(-1, x.shape[1] * math.prod(layer.kernel_size))

    def patches(self, layer: Convolution, x: Tensor, patch_stride: int = 1) -> Tensor:
        """View (n, C, *size), padded, as patches (n, C, *positions, *kernel)."""
        return _unfold(layer, x, range(len(layer.kernel_size)), patch_stride)

    def gram(self, layer: Convolution, x: Tensor) -> Tensor:
        """Return C Cᵀ of the patches of (n, C, *size) (d x d, float64).

        Patches overlap. With stride and dilation 1 along the first axis, it is enough to unfold the
        other axes: the products of these lines serve all patches they are part of. The same holds
        for the second axis, but its products are of single channels: that takes many samples.
        """
        if not layer.stride[0] == layer.dilation[0] == 1:
            return linalg.gram(self.rows(layer, x))
        channels, tall = layer.in_channels // layer.groups, layer.kernel_size[0]
        both = (
            MIN_CHANNELS <= channels <= 2 * len(x)
            and len(layer.kernel_size) > 1
            and layer.stride[1] == layer.dilation[1] == 1
        )
        lines = _lines(layer, x.double(), 2 if both else 1)
        if tall == 1 or lines.shape[1] < 2 * tall - 1:
            return linalg.gram(self.rows(layer, x))
        wide = layer.kernel_size[1] if both else 1
        products = linalg.window_products(lines, (tall, wide))
        rest = lines.shape[3] // channels
        products = products.view(tall, tall, wide, wide, channels, rest, channels, rest)
        # The weight has channels first: (C, tall, wide, rest of the kernel).
        dimension = tall * wide * lines.shape[3]
        return products.permute(4, 0, 2, 5, 6, 1, 3, 7).reshape(dimension, dimension)


TransposedConvolution = nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d


class TransposedConvolutionKind(LayerKind[TransposedConvolution]):
    """One matrix for each group, which multiplies the channels at each position of the input.

    The product is spread over the output by the kernel: (out_channels / groups * kernel) numbers.
    """

    transposed = True

    def matrices(self, layer: TransposedConvolution) -> list[Matrix]:
        """List the matrices of the groups."""
        return _by_group(layer)

    def matrix_input(self, layer: TransposedConvolution, number: int, x: Tensor) -> Tensor:
        """Return the channels of one group."""
        return _channels_of_group(layer, number, x)

    def rows(self, layer: TransposedConvolution, x: Tensor, patch_stride: int = 1) -> Tensor:
        """Return the channels (n * positions, C) of (n, C, *size)."""
        every = (slice(None), slice(None), *[slice(None, None, patch_stride)] * (x.dim() - 2))
        return x[every].movedim(1, -1).reshape(-1, x.shape[1])


def _by_group(layer: Convolution | TransposedConvolution) -> list[Matrix]:
    if layer.groups == 1:
        return [Matrix("", "weight", 0, len(layer.weight))]
    height = len(layer.weight) // layer.groups
    return [
        Matrix(f"[{group}]", "weight", group * height, (group + 1) * height)
        for group in range(layer.groups)
    ]


def _channels_of_group(
    layer: Convolution | TransposedConvolution, number: int, x: Tensor
) -> Tensor:
    if layer.groups == 1:
        return x
    width = layer.in_channels // layer.groups
    return x[:, number * width : (number + 1) * width]


def _lines(layer: Convolution, x: Tensor, folded: int) -> Tensor:
    """Unfold (n, C, h, w, *size) along all axes but the first one or two.

    Returns (w, h, n * positions, C * kernel), where w is 1 if only the first axis is folded.
    """
    axes = len(layer.kernel_size)
    x = _unfold(layer, x, range(folded, axes))
    # (n, C, h, w, *positions, *kernel) -> (w, h, n, *positions, C, *kernel)
    first = [*reversed(range(2, 2 + folded))]
    order = [*first, 0, *range(2 + folded, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes - folded)]
    height, width = x.shape[2], x.shape[3] if folded == 2 else 1
    values = x.shape[1] * math.prod(layer.kernel_size[folded:])
    return x.permute(order).reshape(width, height, -1, values)


def _unfold(layer: Convolution, x: Tensor, axes: Iterable[int], patch_stride: int = 1) -> Tensor:
    """Pad (n, C, *size) as a convolution does, and unfold some axes; the kernel's come last."""
    kernel, stride, dilation = layer.kernel_size, layer.stride, layer.dilation
    margins: list[int] = []  # before and after, last dimension first, as functional.pad takes them
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
        x = x.unfold(2 + axis, span, stride[axis] * patch_stride)[..., :: dilation[axis]]
    return x


register_layer(nn.Linear, LinearKind())
register_layer(nn.Conv1d, ConvolutionKind())
register_layer(nn.Conv2d, ConvolutionKind())
register_layer(nn.Conv3d, ConvolutionKind())
register_layer(nn.ConvTranspose1d, TransposedConvolutionKind())
register_layer(nn.ConvTranspose2d, TransposedConvolutionKind())
register_layer(nn.ConvTranspose3d, TransposedConvolutionKind())

register_norm(nn.modules.batchnorm._BatchNorm)
register_norm(nn.LayerNorm)
register_norm(nn.GroupNorm)
register_norm(nn.RMSNorm)
register_norm(nn.modules.instancenorm._InstanceNorm)


@dataclass(frozen=True)
class Site:
    """One weight matrix of a model: rows `start` to `stop` of a parameter of a layer."""

    name: str
    layer: nn.Module
    kind: LayerKind[Any]
    number: int  # index among the matrices of the layer
    parameter: str
    start: int
    stop: int
    dimension: int
    source: Source  # key of its inputs in `tap`

    @property
    def weight(self) -> Tensor:
        """Return the parameter this site is a part of."""
        return self.layer.get_parameter(self.parameter)

    def matrix(self, tensor: Tensor) -> Tensor:
        """View the part of a weight-shaped tensor that belongs to this site as (o x d)."""
        part = tensor[self.start : self.stop]
        matrix = part.reshape(len(part), part[0].numel())
        return matrix.T if self.kind.transposed else matrix

    def write(self, tensor: Tensor, matrix: Tensor) -> None:
        """Write this site's matrix (o x d) into a weight-shaped tensor of any memory format."""
        part = tensor[self.start : self.stop]
        part.copy_((matrix.T if self.kind.transposed else matrix).reshape(part.shape))

    def matrix_input(self, x: Tensor) -> Tensor:
        """Return the part of an input of the layer that this site sees: its group's channels."""
        return self.kind.matrix_input(self.layer, self.number, x)

    def rows(self, x: Tensor, patch_stride: int = 1) -> Tensor:
        """Unfold an input of the layer (n, ...) into the rows W multiplies (n * positions x d).

        Of a convolution's positions, take one in `patch_stride` along each axis, from the first.
        """
        return self.kind.rows(self.layer, self.matrix_input(x), patch_stride)

    def gram(self, x: Tensor) -> Tensor:
        """Return C Cᵀ of the rows of an input (d x d, float64)."""
        return self.kind.gram(self.layer, self.matrix_input(x))


def dotted(module: str, label: str) -> str:
    """Return the name of a parameter or buffer of a module; the model itself has the name "".

    >>> dotted("block.fc", "weight"), dotted("", "weight")
    ('block.fc.weight', 'weight')
    """
    return f"{module}.{label}" if module else label


def sites(model: nn.Module) -> dict[str, Site]:
    """List the trainable weight matrices by dotted name.

    A group of a convolution is `name[g]`; the matrices of nn.MultiheadAttention are `name[query]`,
    `name[key]`, `name[value]` and `name.out_proj`.

    >>> [s.dimension for s in sites(nn.Sequential(nn.Conv2d(3, 8, 5), nn.Linear(7, 2))).values()]
    [75, 7]
    """
    by_name: dict[str, Site] = {}
    owners: dict[tuple[int, int], str] = {}
    inside = {module for layer in model.modules() for module in inner_modules(layer)}
    for name, layer in model.named_modules():
        if layer in inside or not any(p.requires_grad for p in layer.parameters()):
            continue
        for site in _sites_of(name, layer):
            key = (id(site.weight), site.start)
            if key in owners:
                raise UserError(
                    f"layers '{owners[key]}' and '{site.name}' share one weight: use one module "
                    "twice, so that its inputs are seen together"
                )
            if site.name in by_name:
                raise UserError(f"two weight matrices have the name '{site.name}': rename a layer")
            owners[key] = site.name
            by_name[site.name] = site
    return by_name


def _sites_of(name: str, layer: nn.Module) -> Iterator[Site]:
    """Yield the trainable weight matrices of one layer; refuse those that cannot be protected."""
    base = _registered(layer)
    if base is None:
        return
    if any(isinstance(p, nn.UninitializedParameter) for p in layer.parameters()):
        raise UserError(
            f"layer '{name}' ({type(layer).__name__}) has no size yet: run the model once first"
        )
    kind = _LAYERS[base]
    for number, matrix in enumerate(kind.matrices(layer)):
        weight = attrgetter(matrix.parameter)(layer)
        if not isinstance(weight, nn.Parameter) or not _is_forward_of(base, layer):
            plain = ("nn." if base.__module__.startswith("torch.nn") else "") + base.__name__
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) cannot be protected: its weight is "
                f"computed, or its forward is not that of {plain}; use a plain layer, "
                "freeze it with requires_grad_(False), or tell classgrad.register_layer how "
                "it uses its weight"
            )
        if weight.requires_grad:
            yield Site(
                name + matrix.suffix,
                layer,
                kind,
                number,
                matrix.parameter,
                matrix.start,
                matrix.stop,
                matrix.stop - matrix.start if kind.transposed else weight[0].numel(),
                (layer, matrix.input),
            )


def _is_forward_of(base: type[nn.Module], layer: nn.Module) -> bool:
    # `Projector.install` itself refuses a layer that has the forward of another guard.
    replaced = vars(layer).get("forward")
    equivalent = replaced is None or isinstance(replaced, EquivalentForward)
    return type(layer).forward is base.forward and equivalent


class EquivalentForward:
    """A replacement for the forward of one layer, with the same outputs."""


class OwnForward(EquivalentForward):
    """What a copy of a layer, or one that was pickled, has instead: the forward of its class."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer = layer

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the output of the layer."""
        return type(self.layer).forward(self.layer, *args, **kwargs)


def install_forward(layer: nn.Module, forward: EquivalentForward) -> None:
    """Replace the forward of a layer, until `remove_forward`."""
    vars(layer)["forward"] = forward


def remove_forward(layer: nn.Module) -> None:
    """Restore the forward of a layer's class."""
    del vars(layer)["forward"]


def by_layer(
    value: Any, names: Iterable[str], *, implied: str = "", optional: tuple[str, ...] = ()
) -> dict[str, Any]:
    """Resolve a setting for each site: one value for all, or values by name or pattern.

    A name wins over patterns, an earlier pattern over later ones. A group of a convolution goes by
    the name of its layer. Names can leave out the prefix `implied`. Every key has to match a site,
    unless it begins with one of `optional`.

    >>> by_layer({"*": 2, "fc1": 1}, ["conv1", "fc1"])
    {'conv1': 2, 'fc1': 1}
    """
    names = list(names)
    if not isinstance(value, dict):
        return dict.fromkeys(names, value)
    chosen = {}
    for name in names:
        layer = name.split("[")[0]
        labels = (layer, layer.removeprefix(implied))
        matching = [key for key in value if key in labels]
        matching += [key for key in value if any(fnmatchcase(label, key) for label in labels)]
        if not matching:
            raise UserError(f"no value for layer '{name}' in {value}: add it, or '*' for the rest")
        chosen[name] = matching[0]
    for key in value:
        if key not in chosen.values() and not key.startswith(optional):
            raise UserError(
                f"'{key}' matches no layer, or only layers that another key matches first: the "
                f"layers are {', '.join(names)}"
            )
    return {name: value[key] for name, key in chosen.items()}


@contextmanager
def tap(watched: Iterable[Site]) -> Iterator[dict[Source, list[Tensor]]]:
    """Record the inputs of these sites' layers while the block runs.

    Yields a dict, `Site.source` -> the inputs of its calls, oldest first; clear it between batches.
    Inputs are copied when the layer is called, so a later in-place operation cannot change them.
    The hooks are removed when the block ends, also by an exception. Compiled code, which may have
    been made without them, is not run.
    """
    seen: dict[Source, list[Tensor]] = {}

    def record(layer: nn.Module, number: int, x: Tensor) -> None:
        seen.setdefault((layer, number), []).append(x.detach().clone())

    with ExitStack() as stack:
        stack.enter_context(_fast_path_off())
        stack.enter_context(_compiled_code_off())
        for layer, kind in {site.layer: site.kind for site in watched}.items():
            stack.enter_context(kind.record_inputs(layer, partial(record, layer)))
        yield seen


def _compiled_code_off() -> AbstractContextManager[Any]:
    """Run what torch.compile has compiled as it was written."""
    # Importing the compiler, which takes a second, is left to whoever compiles.
    if "torch._dynamo" in sys.modules and hasattr(torch.compiler, "set_stance"):  # PyTorch 2.6
        off: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
        return off
    return nullcontext()


@contextmanager
def _fast_path_off() -> Iterator[None]:
    """Switch off the fused path of transformers, which uses weights without calling layers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
