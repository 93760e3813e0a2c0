"""Norm, ReLU, dropout and pooling of a training step, fused into few passes over memory.

Called one after another, these layers read and write a convolution's output some fourteen times,
which takes longer than the convolution. For BatchNorm on batch statistics, with scale γ and shift
β, dropout by factors m in {0, a} with a = 1/(1 - share), and maxima over windows W,

    y = max_W m relu(γ x̂ + β) = relu(max_W [m > 0] (aγ x̂ + aβ)),

because m >= 0: the norm computes values that are already scaled by a, and the ReLU comes last,
where few of them are left. y is positive only where its gradient passes, so neither the mask nor
the values before the pooling have to be kept.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from classgrad.networks.layers import Dropout, TaskBatchNorm


def run(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply layers one after another, fusing those that form a block."""
    position = 0
    while position < len(layers):
        block = block_at(layers, position, x)
        x = apply(block, x) if block else layers[position](x)
        position += max(1, len(block))
    return x


def block_at(layers: Sequence[nn.Module], position: int, x: Tensor) -> list[nn.Module]:
    """Return the layers from `position` on that form a block: norm, ReLU, dropout, pooling.

    The norm has to be in training mode. Layers with hooks form no block, as they have to be called,
    nor does a norm that sees a shard of a batch and needs the statistics of the whole.
    """
    norm = layers[position]
    if not (
        norm.training and torch.is_grad_enabled() and is_plain_norm(norm) and has_no_hooks(norm)
    ):
        return []
    block = [norm]
    for is_expected in (is_relu, is_dropout, is_pooling):
        after = position + len(block)
        if after < len(layers) and is_expected(layers[after]) and has_no_hooks(layers[after]):
            block.append(layers[after])
        elif is_expected is is_relu:
            return []
    if is_pooling(block[-1]) and x.dim() != 4:
        block.pop()
    return block


def is_plain_norm(layer: nn.Module) -> bool:
    """Tell whether a layer is a norm whose gradient passes through the batch statistics."""
    return (
        isinstance(layer, TaskBatchNorm)
        and type(layer).forward is TaskBatchNorm.forward
        and not layer.constant
        and layer.shard is None
    )


def is_relu(layer: nn.Module) -> bool:
    """Tell whether a layer is a ReLU."""
    return type(layer) is nn.ReLU


def is_dropout(layer: nn.Module) -> bool:
    """Tell whether a layer is a `Dropout` of this package."""
    return type(layer) is Dropout


def is_pooling(layer: nn.Module) -> bool:
    """Tell whether a layer is max pooling over 2 x 2 windows without overlap."""
    return type(layer) is nn.MaxPool2d and (
        layer.kernel_size,
        layer.stride,
        layer.padding,
        layer.dilation,
        layer.return_indices,
        layer.ceil_mode,
    ) == (2, 2, 0, 1, False, False)


def has_no_hooks(layer: nn.Module) -> bool:
    """Tell whether a layer has no hooks."""
    return not (
        layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
    )


def apply(block: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply the layers of a block at once."""
    norm, _, *rest = block
    assert isinstance(norm, TaskBatchNorm)
    scale, shift = norm.scale_and_shift()
    norm.refuse_single(x)
    kept, factor = None, 1.0
    if rest and isinstance(rest[0], Dropout) and rest[0].training:
        kept, factor = rest[0].kept(x), 1 / (1 - rest[0].share)
    pooled = bool(rest) and isinstance(rest[-1], nn.MaxPool2d)
    out: Tensor = _Block.apply(x, scale, shift, kept, factor, pooled, norm.running(), norm.eps)
    return out


class _Block(torch.autograd.Function):
    """The block of the module docstring; with g the gradient of y at the maxima where y > 0,

    ∂L/∂β = a Σ g,   ∂L/∂γ = a Σ g x̂,   ∂L/∂x = aγ/σ (g - mean g - x̂ mean(g x̂)).
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        kept: Tensor | None,
        factor: float,
        pooled: bool,
        running: tuple[Tensor | None, Tensor | None, float],
        eps: float,
    ) -> Tensor:
        ctx.factor, ctx.eps, ctx.shape = factor, eps, x.shape
        scaled = scale * factor
        y, mean, inverse = torch.native_batch_norm(
            x, scaled, shift * factor, running[0], running[1], True, running[2], eps
        )
        if kept is not None:
            y.mul_(kept)
        indices = None
        if pooled:
            y, indices = torch.nn.functional.max_pool2d_with_indices(y, [2, 2])
        y.relu_()
        ctx.save_for_backward(x, scaled, mean, inverse, y, indices)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scaled, mean, inverse, y, indices = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, y, 0)
        if indices is not None:
            grad = torch.ops.aten.max_pool2d_with_indices_backward(
                grad, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices
            )
        grad_x, grad_scale, grad_shift = torch.ops.aten.native_batch_norm_backward(
            grad, x, scaled, None, None, mean, inverse, True, ctx.eps, [True, True, True]
        )
        gradients = grad_x, grad_scale * ctx.factor, grad_shift * ctx.factor
        return *gradients, None, None, None, None, None
