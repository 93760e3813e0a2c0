"""EfficientNet-Lite as plain functions of a released state dict, by its own names.

BatchNorm is folded into the convolutions, and TensorFlow's padding is that of its documentation:
an edge of n pixels gives ceil(n / stride) outputs, with the odd zero at the end.
"""

import torch
from torch.nn import functional

# (channels, blocks, kernel, stride, expansion) of the stages, with the depth of each network.
KERNELS = (3, 3, 5, 3, 5, 5, 3)
STRIDES = (1, 2, 2, 2, 1, 2, 1)
DEPTHS = {"0": (1, 2, 2, 3, 3, 4, 1), "1": (1, 3, 3, 4, 4, 5, 1), "2": (1, 3, 3, 4, 4, 5, 1)}


def convolution(state, x, conv, norm, stride=1, relu=True):
    weight = state[f"{conv}.weight"].double()
    factor = (
        state[f"{norm}.weight"].double() / (state[f"{norm}.running_var"].double() + 1e-3) ** 0.5
    )
    bias = state[f"{norm}.bias"].double() - factor * state[f"{norm}.running_mean"].double()
    kernel, padding = weight.shape[-1], []
    for edge in (x.shape[-1], x.shape[-2]):
        total = max((-(-edge // stride) - 1) * stride + kernel - edge, 0)
        padding += [total // 2, total - total // 2]
    groups = x.shape[1] // weight.shape[1]
    y = functional.conv2d(
        functional.pad(x, padding), weight * factor[:, None, None, None], bias, stride, 0, 1, groups
    )
    return y.clamp(0, 6) if relu else y


def features(state, x, variant="0"):
    """Map images (n, 3, h, w), normalised, to (n, 1280), in double precision."""
    x = convolution(state, x.double(), "_conv_stem", "_bn0", 2)
    number = 0
    for stage, depth in enumerate(DEPTHS[variant]):
        for index in range(depth):
            name, y = f"_blocks.{number}", x
            if stage:
                y = convolution(state, y, f"{name}._expand_conv", f"{name}._bn0")
            stride = STRIDES[stage] if index == 0 else 1
            assert state[f"{name}._depthwise_conv.weight"].shape[-1] == KERNELS[stage]
            y = convolution(state, y, f"{name}._depthwise_conv", f"{name}._bn1", stride)
            y = convolution(state, y, f"{name}._project_conv", f"{name}._bn2", relu=False)
            x = x + y if index else y
            number += 1
    return torch.mean(convolution(state, x, "_conv_head", "_bn1"), (2, 3))
