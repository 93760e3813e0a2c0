"""Batch normalisation by the statistics of a batch that several processes have parts of.

With N values per channel in all, sums over all of them, and g the gradient of y = γ x̂ + β,

    ∂L/∂x = γ/σ (g - Σ g / N - x̂ Σ g x̂ / N),

while the gradients of γ and β are those of the part: what is averaged later are gradients.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from classgrad.distributed import world

Running = tuple[Tensor | None, Tensor | None, float]


def batch_norm(x: Tensor, scale: Tensor, shift: Tensor, running: Running, eps: float) -> Tensor:
    """Normalise this part of a batch by all of it; `running` is to follow the statistics."""
    out: Tensor = _WholeBatch.apply(x.to(scale.dtype), scale, shift, running, eps)
    return out.to(x.dtype)


class _WholeBatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, scale: Tensor, shift: Tensor, running: Running, eps: float
    ) -> Tensor:
        own = x.numel() // x.shape[1]
        variance, mean = (v.double() for v in statistics(x))
        sums = torch.cat([own * mean, own * (variance + mean**2), mean.new_tensor([own])])
        *sums, count = world().sum(sums).split([len(mean), len(mean), 1])
        mean = sums[0] / count
        variance = (sums[1] / count - mean**2).clamp_min(0)
        ctx.count = int(count)
        follow(running, mean, variance * ctx.count / (ctx.count - 1))
        mean, variance = mean.to(x.dtype), variance.to(x.dtype)
        ctx.save_for_backward(x, scale, mean, (variance + eps).rsqrt())
        return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, inverse = ctx.saved_tensors
        _, of_scale, of_shift = torch.ops.aten.native_batch_norm_backward(
            grad, x, scale, None, None, mean, inverse, True, 0.0, [False, True, True]
        )
        sums = world().sum(torch.stack([of_shift, of_scale]).double()) / ctx.count
        first, second = sums.to(x.dtype)
        # ∂L/∂x is a sum of g and x, each by a factor for its channel, and of a number.
        by_grad = scale * inverse
        by_x = -by_grad * second * inverse
        shape = [1, -1, *[1] * (x.dim() - 2)]
        rest = (-by_grad * first - by_x * mean).view(shape)
        of_x = torch.addcmul(rest, x, by_x.view(shape)).addcmul_(grad, by_grad.view(shape))
        return of_x, of_scale, of_shift, None, None


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance and mean of every channel; `torch.var_mean` takes five times as long."""
    own = x.numel() // x.shape[1]
    mean, variance = x.new_zeros(2, x.shape[1])
    if own == 1:
        return variance, x.flatten()
    torch.batch_norm(x, None, None, mean, variance, True, 1.0, 0.0, False)
    return variance * ((own - 1) / own), mean


def follow(running: Running, mean: Tensor, variance: Tensor) -> None:
    """Let stored statistics move to those of a batch."""
    stored, spread, momentum = running
    if stored is not None and spread is not None:
        stored.lerp_(mean.to(stored), momentum)
        spread.lerp_(variance.to(spread), momentum)
