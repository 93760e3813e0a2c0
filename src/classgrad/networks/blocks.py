"""Norm, ReLU, dropout and pooling, fused into few passes over memory.

Called one after another, these layers read and write a convolution's output some fourteen times,
which takes longer than the convolution. For BatchNorm on batch statistics, with scale γ and shift
β, dropout by factors m in {0, a} with a = 1/(1 - share), and maxima over windows W,

    y = max_W m relu(γ x̂ + β) = relu(max_W [m > 0] (aγ x̂ + aβ)),

because m >= 0: the norm computes values that are already scaled by a, and the ReLU comes last,
where few of them are left. y is positive only where its gradient passes, so neither the mask nor
the values before the pooling have to be kept. In evaluation the pooling comes first, see `Pooled`.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from classgrad.networks.layers import Dropout, PerTask, TaskBatchNorm


def run(layers: Sequence[nn.Module], x: Tensor) -> Tensor:
    """Apply layers one after another, fusing those that form a block."""
    position = 0
    while position < len(layers):
        block = block_at(layers, position, x)
        x = apply(block, x) if block else layers[position](x)
        position += max(1, len(block))
    return x


def run_each(
    layers: Sequence[nn.Module], x: Tensor, tasks: Sequence[int], select: Callable[[int], None]
) -> list[Tensor]:
    """Apply layers for each of these tasks; what comes before the first task's own is shared.

    `select` chooses the task in all layers.
    """
    own = next((n for n, layer in enumerate(layers) if is_task_dependent(layer)), len(layers))
    common = run(layers[:own], x)
    block = block_at(layers, own, common) if own < len(layers) else []
    norm = block[0] if block else None
    pooled = Pooled(norm, common) if isinstance(norm, TaskBatchNorm) and not norm.training else None
    outputs = []
    for task in tasks:
        select(task)
        if pooled is None:
            outputs.append(run(layers[own:], common))
        else:
            outputs.append(run(layers[own + len(block) :], pooled.output()))
    return outputs


def is_task_dependent(layer: nn.Module) -> bool:
    """Tell whether the output of a layer depends on the task."""
    return any(part.task_dependent for part in layer.modules() if isinstance(part, PerTask))


def run_both(
    layers: Sequence[nn.Module],
    x: Tensor,
    other: Tensor,
    around_other: Callable[[], AbstractContextManager[None]],
) -> tuple[Tensor, Tensor]:
    """Apply layers to two batches, each with its own batch statistics.

    A Linear layer is called once for both: reading its weight and adding up two gradients of it
    takes a large part of the time of its products. Other layers are called with `other` inside of
    the context `around_other`.
    """
    rest = list(layers)
    while rest:
        linear = next((i for i, layer in enumerate(rest) if isinstance(layer, nn.Linear)), None)
        x = run(rest[:linear], x)
        with around_other():
            other = run(rest[:linear], other)
        if linear is None:
            break
        x, other = rest[linear](torch.cat([x, other])).split([len(x), len(other)])
        rest = rest[linear + 1 :]
    return x, other


def block_at(layers: Sequence[nn.Module], position: int, x: Tensor) -> list[nn.Module]:
    """Return the layers from `position` on that form a block: norm, ReLU, dropout, pooling.

    In evaluation mode a block has to end with pooling. Layers with hooks form no block, as they
    have to be called, nor does a norm that sees a shard of a batch and needs the statistics of the
    whole.
    """
    norm = layers[position]
    if not (isinstance(norm, TaskBatchNorm) and is_plain_norm(norm) and has_no_hooks(norm)):
        return []
    if not (torch.is_grad_enabled() if norm.training else can_pool_first(norm, x)):
        return []
    block: list[nn.Module] = [norm]
    for is_expected in (is_relu, is_dropout, is_pooling):
        after = position + len(block)
        if after < len(layers) and is_expected(layers[after]) and has_no_hooks(layers[after]):
            block.append(layers[after])
        elif is_expected is is_relu:
            return []
    if is_pooling(block[-1]) and x.dim() != 4:
        block.pop()
    if not norm.training and (not is_pooling(block[-1]) or any(part.training for part in block)):
        return []
    return block


def is_plain_norm(norm: TaskBatchNorm) -> bool:
    """Tell whether a norm uses the statistics of its input, with their gradient, or stored ones.

    A norm that is fixed while the network learns passes a gradient through stored ones.
    """
    return (
        type(norm).forward is TaskBatchNorm.forward
        and not (norm.fixed and norm.training)
        and not norm.constant
        and norm.sums is None
        and norm.shard is None
    )


def can_pool_first(norm: TaskBatchNorm, x: Tensor) -> bool:
    """Tell whether `Pooled` can compute the values of a norm in evaluation mode.

    Not while a network is exported: it looks at values.
    """
    scale, _ = norm.scale_and_shift()
    plain = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return plain and x.device.type == "cpu" and x.dtype == scale.dtype


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
    if not norm.training:
        return Pooled(norm, x).output()
    scale, shift = norm.scale_and_shift()
    norm.refuse_single(x)
    kept, factor = None, 1.0
    if rest and isinstance(rest[0], Dropout) and rest[0].training:
        kept, factor = rest[0].kept(x), 1 / (1 - rest[0].share)
    pooled = bool(rest) and isinstance(rest[-1], nn.MaxPool2d)
    out: Tensor = _Block.apply(x, scale, shift, kept, factor, pooled, norm.running(), norm.eps)
    return out


class Pooled:
    """A block in evaluation mode, with the pooling first: fewer values are left for the norm.

    The norm maps the values v of a channel to αv + β, rounded or not a monotonic function, so

        max_W relu(αv + β) = relu(α max_W v + β) if α >= 0, relu(α min_W v + β) otherwise,

    bit for bit. Extremes and batch statistics are computed once; `output` is called for each task.
    """

    def __init__(self, norm: TaskBatchNorm, x: Tensor) -> None:
        self.norm, self.x = norm, x
        if norm.statistics == "batch":
            norm.refuse_single(x)
            self.mean, variance = torch.batch_norm_update_stats(x, None, None, 0.0)
            self.inverse = (variance.double() + norm.eps).sqrt().reciprocal().to(x.dtype)
        self.largest = functional.max_pool2d(x, 2)

    @cached_property
    def smallest(self) -> Tensor:
        """The smallest value of each window."""
        return -functional.max_pool2d(-self.x, 2)

    def output(self) -> Tensor:
        """Return the block's output for the selected task."""
        norm, values = self.norm, self.largest
        scale, shift = norm.scale_and_shift()
        falling = scale < 0
        if falling.any():
            values = torch.where(falling[:, None, None], self.smallest, values)
        mean, variance, _ = norm.running()
        eps = norm.eps
        if norm.statistics == "batch":
            # As PyTorch computes them: α = scale/σ, and β = shift - α mean, rounded once.
            scale = scale * self.inverse
            shift = (shift.double() - scale.double() * self.mean.double()).to(scale.dtype)
            mean, variance, eps = torch.zeros_like(scale), torch.ones_like(scale), 0.0
        return functional.batch_norm(values, mean, variance, scale, shift, False, 0.0, eps).relu_()


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
            y, indices = functional.max_pool2d_with_indices(y, [2, 2])
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
