"""The training loop: every batch goes through a method's loss and the projection of gradients."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.amp import GradScaler
from torch.nn import functional

from classgrad import seeds
from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.distributed import world
from classgrad.errors import Diverged, UserError
from classgrad.methods.base import Method, Step
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.tasks import Task, batch_count, batches
from classgrad.training.config import Training
from classgrad.training.schedules import Plateau


@dataclass(frozen=True)
class Progress:
    """How far training is, for observers."""

    task: int
    epoch: int
    step: int
    steps: int  # of the whole task, at most
    loss: float
    rate: float  # learning rate of the step
    epochs: int = 1  # of this fit, at most
    ends_epoch: bool = False  # whether it is the last step of its epoch


@dataclass
class Curve:
    """The mean training loss of every epoch of a fit, as trained.

    Where validation data decide something, also their loss and accuracy. None is an epoch of which
    nothing is known: that of a state saved by an earlier version.
    """

    train: list[float | None] = field(default_factory=list)
    valid: list[float | None] = field(default_factory=list)
    valid_accuracy: list[float | None] = field(default_factory=list)

    def as_dict(self) -> dict[str, list[float | None]]:
        """Return the lists by name; they do not grow with the curve."""
        return {name: list(values) for name, values in vars(self).items()}

    @classmethod
    def from_dict(cls, lists: dict[str, list[float | None]]) -> "Curve":
        """Return the curve of these lists."""
        read = {
            name: [None if value is None else float(value) for value in values]
            for name, values in lists.items()
        }
        return cls(**read)


# Large, because every layer sees inputs that were normalised by statistics of the batch.
RECALIBRATION_BATCH = 256

Observer = Callable[[Progress], None]


class LossNotFinite(Diverged):
    """Training stopped because the loss became NaN or infinite."""


class SampleNotFinite(UserError):
    """Training stopped because a training sample contains NaN or infinity."""


def fit(
    net: Network,
    method: Method,
    tasks: Sequence[Task],
    training: Training,
    *,
    seed: int,
    observer: Observer | None = None,
    checkpoints: CheckpointManager | None = None,
    full_state: Callable[[dict[str, Any]], dict[str, Any]] = lambda state: state,
    resumed: dict[str, Any] | None = None,
) -> Curve:
    """Train on these tasks together; every batch holds samples of one of them.

    Returns the losses, epoch by epoch. With `checkpoints` the state is saved during training;
    `full_state` turns the state of the loop into all that is to be saved. From `resumed`, a saved
    state of the loop, training continues bit for bit.
    """
    loop = Loop(net, method, tasks, training, seed)
    if resumed:
        loop.load_state_dict(resumed)
    loop.run(observer, checkpoints, full_state)
    return loop.curve


class Loop:
    """The training loop over some tasks, and its state."""

    def __init__(
        self, net: Network, method: Method, tasks: Sequence[Task], training: Training, seed: int
    ) -> None:
        self.net, self.method, self.tasks, self.training = net, method, tasks, training
        self.newest_task = tasks[-1].id
        self.parameters = [p for p in method.parameters(net, tasks) if p.requires_grad]
        self.optimizer = training.optimizer_for(self.parameters)
        world().broadcast_([*(p.data for p in self.parameters), *net.buffers()])
        self.per_epoch = sum(batch_count(len(task.train), training.batch_size) for task in tasks)
        self.steps = training.epochs * self.per_epoch
        self.schedule = training.schedule_for(self.steps)
        if training.looks_at_validation and not any(len(task.valid) for task in tasks):
            raise UserError(
                "schedule 'plateau' needs validation data: set some of the training data aside, "
                "or choose monitor=train or schedule=cosine"
            )
        purposes = ("order", "method", "dropout", "augment")
        self.rngs = {
            purpose: seeds.generator(seed, purpose, self.newest_task) for purpose in purposes
        }
        net.set_generator(self.rngs["dropout"])
        device = next(net.parameters()).device.type
        self.scaler = GradScaler(device) if net.precision == torch.float16 else None
        self.best: dict[str, Tensor] | None = None
        self.steps_done = self.epoch = 0
        self.batch = 0  # index of the next one in this epoch
        self.curve = Curve()
        self.epoch_loss, self.epoch_samples = 0.0, 0  # sum over this epoch so far
        self.order_state = self.rngs["order"].get_state()  # before the batches of this epoch

    def run(
        self,
        observer: Observer | None,
        checkpoints: CheckpointManager | None,
        full_state: Callable[[dict[str, Any]], dict[str, Any]],
    ) -> None:
        """Train until the last epoch, or until the schedule stops."""

        def state() -> dict[str, Any]:
            return full_state(self.state_dict())

        while self.epoch < self.training.epochs:
            self.net.train()
            self.order_state = self.rngs["order"].get_state()
            all_batches = epoch_batches(self.tasks, self.training.batch_size, self.rngs["order"])
            for task, index in all_batches[self.batch :]:
                value = self.step(task, index)
                self.steps_done += 1
                self.batch += 1
                self.epoch_loss += value * len(index)
                self.epoch_samples += len(index)
                if observer:
                    observer(self.progress(value, ends_epoch=self.batch == len(all_batches)))
                if checkpoints:
                    checkpoints.after_step(state)
            self.batch = 0
            self.epoch += 1
            self.end_epoch()
            if isinstance(self.schedule, Plateau) and not self.should_continue(self.schedule):
                self.epoch = self.training.epochs  # for a state saved from here on
        if checkpoints:
            checkpoints.after_training(state)
        self.optimizer.zero_grad()  # as large as the weights, and not needed any more
        if self.best is not None:
            self.net.load_state_dict(self.best)
        else:
            self.recalibrate()

    def progress(self, loss: float, *, ends_epoch: bool) -> Progress:
        """Return how far training is after a step, whose loss this was."""
        return Progress(
            self.newest_task,
            self.epoch,
            self.steps_done,
            self.steps,
            loss,
            rate=self.optimizer.param_groups[0]["lr"],
            epochs=self.training.epochs,
            ends_epoch=ends_epoch,
        )

    def step(self, task: Task, index: Tensor) -> float:
        """Take one step on a batch; return its loss."""
        net, method = self.net, self.method
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule.rate(self.steps_done)
        with method.sharded(net, len(index)) as shard:
            step = self.step_on(task, index, shard)
            loss = shard.weighted(method.loss(net, step))
        value = float(world().mean(loss.detach()))
        if not math.isfinite(value):
            rate = self.training.learning_rate
            raise LossNotFinite(
                f"the loss is {value} at {position_of(step)}: lower learning_rate (it was "
                f"{rate:g}) or look for bad values in the images"
            )
        self.optimizer.zero_grad()
        method.before_backward(net, step)
        (self.scaler.scale(loss) if self.scaler else loss).backward()
        world().average_gradients(self.parameters)
        if self.scaler and not unscale(self.scaler, self.optimizer):
            return value
        method.adjust_gradients(net, step)
        prepare_fused(self.optimizer)
        self.optimizer.step()
        method.after_step(net, step)
        return value

    def step_on(self, task: Task, batch: Tensor, shard: Shard) -> Step:
        """Return the step on this shard of a batch."""
        index = batch[shard.part]
        images = task.train.unit_images(index, next(self.net.parameters()).dtype)
        step = Step(
            task,
            index,
            images,
            task.transform(images),
            task.train.labels[index],
            self.optimizer,
            self.rngs["method"],
            number=self.steps_done,
            per_epoch=self.per_epoch,
            steps=self.steps,
            batch=batch,
            fresh_optimizer=True,
            shard=shard,
        )
        refuse_non_finite_images(step)
        if task.augment is None:
            return step
        images = task.augment(images, self.rngs["augment"], shard.among)
        return replace(step, images=images, x=task.transform(images))

    def recalibrate(self) -> None:
        """Recalibrate BatchNorm: measure the statistics for predictions on all training data."""
        self.net.train()  # layers in evaluation mode would not measure
        dtype = next(self.net.parameters()).dtype
        for task in self.tasks:
            own_batches = world().take_turns(batches(len(task.train), RECALIBRATION_BATCH))
            inputs = (task.transform(task.train.unit_images(b, dtype)) for b in own_batches)
            self.net.recalibrate(task.id, inputs, world().sum)

    def end_epoch(self) -> None:
        """Note the mean training loss of the epoch."""
        known = self.epoch_samples > 0
        self.curve.train.append(self.epoch_loss / self.epoch_samples if known else None)
        self.epoch_loss, self.epoch_samples = 0.0, 0

    def should_continue(self, schedule: Plateau) -> bool:
        """Tell the schedule the loss it looks at, and keep the best weights."""
        if self.training.looks_at_validation:
            self.recalibrate()
            loss, accuracy = validate(self.net, self.tasks, self.training.batch_size)
            self.curve.valid.append(loss)
            self.curve.valid_accuracy.append(accuracy)
        else:
            trained = self.curve.train[-1]
            loss = math.inf if trained is None else trained
        verdict = schedule.after_epoch(loss)
        if verdict == "better":
            if not self.training.looks_at_validation:
                self.recalibrate()
            self.best = {name: value.clone() for name, value in self.net.state_dict().items()}
            self.method.best_so_far(self.net)
        return verdict != "stop"

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to resume after a step, except the method's state."""
        rngs = {purpose: rng.get_state() for purpose, rng in self.rngs.items()}
        return {
            "net": self.net.state_dict(),
            "optimizer": [self.optimizer.state[parameter] for parameter in self.parameters],
            "schedule": vars(self.schedule),
            "scale": self.scaler.state_dict() if self.scaler else None,
            "chances": {**rngs, "order": self.order_state},
            "best": self.best,
            "done": self.steps_done,
            "epoch": self.epoch,
            "batch": self.batch,
            "curve": self.curve.as_dict(),
            "epoch_loss": [self.epoch_loss, self.epoch_samples],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a state."""
        with raising_bad_checkpoint("the saved state of the training loop"):
            self._load(state)

    def _load(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        for parameter, saved in zip(self.parameters, state["optimizer"], strict=True):
            # Scalars, such as Adam's step count, stay on the CPU whatever the device.
            self.optimizer.state[parameter] = {
                name: value if value.dim() == 0 else value.to(parameter.device)
                for name, value in saved.items()
            }
        vars(self.schedule).update(state["schedule"])
        if self.scaler:
            load_scaler(self.scaler, state["scale"])
        for purpose, rng in self.rngs.items():
            if purpose in state["chances"]:  # states of earlier versions have no "augment"
                rng.set_state(state["chances"][purpose])
        self.best, self.steps_done = state["best"], state["done"]
        self.epoch, self.batch = state["epoch"], state["batch"]
        unknown: list[float | None] = [None] * self.epoch  # states of earlier versions have none
        self.curve = Curve.from_dict(state.get("curve", {"train": unknown}))
        loss, samples = state.get("epoch_loss", [0.0, 0])
        self.epoch_loss, self.epoch_samples = float(loss), int(samples)


def unscale(scaler: GradScaler, optimizer: torch.optim.Optimizer) -> bool:
    """Divide the gradients by the loss scale, and adapt the scale; tell whether to take the step.

    A step is skipped where the scale made gradients infinite. The scale never falls below 1, and
    at 1 a step is always taken: gradients that are infinite then would be so without scaling.
    """
    before = scaler.get_scale()
    scaler.unscale_(optimizer)
    scaler.update()
    if scaler.get_scale() < 1:
        scaler.update(1.0)
    return before == 1 or scaler.get_scale() >= before


def load_scaler(scaler: GradScaler, state: dict[str, Any]) -> None:
    """Restore the loss scale; older states call it `factor`, and its growth tracker `good`."""
    old = "factor" in state
    scale, steps = state["factor" if old else "scale"], state["good" if old else "_growth_tracker"]
    if not 1 <= scale < math.inf or not steps >= 0:
        raise ValueError(f"a scale of {scale} after {steps} steps")
    restored = {"scale": float(scale), "_growth_tracker": int(steps)}
    scaler.load_state_dict({**scaler.state_dict(), **restored})


def refuse_non_finite_images(step: Step) -> None:
    """Refuse a batch with NaN or infinity in its images."""
    if not step.task.train.images.is_floating_point():
        return
    images = step.images if step.shard.is_whole else step.task.train.images[step.batch]
    bad = (~images.flatten(1).isfinite().all(1)).nonzero().flatten()
    if len(bad):
        sample = int(step.batch[bad[0]])
        raise SampleNotFinite(
            f"training sample {sample} contains NaN or infinity, at {position_of(step)}: correct "
            "it or leave it out"
        )


def position_of(step: Step) -> str:
    """Return task, epoch and step for a message."""
    return (
        f"task {step.task.id + 1} ('{step.task.name}'), epoch {step.epoch + 1}, "
        f"step {step.number % step.per_epoch + 1}"
    )


def epoch_batches(
    tasks: Sequence[Task], size: int, generator: torch.Generator
) -> list[tuple[Task, Tensor]]:
    """Return the batches of one epoch: shuffled within each task, then among the tasks."""
    in_order = [(task, b) for task in tasks for b in batches(len(task.train), size, generator)]
    if len(tasks) == 1:
        return in_order
    return [in_order[i] for i in torch.randperm(len(in_order), generator=generator).tolist()]


def validation_loss(net: Network, tasks: Sequence[Task], size: int) -> float:
    """Return the mean cross-entropy over the validation samples, each on its own task's head."""
    return validate(net, tasks, size)[0]


@torch.no_grad()
def validate(net: Network, tasks: Sequence[Task], size: int) -> tuple[float, float]:
    """Return that loss, and the accuracy in per cent."""
    net.eval()
    dtype = next(net.parameters()).dtype
    total, correct, count = 0.0, 0, 0
    for task in tasks:
        for index in world().take_turns(batches(len(task.valid), size)):
            x = task.transform(task.valid.unit_images(index, dtype))
            logits, labels = net(x, task.id), task.valid.labels[index]
            total += float(functional.cross_entropy(logits, labels)) * len(index)
            correct += int((logits.argmax(1) == labels).sum())
        count += len(task.valid)
    sums = world().sum(torch.tensor([total, correct], dtype=torch.float64))
    return float(sums[0]) / count, 100 * float(sums[1]) / count


def prepare_fused(optimizer: torch.optim.Optimizer) -> None:
    """Meet what a fused optimiser takes for granted.

    It reads gradients with the strides of their weights. And it expects a momentum buffer for all
    weights or for none, though a weight may get its first gradient later: zeros give the same.
    """
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in trained:
            if parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        states = [optimizer.state[parameter] for parameter in trained]
        has_buffer = [state.get("momentum_buffer") is not None for state in states]
        if any(has_buffer) and not all(has_buffer):
            for parameter, state in zip(trained, states, strict=True):
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)
