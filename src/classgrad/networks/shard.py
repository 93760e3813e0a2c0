"""One process's part of a batch, and batch normalisation by the statistics of the whole of it.

With N values per channel in all, sums over all of them, and g the gradient of y = γ x̂ + β,

    ∂L/∂x = γ/σ (g - Σ g / N - x̂ Σ g x̂ / N),

while the gradients of γ and β are those of the shard: what is averaged later are gradients.
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


def unchanged(values: Tensor) -> Tensor:
    """Return the values: a sum over one process."""
    return values


@dataclass(frozen=True)
class Shard:
    """The samples from `start` to `stop` of a batch of `whole` samples, split among `processes`.

    With one process, or fewer samples than processes, it is the whole batch, and nothing here
    does or costs anything.

    >>> Shard(64, 0, 64).is_whole, Shard(64, 16, 32, processes=4).own
    (True, 16)
    """

    whole: int
    start: int
    stop: int
    processes: int = 1
    sum: Sum = field(default=unchanged, repr=False)  # over all shards

    @property
    def is_whole(self) -> bool:
        """Whether this process has the whole batch."""
        return self.processes == 1

    @property
    def own(self) -> int:
        """Samples of this process."""
        return self.stop - self.start

    @property
    def part(self) -> slice:
        """Where they are in the batch: `batch[shard.part]`."""
        return slice(self.start, self.stop)

    @property
    def weight(self) -> float:
        """What a mean over this shard counts, so that the mean over processes is that of all."""
        return self.own * self.processes / self.whole

    def weighted(self, loss: Tensor) -> Tensor:
        """Return the mean loss of this shard, by its weight."""
        return loss if self.is_whole else loss * self.weight

    def of_whole(self, count: int) -> int:
        """Return how many values the whole batch has, where this process has `count`."""
        return count // self.own * self.whole

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of the whole batch, given those of this shard; gradients come back."""
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
    """Normalise this shard of a batch by all of it; `running` is to follow the statistics."""
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
        own = x.numel() // x.shape[1]
        variance, mean = (v.double() for v in statistics(x))
        sums = torch.cat([own * mean, own * (variance + mean**2), mean.new_tensor([own])])
        *sums, count = shard.sum(sums).split([len(mean), len(mean), 1])
        mean = sums[0] / count
        variance = (sums[1] / count - mean**2).clamp_min(0)
        ctx.shard, ctx.count = shard, int(count)
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
        sums = ctx.shard.sum(torch.stack([of_shift, of_scale]).double()) / ctx.count
        first, second = sums.to(x.dtype)
        # ∂L/∂x is a sum of g and x, each by a factor for its channel, and of a number.
        by_grad = scale * inverse
        by_x = -by_grad * second * inverse
        shape = [1, -1, *[1] * (x.dim() - 2)]
        rest = (-by_grad * first - by_x * mean).view(shape)
        of_x = torch.addcmul(rest, x, by_x.view(shape)).addcmul_(grad, by_grad.view(shape))
        return of_x, of_scale, of_shift, None, None, None


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
