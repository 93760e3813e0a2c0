"""The one training loop: batches of one or more tasks through a method's loss and projection."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from classgrad import seeds
from classgrad.checkpoints.errors import understood
from classgrad.core.updates import made_for_one_task
from classgrad.distributed import world
from classgrad.errors import UserError
from classgrad.methods.base import Method, Step
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.tasks import Task, batch_count, batches
from classgrad.training.acceleration import compile_trunk, prepare
from classgrad.training.config import Training
from classgrad.training.loss_scale import LossScale
from classgrad.training.schedules import Plateau


@dataclass(frozen=True)
class Progress:
    """Where training stands, for whoever watches."""

    task: int
    epoch: int
    step: int
    steps: int  # of the whole task, at most
    loss: float
    rate: float  # learning rate of the step


# Large, as each layer sees values that were normalised by the batch.
RECALIBRATION_BATCH = 256

Observer = Callable[[Progress], None]


class LossNotFinite(UserError):
    """Training stopped because the loss is no longer a number."""


class Keeping(Protocol):
    """Keeps the state of the training loop, so that it can go on from there."""

    def take(self) -> dict[str, Any] | None:
        """Return the state to go on from, if there is one that was not taken yet."""

    def after_step(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save the state if it is time to; called after every step."""

    def at_end(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save the state if much would be lost in what comes next; called after the last step."""


def fit(
    net: Network,
    method: Method,
    tasks: Sequence[Task],
    training: Training,
    *,
    seed: int,
    observer: Observer | None = None,
    keeping: Keeping | None = None,
) -> None:
    """Train on these tasks together; every batch holds samples of one of them.

    With `keeping` the loop goes on from a state that was kept, to the same bits.
    """
    loop = Loop(net, method, tasks, training, seed)
    state = keeping and keeping.take()
    if state:
        loop.load_state_dict(state)
    if training.compile:
        compile_trunk(net)
    loop.go(observer, keeping)
    if training.compile:
        net.trunk._compiled_call_impl = None


class Loop:
    """The training loop over some tasks, and where it stands."""

    def __init__(
        self, net: Network, method: Method, tasks: Sequence[Task], training: Training, seed: int
    ) -> None:
        self.net, self.method, self.tasks, self.training = net, method, tasks, training
        self.newest = tasks[-1].id
        self.parameters = [p for p in method.parameters(net, tasks) if p.requires_grad]
        self.optimizer = training.optimizer_for(self.parameters)
        made_for_one_task(self.optimizer)
        world().broadcast_([*(p.data for p in self.parameters), *net.buffers()])
        self.per_epoch = sum(batch_count(len(task.train), training.batch_size) for task in tasks)
        self.steps = training.epochs * self.per_epoch
        self.schedule = training.schedule_for(self.steps)
        if isinstance(self.schedule, Plateau) and not any(len(task.valid) for task in tasks):
            raise UserError(
                "schedule 'plateau' needs validation data: keep some of the training data apart, "
                "or choose schedule=cosine"
            )
        kinds = ("order", "method", "dropout")
        self.chances = {kind: seeds.generator(seed, kind, self.newest) for kind in kinds}
        net.set_generator(self.chances["dropout"])
        self.scale = LossScale() if net.precision == torch.float16 else None
        self.best: dict[str, Tensor] | None = None
        self.done = self.epoch = 0
        self.batch = 0  # of this epoch, which comes next
        self.shuffle = self.chances["order"].get_state()  # that makes the batches of this epoch

    def go(self, observer: Observer | None, keeping: Keeping | None) -> None:
        """Train to the end."""
        while self.epoch < self.training.epochs:
            self.net.train()
            self.shuffle = self.chances["order"].get_state()
            found = epoch_batches(self.tasks, self.training.batch_size, self.chances["order"])
            for task, index in found[self.batch :]:
                value = self.step(task, index)
                self.done += 1
                self.batch += 1
                if observer:
                    rate = self.optimizer.param_groups[0]["lr"]
                    observer(Progress(self.newest, self.epoch, self.done, self.steps, value, rate))
                if keeping:
                    keeping.after_step(self.state_dict)
            self.batch = 0
            self.epoch += 1
            if isinstance(self.schedule, Plateau) and not self.goes_on(self.schedule):
                self.epoch = self.training.epochs  # a state that is saved now is at its end
        if keeping:
            keeping.at_end(self.state_dict)
        if self.best is not None:
            self.net.load_state_dict(self.best)
        else:
            self.recalibrate()

    def step(self, task: Task, index: Tensor) -> float:
        """Take one step on a batch; return its loss."""
        net, method = self.net, self.method
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.done)
        with method.sharded(net, len(index)) as shard:
            step = self.step_on(task, index, shard)
            refuse_bad_values(step)
            loss = shard.weighted(method.loss(net, step))
        value = float(world().mean(loss.detach()))
        if not math.isfinite(value):
            rate = self.training.learning_rate
            raise LossNotFinite(
                f"the loss is {value} at {place_of(step)}: lower learning_rate (it was {rate:g}) "
                "or look for bad values in the images"
            )
        self.optimizer.zero_grad()
        (loss * self.scale.factor if self.scale else loss).backward()
        world().average_gradients(self.parameters)
        if self.scale and not self.scale.unscale(self.parameters):
            return value
        method.adjust_gradients(net, step)
        prepare(self.optimizer)
        self.optimizer.step()
        method.after_step(net, step)
        return value

    def step_on(self, task: Task, batch: Tensor, shard: Shard) -> Step:
        """Return the step on this shard of a batch."""
        index = batch[shard.part]
        images = task.train.unit_images(index, next(self.net.parameters()).dtype)
        return Step(
            task,
            index,
            images,
            task.transform(images),
            task.train.labels[index],
            self.optimizer,
            self.chances["method"],
            number=self.done,
            per_epoch=self.per_epoch,
            steps=self.steps,
            batch=batch,
            shard=shard,
        )

    def recalibrate(self) -> None:
        """Measure the statistics that predictions will use, on all training data."""
        self.net.train()  # layers that are not in training keep theirs
        dtype = next(self.net.parameters()).dtype
        for task in self.tasks:
            found = world().take_turns(batches(len(task.train), RECALIBRATION_BATCH))
            inputs = (task.transform(task.train.unit_images(b, dtype)) for b in found)
            self.net.recalibrate(task.id, inputs, world().sum)

    def goes_on(self, schedule: Plateau) -> bool:
        """Judge the weights by validation data, and keep the best ones."""
        self.recalibrate()
        loss = validation_loss(self.net, self.tasks, self.training.batch_size)
        verdict = schedule.judge(loss)
        if verdict == "better":
            self.best = {name: value.clone() for name, value in self.net.state_dict().items()}
        return verdict != "stop"

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to go on after a step, beside the method's state."""
        chances = {kind: generator.get_state() for kind, generator in self.chances.items()}
        return {
            "net": self.net.state_dict(),
            "optimizer": [self.optimizer.state[parameter] for parameter in self.parameters],
            "schedule": vars(self.schedule),
            "scale": vars(self.scale) if self.scale else None,
            "chances": {**chances, "order": self.shuffle},
            "best": self.best,
            "done": self.done,
            "epoch": self.epoch,
            "batch": self.batch,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state."""
        with understood("what is kept of the training loop"):
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        for parameter, kept in zip(self.parameters, state["optimizer"], strict=True):
            # Single numbers, such as Adam's count of steps, are on the CPU with any device.
            self.optimizer.state[parameter] = {
                name: value if value.dim() == 0 else value.to(parameter.device)
                for name, value in kept.items()
            }
        vars(self.schedule).update(state["schedule"])
        if self.scale:
            vars(self.scale).update(state["scale"])
        for kind, generator in self.chances.items():
            generator.set_state(state["chances"][kind])
        self.best, self.done = state["best"], state["done"]
        self.epoch, self.batch = state["epoch"], state["batch"]


def refuse_bad_values(step: Step) -> None:
    """Refuse a batch with images that hold something else than numbers."""
    if not step.task.train.images.is_floating_point():
        return
    images = step.images if step.shard.is_whole else step.task.train.images[step.batch]
    bad = (~images.flatten(1).isfinite().all(1)).nonzero().flatten()
    if len(bad):
        sample = int(step.batch[bad[0]])
        raise LossNotFinite(
            f"training sample {sample} has values that are not numbers, at {place_of(step)}: put "
            "it right or leave it out"
        )


def place_of(step: Step) -> str:
    """Say where training is."""
    return (
        f"task {step.task.id + 1} ('{step.task.name}'), epoch {step.epoch + 1}, "
        f"step {step.number % step.per_epoch + 1}"
    )


def epoch_batches(
    tasks: Sequence[Task], size: int, generator: torch.Generator
) -> list[tuple[Task, Tensor]]:
    """Return the batches of one epoch: shuffled within each task, then among the tasks."""
    found = [(task, b) for task in tasks for b in batches(len(task.train), size, generator)]
    if len(tasks) == 1:
        return found
    return [found[i] for i in torch.randperm(len(found), generator=generator).tolist()]


@torch.no_grad()
def validation_loss(net: Network, tasks: Sequence[Task], size: int) -> float:
    """Return the mean cross-entropy over the validation samples, each on its own task's head."""
    net.eval()
    dtype = next(net.parameters()).dtype
    total, count = 0.0, 0
    for task in tasks:
        for index in world().take_turns(batches(len(task.valid), size)):
            x = task.transform(task.valid.unit_images(index, dtype))
            logits = net(x, task.id)
            total += float(functional.cross_entropy(logits, task.valid.labels[index])) * len(index)
        count += len(task.valid)
    return float(world().sum(torch.tensor(total, dtype=torch.float64))) / count
