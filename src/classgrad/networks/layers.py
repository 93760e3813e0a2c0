"""Layers that PyTorch lacks: BatchNorm per task or fixed, dropout that draws from a generator."""

import threading
from abc import abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core import register_norm
from classgrad.errors import UserError
from classgrad.networks.shard import Shard, Sum, whole_batch_norm


class Selection:
    """The selected task: one for all threads, but for those that have selected another themselves.

    Threads that predict with a `Network` do, each for its own task.
    """

    def __init__(self, task: int = 0) -> None:
        self._shared = task
        self._own = threading.local()

    @property
    def task(self) -> int:
        """The task in this thread; setting it selects it for all that have not done so."""
        task: int = getattr(self._own, "task", self._shared)
        return task

    @task.setter
    def task(self, task: int) -> None:
        self._shared = task
        vars(self._own).clear()

    def select_here(self, task: int) -> None:
        """Select a task for this thread alone."""
        self._own.task = task

    def __reduce__(self) -> tuple[type["Selection"], tuple[int]]:
        return Selection, (self.task,)  # for copies and pickles: a thread's own value has neither


class PerTask(nn.Module):
    """A layer with a state for each task; the `Network` selects the current one."""

    @property
    def selection(self) -> Selection:
        """Where the task is selected; a network has one for all its layers."""
        # Made on demand, as layers become such a layer by changing their class.
        selection: Selection | None = self.__dict__.get("_selection")
        if selection is None:
            selection = self.__dict__["_selection"] = Selection()
        return selection

    @selection.setter
    def selection(self, selection: Selection) -> None:
        self.__dict__["_selection"] = selection

    @property
    def task(self) -> int:
        """The task that this thread has selected."""
        return self.selection.task

    @task.setter
    def task(self, task: int) -> None:
        self.selection.task = task

    @abstractmethod
    def add_task(self) -> None:
        """Add the state of one more task, and select it."""

    @property
    def task_dependent(self) -> bool:
        """Whether the output depends on the task."""
        return True


class ChannelSums:
    """Sums of values and of their squares over batches, by channel."""

    def __init__(self) -> None:
        self.count = 0
        self.first = self.second = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor) -> None:
        """Add one batch; sums are on the CPU, because not every device has float64."""
        over = [0, *range(2, x.dim())]
        count = x.numel() // x.shape[1]
        variance, mean = (
            value.cpu().double() for value in torch.var_mean(x.float(), over, correction=0)
        )
        self.count += count
        self.first = self.first + count * mean
        self.second = self.second + count * (variance + mean**2)

    def add_others(self, channels: int, total: Sum) -> None:
        """Add the sums of the other processes."""
        self.count = int(total(torch.tensor(self.count)))
        self.first = total(self.first.expand(channels))
        self.second = total(self.second.expand(channels))


