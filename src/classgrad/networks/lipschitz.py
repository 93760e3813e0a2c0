"""How far the outputs of a trunk can have moved, from how far its weights have.

The weights of a layer y = W x were W' when an input x' was recorded. Then

    W x - W' x' = (W - W') x' + W (x - x'),      |W x - W' x'| ≤ own + |W| · |x - x'|

The first part is known for each output channel (`Own`); the second is the norm of the layer times
how far its inputs have moved, which is what the layers before it contribute. Activations that never
move two values apart pass movements on. All norms are over all samples and positions together.

The inner channels of a block can be scaled by any positive numbers, since its activations and its
depthwise convolution treat each channel alone: |P E| ≤ |P D⁻¹| |D E|. A scale that balances the two
matrices gives a smaller bound than 1 does.
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from classgrad.core.layers import EquivalentForward
from classgrad.networks.efficientnet_lite import Block, ConvNorm
from classgrad.networks.layers import Dropout, FixedNorm
from classgrad.networks.trunk import Trunk

Own = Mapping[nn.Module, Tensor]  # by layer, of each output channel

# Activations f with |f(a) - f(b)| ≤ |a - b|.
CONTRACTIONS = (nn.Identity, nn.Flatten, Dropout, nn.ReLU, nn.ReLU6, nn.Tanh, nn.Sigmoid)
# What is followed; a Trunk is a Sequential with a forward of its own that does the same.
KINDS: tuple[type[nn.Module], ...] = (
    *(Block, ConvNorm, Trunk, nn.Sequential, nn.Linear, nn.Conv2d, FixedNorm),
    *(nn.AdaptiveAvgPool2d, nn.MaxPool2d, *CONTRACTIONS),
)
POSITIONS = 64  # up to which the norm of a depthwise convolution is computed exactly


class CannotFollow(Exception):
    """A layer whose outputs are not known to move by a bounded amount; its name is the message."""


class Movements:
    """Bounds on the movement of a trunk's outputs, with its current weights.

    `example` is an input of the trunk, whose values do not matter.
    """

    def __init__(self, trunk: nn.Module, example: Tensor) -> None:
        self.trunk = trunk
        self.names = {module: name for name, module in trunk.named_modules()}
        self.sizes: dict[nn.Module, tuple[int, ...]] = {}  # height and width of a layer's inputs
        handles = [
            module.register_forward_pre_hook(self._note_size)
            for module in trunk.modules()
            if isinstance(module, nn.Conv2d | nn.AdaptiveAvgPool2d)
        ]
        try:
            with torch.no_grad():
                trunk.eval()(example)
        finally:
            for handle in handles:
                handle.remove()
        self.norms: dict[nn.Module, float] = {}
        self.blocks: dict[Block, tuple[Tensor, Tensor, Tensor]] = {}

    def _note_size(self, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        self.sizes[module] = tuple(args[0].shape[2:])

    def of_outputs(self, own: Own) -> float:
        """Return a bound on how far outputs have moved, in the norm of all samples together."""
        return self._through(self.trunk, 0.0, own)

    def _through(self, module: nn.Module, moved: float, own: Own) -> float:
        """Return how far the outputs of a module have moved, if its inputs have by `moved`."""
        if not moved and not any(part in own for part in module.modules()):
            return 0.0
        if not computes_as_its_kind(module):
            raise CannotFollow(f"{self.names[module]} ({type(module).__name__})")
        if isinstance(module, Block):
            return self._through_block(module, moved, own)
        if isinstance(module, nn.Sequential):
            for layer in module:
                moved = self._through(layer, moved, own)
            return moved
        if isinstance(module, ConvNorm):
            return self._norm(module) * moved + length(own.get(module.conv))
        if isinstance(module, nn.Linear | nn.Conv2d):
            return self._norm(module) * moved + length(own.get(module))
        if isinstance(module, FixedNorm):
            return float(module.scale_and_shift()[0].abs().max()) * moved
        if isinstance(module, CONTRACTIONS):
            return moved
        if isinstance(module, nn.AdaptiveAvgPool2d) and module.output_size in (1, (1, 1)):
            return moved / math.sqrt(math.prod(self.sizes[module]))
        if isinstance(module, nn.MaxPool2d):
            return math.sqrt(self._overlap(module)) * moved
        raise CannotFollow(f"{self.names[module]} ({type(module).__name__})")

    def _norm(self, layer: nn.Module) -> float:
        """Return the norm of a layer, or a bound on it."""
        if layer not in self.norms:
            self.norms[layer] = self._computed_norm(layer)
        return self.norms[layer]

    def _computed_norm(self, layer: nn.Module) -> float:
        if isinstance(layer, nn.Linear):
            return spectral_norm(as_float64(layer.weight))
        conv, scale = scaled_convolution(layer)
        if is_depthwise(conv):
            return float((scale.abs() * self._depthwise_norms(conv)).max())
        rows = (as_float64(conv.weight) * scale[:, None, None, None]).flatten(1)
        groups = max(spectral_norm(part) for part in rows.chunk(conv.groups))
        return math.sqrt(self._overlap(conv)) * groups

    def _overlap(self, layer: nn.Conv2d | nn.MaxPool2d) -> int:
        """Return in how many windows of a layer one position can be, its padding included."""
        kernel, stride, dilation = (
            (n, n) if isinstance(n, int) else n
            for n in (layer.kernel_size, layer.stride, layer.dilation)
        )
        copies = getattr(layer, "padding_mode", "zeros") != "zeros"  # of positions at the edge
        if tuple(dilation) != (1, 1) or copies:
            raise CannotFollow(f"{self.names[layer]} ({type(layer).__name__})")
        return math.prod(-(-size // step) for size, step in zip(kernel, stride, strict=True))

    def _depthwise_norms(self, conv: nn.Conv2d) -> Tensor:
        """Return the norm of each channel's convolution, or the sum of its weights' sizes."""
        weight, size = as_float64(conv.weight), self.sizes[conv]
        positions = math.prod(size)
        if positions > POSITIONS:
            return weight.abs().sum((1, 2, 3))
        images = torch.eye(positions, dtype=torch.float64)
        images = images.reshape(positions, 1, *size).expand(-1, len(weight), -1, -1)
        out = nn.functional.conv2d(
            images, weight, None, conv.stride, conv.padding, conv.dilation, conv.groups
        )
        norms: Tensor = torch.linalg.matrix_norm(out.flatten(2).transpose(0, 1), 2)
        return norms

    def _through_block(self, block: Block, moved: float, own: Own) -> float:
        if block.expand is None or not is_depthwise(block.depthwise.conv):
            inner = moved if block.expand is None else self._through(block.expand, moved, own)
            inner = self._through(block.depthwise, inner, own)
            out = self._through(block.project, inner, own)
            return moved + out if block.residual else out
        if block.depthwise.conv in own:
            raise CannotFollow(f"{self.names[block.depthwise]} (a depthwise layer that learns)")
        if block not in self.blocks:
            self.blocks[block] = self._matrices(block)
        first, second, scale = self.blocks[block]
        both = moved * min(
            spectral_norm(second / d) * spectral_norm(first * d[:, None])
            for d in (torch.ones_like(scale), scale)
        )
        inner_own = own.get(block.expand.conv)
        through = 0.0 if inner_own is None else passed_on(second, inner_own.to(second), scale)
        out = both + through + length(own.get(block.project.conv))
        return moved + out if block.residual else out

    def _matrices(self, block: Block) -> tuple[Tensor, Tensor, Tensor]:
        """Return the matrices into and out of the inner channels, and a scale between them."""
        assert block.expand is not None
        first, second = (
            (as_float64(conv.weight).flatten(1) * scale[:, None])
            for conv, scale in map(scaled_convolution, (block.expand, block.project))
        )
        conv, scale = scaled_convolution(block.depthwise)
        second = second * (scale.abs() * self._depthwise_norms(conv))
        return first, second, balance(first, second)


def computes_as_its_kind(module: nn.Module) -> bool:
    """Tell whether a module is of a known kind, and not a subclass with a forward of its own."""
    kind = next((kind for kind in KINDS if isinstance(module, kind)), nn.Module)
    names = [name for name in ("forward", "_conv_forward") if hasattr(kind, name)]
    return isinstance(vars(module).get("forward"), EquivalentForward | None) and all(
        getattr(type(module), name) is getattr(kind, name) for name in names
    )


def as_float64(values: Tensor) -> Tensor:
    """Return values in float64, on the CPU: not every device has float64."""
    return values.detach().cpu().double()


def scaled_convolution(layer: nn.Module) -> tuple[nn.Conv2d, Tensor]:
    """Return a convolution, and what its norm multiplies each output channel by."""
    if isinstance(layer, ConvNorm):
        return layer.conv, as_float64(layer.norm.scale_and_shift()[0])
    assert isinstance(layer, nn.Conv2d)
    return layer, torch.ones(layer.out_channels, dtype=torch.float64)


def is_depthwise(conv: nn.Conv2d) -> bool:
    """Tell whether each channel is convolved alone, in a way that zeros around it do not change."""
    return conv.groups == conv.in_channels == conv.out_channels and conv.padding_mode == "zeros"


def length(own: Tensor | None) -> float:
    """Return the norm of all output channels together."""
    return 0.0 if own is None else float(as_float64(own).norm())


def spectral_norm(matrix: Tensor) -> float:
    """Return the largest singular value."""
    thin = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    return math.sqrt(max(float(torch.linalg.eigvalsh(thin @ thin.T)[-1]), 0.0))


def balance(first: Tensor, second: Tensor) -> Tensor:
    """Return a scale of the inner channels for which |second / d| |d · first| is small."""
    rows, columns = first.norm(dim=1), second.norm(dim=0)
    floor = 1e-3
    columns, rows = (columns / columns.max()).clamp(floor), (rows / rows.max()).clamp(floor)
    return torch.sqrt(columns / rows)


def passed_on(second: Tensor, own: Tensor, scale: Tensor) -> float:
    """Return how far second @ y can be, where channel c of y is at most own[c] long."""
    scales = [torch.ones_like(scale), scale, 1 / own.clamp(min=1e-3 * float(own.max()) or 1.0)]
    bounds = [spectral_norm(second / d) * float((d * own).norm()) for d in scales]
    return min(*bounds, float((second.abs() @ own).norm()))
