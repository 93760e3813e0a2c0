"""The base of the replay methods: kept samples, and their current losses and gradients.

Each task's part of a batch from the memory goes through the network separately, with the transform,
the head and the norms of its task, because BatchNorm at test time sees one task at a time too; the
papers draw mixed batches uniformly. `ReplayMemory.draw` says how tasks are chosen and weighted so
that the expected loss is still the mean over the memory. In a network with BatchNorm every part has
at least `bn_samples` samples, or all that are kept of its task, because the statistics of a few
samples are far from those of a test batch; so a small batch is of some of the tasks only, and may
be larger than was asked for. A task with a single sample in the memory is left out: alone it has no
batch statistics. With `norm=stored` a pass
updates the stored statistics of its task, so that they follow the changing trunk; when a task is
learnt, those of earlier tasks are recalibrated on their kept samples.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Generator, Tensor, nn
from torch.nn import functional

from classgrad.errors import Diverged, UserError
from classgrad.methods.base import Fit, Method, Step
from classgrad.methods.flat import add_, gather, gram, inner, split
from classgrad.methods.replay.buffer import EqualShares, MemorySize, Part, ReplayMemory
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.tasks import Augment, Task, Transform

Gradient = list[Tensor]  # one tensor for each trained parameter

# Fewest kept samples from which the stored statistics of a task are measured again.
RECALIBRATION_SAMPLES = 8
BATCH_NORMS = (TaskBatchNorm, nn.modules.batchnorm._BatchNorm)


class Rehearsal(Method, ABC):
    """Keep raw samples of earlier tasks and continue to learn from them."""

    revisits: ClassVar[bool] = True
    rehearsal_free: ClassVar[bool] = False
    exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("memory", "memory_mb"),)
    bytes_per_sample: ClassVar[int] = 0  # besides image and label

    memory: int = Field(default=2000, ge=1, description="samples kept, of all tasks together")
    memory_mb: float | None = Field(
        default=None,
        gt=0,
        description="MB (10^6 bytes) for all samples kept, instead of their number",
    )
    memory_batch: int | None = Field(
        default=None,
        ge=1,
        description="samples of the memory in every step; null: as many as in the batch",
    )
    bn_samples: int = Field(
        default=32,
        ge=2,
        description="fewest samples of a task in a pass through BatchNorm, if so many are kept",
    )

    _memory: Any = PrivateAttr(default=None)
    _size: MemorySize = PrivateAttr(default=MemorySize(0, ""))
    _transforms: list[Transform] = PrivateAttr(default_factory=list)
    _augment: Augment | None = PrivateAttr(default=None)
    _normed: bool = PrivateAttr(default=False)

    @abstractmethod
    def empty_memory(self) -> ReplayMemory:
        """Return an empty memory of the type this method uses."""

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Keep the transforms of all tasks, for images from the memory."""
        self._size = MemorySize.of(
            self.memory, self.memory_mb, stream, per_sample=self.bytes_per_sample
        )
        self._memory = self.empty_memory()
        self._transforms = [task.transform for task in stream]
        self._augment = stream[0].augment if stream else None
        self._normed = any(isinstance(module, BATCH_NORMS) for module in net.modules())
        if self._size.samples < self._least:
            normed = " for a network with BatchNorm, which learns nothing from a single sample"
            raise UserError(
                f"{self._size.setting} is too small{normed if self._normed else ''}: give at least "
                f"{self._size.least(self._least)}"
            )
        return net

    @property
    def _least(self) -> int:
        """Fewest samples of a task that can go through the network by themselves."""
        return 2 if self._normed else 1

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Train on a task, then recalibrate the stored statistics of earlier ones."""
        fit([task])
        net.train()
        dtype = next(net.parameters()).dtype
        for earlier, part in self._memory.parts.items():
            if earlier != task.id and len(part) >= RECALIBRATION_SAMPLES:
                images = part.unit_images(slice(None), dtype)
                turns = self.processes.take_turns([self._transforms[earlier](images)])
                net.recalibrate(earlier, turns, self.processes.sum)

    @property
    def _per_task(self) -> int:
        """Fewest samples of a task to draw, if so many are kept."""
        return self.bn_samples if self._normed else 1

    def draw_count(self, step: Step) -> int:
        """Return how many samples of the memory a step asks for."""
        return self.memory_batch or len(step.batch)

    def draw(self, step: Step, without: int | None = None) -> list[Part]:
        """Draw a batch from the memory; one task can be left out."""
        drawn: list[Part] = self._memory.draw(
            self.draw_count(step),
            step.generator,
            without=without,
            least=self._least,
            per_task=self._per_task,
        )
        return drawn

    def task_loss(self, net: Network, task: int, index: Tensor, rng: Generator) -> Tensor:
        """Return the mean cross-entropy of some of a task's kept samples, augmented as others are.

        With several processes, it is that of a shard times its weight.
        """
        kept = self._memory.parts[task]
        with self.sharded(net, len(index)) as shard:
            local = index[shard.part]
            images = kept.unit_images(local, next(net.parameters()).dtype)
            if self._augment is not None:
                images = self._augment(images, rng, shard.among)
            logits = net(self._transforms[task](images), task)
            return shard.weighted(functional.cross_entropy(logits, kept.labels[local]))

    def batch_loss(self, net: Network, parts: Sequence[Part], rng: Generator) -> Tensor:
        """Return the weighted loss of a batch from the memory."""
        losses = [part.weight * self.task_loss(net, part.task, part.index, rng) for part in parts]
        return sum(losses[1:], start=losses[0])

    def state_dict(self) -> dict[str, Any]:
        """Return the kept samples."""
        return {"memory": self._memory.state_dict()}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        self._memory.load_state_dict(state["memory"])


class Episodic(Rehearsal):
    """Keep equally many samples of every finished task, and take no step against their gradients.

    When a task ends, memory // (tasks so far) samples of each are kept, drawn at random with
    balanced classes.

    A gradient is corrected as in the method's paper. The optimiser may still take another step:
    momentum and Adam remember earlier gradients, and weight decay adds to them. So the step as
    taken is compared with the memory's gradients once more, and replaced by the closest one that,
    to first order, raises none of the memory's losses. With `constrain="gradient"` only the
    gradient is corrected, as in the released code, which has no momentum.
    """

    constrain: Literal["step", "gradient"] = Field(
        default="step",
        description="what is kept from raising the memory's loss: the step taken, or its gradient",
    )

    # During a step only: the memory's gradients, their products with each other, and the weights
    # before the step.
    _references: list[Gradient] = PrivateAttr(default_factory=list)
    _square: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0, 0))
    _before: list[Tensor] = PrivateAttr(default_factory=list)

    def empty_memory(self) -> EqualShares:
        """Return an empty memory of equal shares."""
        return EqualShares(self._size.samples)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Refuse a memory that is too small for all tasks."""
        super().wrap(net, stream, seed)
        needed = self._least * len(stream)
        if self._size.samples < needed:
            raise UserError(
                f"{self._size.setting} is too small for {len(stream)} tasks: give at least "
                f"{self._size.least(needed)}"
            )
        return net

    def end_task(self, net: Network, task: Task, generator: Generator) -> None:
        """Keep some of the task's samples, and fewer of earlier ones."""
        self._memory.add(task.id, task.train, generator)

    @abstractmethod
    def references(self, net: Network, step: Step) -> list[Gradient]:
        """Return the gradients of the memory's losses; none without a memory."""

    @abstractmethod
    def correction(self, along: Tensor, square: Tensor) -> Tensor | None:
        """Return the v of g + Gᵀ v, the gradient that the method uses; None if that is g itself.

        The rows of G are the references; `along` is G g (n), `square` is G Gᵀ (n x n), in float64.
        """

    @abstractmethod
    def closest(self, along: Tensor, square: Tensor) -> Tensor | None:
        """Return the v of the closest direction to g that has no negative product with a row."""

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Correct a gradient that points against those of the memory."""
        references = self.references(net, step)
        if not references:
            return
        parameters = moved(step)
        gradient = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        products = gram([gradient, *references])
        square = products[1:, 1:]
        if correct_(gradient, references, self.correction(products[1:, 0], square)):
            for parameter, part in zip(parameters, gradient, strict=True):
                # What would get zeros stays without a gradient: optimisers then skip it.
                if parameter.grad is None and part.any():
                    parameter.grad = part
        if self.constrain == "step":
            self._references, self._square = references, square
            self._before = [p.detach().clone() for p in parameters]

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Correct a step that would raise the memory's loss to first order."""
        references, before = self._references, self._before
        self._references, self._before = [], []
        if not references:
            return
        parameters = moved(step)
        # Of the sign of a gradient: the step is its negative.
        taken = [b - p for b, p in zip(before, parameters, strict=True)]
        if correct_(taken, references, self.closest(inner(references, taken), self._square)):
            for parameter, start, part in zip(parameters, before, taken, strict=True):
                torch.sub(start, part, out=parameter.data)

    def gradient_of(self, loss: Tensor, step: Step) -> Gradient:
        """Return the gradient of a loss for all trained parameters."""
        value = float(self.processes.mean(loss.detach()))
        if not math.isfinite(value):
            raise Diverged(f"the loss of kept samples is {value}: lower learning_rate")
        parameters = moved(step)
        gradient = list(torch.autograd.grad(loss, parameters, materialize_grads=True))
        if self.processes.size == 1:
            return gradient
        return split(parameters, self.processes.mean(gather(parameters, gradient)))


def correct_(gradient: Gradient, references: Sequence[Gradient], factors: Tensor | None) -> bool:
    """Add references times factors to a gradient, in place, and tell whether there are any."""
    if factors is None:
        return False
    add_(gradient, references, factors)
    return True


def moved(step: Step) -> list[nn.Parameter]:
    """Return the parameters the optimiser trains: the trunk and all heads."""
    return [p for group in step.optimizer.param_groups for p in group["params"]]
