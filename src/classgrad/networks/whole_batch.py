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
        over = [0, *range(2, x.dim())]
        own = x.numel() // x.shape[1]
        variance, mean = (v.double() for v in torch.var_mean(x, over, correction=0))
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
        over, shape = [0, *range(2, x.dim())], [1, -1, *[1] * (x.dim() - 2)]
        normal = (x - mean.view(shape)) * inverse.view(shape)
        of_shift, of_scale = grad.sum(over), (grad * normal).sum(over)
        sums = world().sum(torch.stack([of_shift, of_scale]).double()) / ctx.count
        first, second = (part.to(x.dtype).view(shape) for part in sums)
        of_x = (scale * inverse).view(shape) * (grad - first - normal * second)
        return of_x, of_scale, of_shift, None, None


def follow(running: Running, mean: Tensor, variance: Tensor) -> None:
    """Let stored statistics move to those of a batch."""
    stored, spread, momentum = running
    if stored is not None and spread is not None:
        stored.lerp_(mean.to(stored), momentum)
        spread.lerp_(variance.to(spread), momentum)
