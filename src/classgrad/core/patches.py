"""The patches of its input that the weight of a convolution multiplies, for every geometry."""

import math
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn import functional

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d


def patches(layer: Convolution, x: Tensor, every: int = 1) -> Tensor:
    """Unfold (n, C, *size) into a convolution's patches (n * positions, C * kernel)."""
    x = _unfolded(layer, x, range(len(layer.kernel_size)), every)
    # (n, C, *positions, *kernel) -> (n, *positions, C, *kernel)
    axes = len(layer.kernel_size)
    order = [0, *range(2, 2 + axes), 1, *range(2 + axes, 2 + 2 * axes)]
    return x.permute(order).reshape(-1, x.shape[1] * math.prod(layer.kernel_size))


def lines_of(layer: Convolution, x: Tensor) -> Tensor:
    """Unfold (n, C, h, *size) along all axes but the first (h, n * positions, C * kernel)."""
    x = _unfolded(layer, x, range(1, len(layer.kernel_size)))
    axes = len(layer.kernel_size)
    # (n, C, h, *positions, *kernel) -> (h, n, *positions, C, *kernel)
    order = [2, 0, *range(3, 2 + axes), 1, *range(2 + axes, 1 + 2 * axes)]
    return x.permute(order).reshape(x.shape[2], -1, x.shape[1] * math.prod(layer.kernel_size[1:]))


def _unfolded(layer: Convolution, x: Tensor, axes: Iterable[int], every: int = 1) -> Tensor:
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
