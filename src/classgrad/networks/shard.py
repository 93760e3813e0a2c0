"""A shard of a batch, and batch normalisation by the statistics of the whole batch.

With N values per channel in the whole batch, Σ over all of them, and g the gradient of y = γ x̂ + β,

    ∂L/∂x = γ/σ (g - Σ g / N - x̂ Σ g x̂ / N),

while the gradients of γ and β are those of the shard, because gradients are averaged over processes
later.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

Sum = Callable[[Tensor], Tensor]  # over processes
Running = tuple[Tensor | None, Tensor | None, float]


def sum_over_one(values: Tensor) -> Tensor:
    """Return the values: their sum over one process."""
    return values


@dataclass(frozen=True)
class Shard:
    """The samples from `start` to `stop` of a batch of `whole` samples, split among `processes`.

    With one process, or fewer samples than processes, it is the whole batch, and every method
    returns its input.

    >>> Shard(64, 0, 64).is_whole, Shard(64, 16, 32, processes=4).size
    (True, 16)
    """

    whole: int
    start: int
    stop: int
    processes: int = 1
    sum: Sum = field(default=sum_over_one, repr=False)  # over all shards

    @property
    def is_whole(self) -> bool:
        """Whether this process has the whole batch."""
        return self.processes == 1

    @property
    def size(self) -> int:
        """Number of samples of this process."""
        return self.stop - self.start

    @property
    def part(self) -> slice:
        """The shard's samples in the batch: `batch[shard.part]`."""
        return slice(self.start, self.stop)

    @property
    def among(self) -> tuple[int, int] | None:
        """First sample and size of the batch; None if the shard is all of it."""
        return None if self.is_whole else (self.start, self.whole)

    @property
    def weight(self) -> float:
        """Factor of a mean over this shard with which the mean over processes is that of all."""
        return self.size * self.processes / self.whole

    def weighted(self, loss: Tensor) -> Tensor:
        """Return the mean loss of this shard times its weight."""
        return loss if self.is_whole else loss * self.weight

    def of_whole(self, count: int) -> int:
        """Return how many values the whole batch has, where this process has `count`."""
        return count // self.size * self.whole

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of the whole batch, given those of this shard; differentiable."""
        return rows if self.is_whole else _Gather.apply(rows, self)


class _Gather(torch.autograd.Function):
    """The rows of all shards; their gradients are summed over the processes that used them."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, shard: Shard) -> Tensor:
        ctx.shard = shard
        rows = part.new_zeros(shard.whole, *part.shape[1:])
        rows[shard.part] = part
        return shard.sum(rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.shard.sum(grad)[ctx.shard.part], None


def whole_batch_norm(
    x: Tensor, scale: Tensor, shift: Tensor, shard: Shard, running: Running, eps: float
) -> Tensor:
    """Normalise this shard by the statistics of the whole batch, and update `running`."""
    out: Tensor = _WholeBatch.apply(x.to(scale.dtype), scale, shift, shard, running, eps)
    return out.to(x.dtype)


class _WholeBatch(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        scale: Tensor,
        shift: Tensor,
        shard: Shard,
        running: Running,
        eps: float,
    ) -> Tensor:
        local = x.numel() // x.shape[1]
        variance, mean = (v.double() for v in statistics(x))
        sums = torch.cat([local * mean, local * (variance + mean**2), mean.new_tensor([local])])
        *sums, count = shard.sum(sums).split([len(mean), len(mean), 1])
        mean = sums[0] / count
        variance = (sums[1] / count - mean**2).clamp_min(0)
        ctx.shard, ctx.count = shard, int(count)
        update_running(running, mean, variance * ctx.count / (ctx.count - 1))
        mean, variance = mean.to(x.dtype), variance.to(x.dtype)
        ctx.save_for_backward(x, scale, mean, (variance + eps).rsqrt())
        return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, scale, mean, inverse = ctx.saved_tensors
        _, grad_scale, grad_shift = torch.ops.aten.native_batch_norm_backward(
            grad, x, scale, None, None, mean, inverse, True, 0.0, [False, True, True]
        )
        sums = ctx.shard.sum(torch.stack([grad_shift, grad_scale]).double()) / ctx.count
        mean_grad, mean_grad_x = sums.to(x.dtype)
        # Per channel, ∂L/∂x = factor_grad g + factor_x x + constant.
        factor_grad = scale * inverse
        factor_x = -factor_grad * mean_grad_x * inverse
        shape = [1, -1, *[1] * (x.dim() - 2)]
        constant = (-factor_grad * mean_grad - factor_x * mean).view(shape)
        grad_input = torch.addcmul(constant, x, factor_x.view(shape))
        grad_input.addcmul_(grad, factor_grad.view(shape))
        return grad_input, grad_scale, grad_shift, None, None, None


def statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return variance and mean of every channel; `torch.var_mean` takes five times as long."""
    count = x.numel() // x.shape[1]
    mean, variance = x.new_zeros(2, x.shape[1])
    if count == 1:
        return variance, x.flatten()
    torch.batch_norm(x, None, None, mean, variance, True, 1.0, 0.0, False)
    return variance * ((count - 1) / count), mean


def update_running(running: Running, mean: Tensor, variance: Tensor) -> None:
    """Move stored statistics towards those of a batch, in place."""
    stored_mean, stored_variance, momentum = running
    if stored_mean is not None and stored_variance is not None:
        stored_mean.lerp_(mean.to(stored_mean), momentum)
        stored_variance.lerp_(variance.to(stored_variance), momentum)