class TaskBatchNorm(PerTask):
    """Batch normalisation for a stream of tasks, over dimension 1 of (n, c) or (n, c, *size).

    statistics="batch"
        Always batch statistics, at test time too, as in the networks of GPM and CGP: a prediction
        then depends on its batch, and needs at least two values per channel.
    statistics="stored"
        Training uses batch statistics and updates a running mean and variance of the selected task;
        predictions use these, so they do not depend on their batch.
    statistics="first"
        As "stored" in the first task. From then on all tasks use its statistics, in training too:
        with affine="first", features depend neither on the batch nor on the task.
    affine="first"
        One scale and shift, learnt with the first task and frozen by projection methods afterwards.
    affine="task"
        A scale and a shift for each task, starting from those of the task before.
    """

    def __init__(
        self,
        channels: int,
        statistics: str = "batch",
        affine: str = "first",
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.channels, self.statistics, self.affine = channels, statistics, affine
        self.momentum, self.eps = momentum, eps
        self.tasks = 0
        self.task = 0
        self.tracking = True  # whether training batches update the stored statistics
        self.sums: ChannelSums | None = None  # of the inputs, while statistics are recalibrated
        self.constant = False  # whether batch statistics are constants in the backward pass
        self.shard: Shard | None = None  # set if the input is a shard of a batch
        self.add_task()

    def add_task(self) -> None:
        """Add the statistics, scale and shift of one more task, and select it."""
        count = self.tasks
        if self.affine == "task" or count == 0:
            for kind, value in (("scale", 1.0), ("shift", 0.0)):
                before = getattr(self, f"{kind}_{count - 1}", None)
                start = torch.full((self.channels,), value) if before is None else before.detach()
                self.register_parameter(f"{kind}_{count}", nn.Parameter(start.clone()))
        if self.statistics == "stored" or (self.statistics == "first" and count == 0):
            like = self.get_parameter(f"scale_{count if self.affine == 'task' else 0}").detach()
            self.register_buffer(f"mean_{count}", torch.zeros_like(like))
            self.register_buffer(f"variance_{count}", torch.ones_like(like))
        self.tasks += 1
        self.task = count

    @property
    def task_dependent(self) -> bool:
        """Whether each task has its own statistics or parameters."""
        return self.statistics == "stored" or self.affine == "task"

    @property
    def fixed(self) -> bool:
        """Whether the statistics no longer change: those of the first task, in a later one."""
        return self.statistics == "first" and self.tasks > 1

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return the scale and shift of the selected task."""
        owner = self.task if self.affine == "task" else 0
        return getattr(self, f"scale_{owner}"), getattr(self, f"shift_{owner}")

    def forward(self, x: Tensor) -> Tensor:
        """Normalise each channel, then scale and shift it."""
        scale, shift = self.scale_and_shift()
        if self.sums is not None:
            self.sums.add(x)
            return functional.batch_norm(x, None, None, scale, shift, True, 0.0, self.eps)
        from_batch = (self.training and not self.fixed) or self.statistics == "batch"
        if from_batch and self.shard is not None:
            return whole_batch_norm(x, scale, shift, self.shard, self.running(), self.eps)
        if from_batch:
            self.refuse_single(x)
        if from_batch and self.constant:
            over = [0, *range(2, x.dim())]
            mean = x.detach().mean(over, keepdim=True)
            variance = (x.detach() - mean).square_().mean(over)  # x.var takes five times as long
            # With bfloat16 inputs, statistics have to be in the precision of the scale.
            mean, variance = mean.flatten().to(scale), variance.to(scale)
            return functional.batch_norm(x, mean, variance, scale, shift, False, 0.0, self.eps)
        stored_mean, stored_variance, momentum = self.running()
        return functional.batch_norm(
            x, stored_mean, stored_variance, scale, shift, from_batch, momentum, self.eps
        )

    def recalibrate(self, total: Sum | None = None) -> None:
        """Store the measured statistics for the selected task, unless there was no input.

        `total` sums over processes that have each measured some of the inputs.
        """
        sums = self.sums
        if sums is None:
            return
        stored_mean, stored_variance = self.stored()
        if total is not None:
            sums.add_others(len(stored_mean), total)
        if sums.count == 0:
            return
        mean = sums.first / sums.count
        stored_mean.copy_(mean)
        stored_variance.copy_((sums.second / sums.count - mean**2).clamp_min(0))

    def refuse_single(self, x: Tensor) -> None:
        """Refuse an input with a single value per channel, which has no statistics."""
        if x.numel() == x.shape[1]:
            raise UserError(
                "batch normalisation needs more than one value per channel: a batch of one sample "
                "has no statistics; use larger batches or norm=stored"
            )

    def running(self) -> tuple[Tensor | None, Tensor | None, float]:
        """Return the stored mean and variance of the selected task, and their momentum."""
        if self.statistics == "batch":
            return None, None, 0.0
        return *self.stored(), self.momentum if self.tracking else 0.0

    def stored(self) -> tuple[Tensor, Tensor]:
        """Return the stored mean and variance of the selected task."""
        owner = self.task if self.statistics == "stored" else 0
        return getattr(self, f"mean_{owner}"), getattr(self, f"variance_{owner}")


register_norm(TaskBatchNorm)


class FixedNorm(nn.Module):
    """BatchNorm of a pretrained network as the fixed scale and shift that it is at test time.

    It is the same in training, and for all tasks. Its buffers have the names of PyTorch's.
    """

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        for name in ("weight", "running_var"):
            self.register_buffer(name, torch.ones(channels))
        for name in ("bias", "running_mean"):
            self.register_buffer(name, torch.zeros(channels))

    def scale_and_shift(self) -> tuple[Tensor, Tensor]:
        """Return what each channel is multiplied by, and what is then added."""
        scale = self.weight / (self.running_var + self.eps).sqrt()
        return scale, self.bias - self.running_mean * scale

    def forward(self, x: Tensor) -> Tensor:
        """Scale and shift each channel."""
        mean, variance = self.running_mean, self.running_var
        return functional.batch_norm(
            x, mean, variance, self.weight, self.bias, False, 0.0, self.eps
        )


class Dropout(nn.Module):
    """Dropout that draws from `generator` instead of PyTorch's global one.

    Random bytes decide, eight to a draw, so the share is rounded to a multiple of 1/256. One draw
    per value took a third of a training step of AlexNet-5: 48 ms; this takes 5.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = min(round(share * 256), 255) / 256
        self.generator: torch.Generator | None = None
        self.shard: Shard | None = None  # set if the input is a shard of a batch

    def forward(self, x: Tensor) -> Tensor:
        """Zero a share of the values and scale up the rest, in training mode."""
        if not self.training or self.share == 0:
            return x
        return x.mul(self.kept(x)).mul_(1 / (1 - self.share))

    def kept(self, x: Tensor) -> Tensor:
        """Draw the mask of values to keep; with a shard, the mask of the whole batch is drawn."""
        shard = self.shard
        count = shard.of_whole(x.numel()) if shard else x.numel()
        first = shard.start * (x.numel() // shard.size) if shard else 0
        # On the CPU, where the generators are: the same draws on every device.
        draws = torch.empty((count + 7) // 8, dtype=torch.int64)
        draws.random_(-(2**63), None, generator=self.generator)
        values = draws.view(torch.uint8)[first : first + x.numel()]
        mask = values.to(x.device).ge(round(self.share * 256))
        like = torch.empty_like(x)  # so that the mask has the memory layout of x
        return mask.as_strided(x.shape, like.stride())
