"""The one training loop: batches of one or more tasks through a method's loss and projection."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from shutil import which
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from classgrad import seeds
from classgrad.errors import UserError
from classgrad.methods.base import Method, Step
from classgrad.networks.network import Network
from classgrad.schedules import Constant, Cosine, Plateau, Schedule
from classgrad.settings import Settings
from classgrad.tasks import Task, batch_count, batches


class Training(Settings):
    """How a task is trained, whatever the method."""

    kind = "training setting"

    epochs: int = Field(10, ge=1, description="epochs per task, at most")
    batch_size: int = Field(64, ge=1, description="samples per step")
    optimizer: Literal["sgd", "adam", "adamw"] = Field("sgd", description="how weights move")
    learning_rate: float = Field(0.05, gt=0, description="rate at the start of every task")
    momentum: float = Field(0.0, ge=0, lt=1, description="momentum of sgd, anew in every task")
    nesterov: bool = Field(False, description="Nesterov's form of momentum")
    weight_decay: float = Field(0.0, ge=0, description="pull of the weights to zero")
    schedule: Literal["plateau", "cosine", "constant"] = Field(
        "cosine", description="plateau divides the rate when validation stops improving"
    )
    warmup: int = Field(0, ge=0, description="cosine: steps to reach the rate")
    lr_min: float = Field(1e-5, ge=0, description="plateau: stop below this rate")
    factor: float = Field(2.0, gt=1, description="plateau: what the rate is divided by")
    patience: int = Field(6, ge=1, description="plateau: epochs without improvement before that")
    compile: bool = Field(
        False, description="compile the network in every task; rarely faster on a CPU"
    )
    task_free: Literal["every", "end"] = Field(
        "every",
        description="when to measure without task identity: after every task, or at the end",
    )

    def schedule_for(self, steps: int) -> Schedule:
        """Return the schedule of a task that lasts at most `steps` steps."""
        if self.schedule == "plateau":
            return Plateau(
                self.learning_rate, lowest=self.lr_min, factor=self.factor, patience=self.patience
            )
        if self.schedule == "cosine":
            return Cosine(self.learning_rate, steps=steps, warmup=self.warmup)
        return Constant(self.learning_rate)

    def optimizer_for(self, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
        """Return a new optimiser."""
        rate, decay = self.learning_rate, self.weight_decay
        if self.optimizer == "adam":
            return torch.optim.Adam(parameters, lr=rate, weight_decay=decay)
        if self.optimizer == "adamw":
            return torch.optim.AdamW(parameters, lr=rate, weight_decay=decay)
        nesterov = self.nesterov and self.momentum > 0
        return torch.optim.SGD(
            parameters,
            lr=rate,
            momentum=self.momentum,
            weight_decay=decay,
            nesterov=nesterov,
            fused=True,  # one pass over memory instead of three, and the same bits
        )


@dataclass(frozen=True)
class Progress:
    """Where training stands, for whoever watches."""

    task: int
    epoch: int
    step: int
    steps: int  # of the whole task, at most
    loss: float


Observer = Callable[[Progress], None]


class LossNotFinite(UserError):
    """Training stopped because the loss is no longer a number."""


def fit(
    net: Network,
    method: Method,
    tasks: Sequence[Task],
    training: Training,
    *,
    seed: int,
    observer: Observer | None = None,
) -> None:
    """Train on these tasks together; every batch holds samples of one of them."""
    newest = tasks[-1].id
    parameters = [p for p in method.parameters(net, tasks) if p.requires_grad]
    optimizer = training.optimizer_for(parameters)
    per_epoch = sum(batch_count(len(task.train), training.batch_size) for task in tasks)
    steps = training.epochs * per_epoch
    schedule = training.schedule_for(steps)
    if isinstance(schedule, Plateau) and not any(len(task.valid) for task in tasks):
        raise UserError(
            "schedule 'plateau' needs validation data: keep some of the training data apart, or "
            "choose schedule=cosine"
        )
    order = seeds.generator(seed, "order", newest)
    chance = seeds.generator(seed, "method", newest)
    net.set_generator(seeds.generator(seed, "dropout", newest))
    best: dict[str, Tensor] | None = None
    done = 0
    if training.compile:
        compile_trunk(net)
    for epoch in range(training.epochs):
        net.train()
        for task, index in epoch_batches(tasks, training.batch_size, order):
            for group in optimizer.param_groups:
                group["lr"] = schedule.rate(done)
            images = task.train.unit_images(index, next(net.parameters()).dtype)
            step = Step(
                task,
                index,
                images,
                task.transform(images),
                task.train.labels[index],
                optimizer,
                chance,
                number=done,
                per_epoch=per_epoch,
                steps=steps,
            )
            loss = method.loss(net, step)
            value = loss.item()
            if not math.isfinite(value):
                raise LossNotFinite(
                    f"the loss is {value} at task {task.id + 1} ('{task.name}'), "
                    f"epoch {epoch + 1}, step {done % per_epoch + 1}: lower learning_rate "
                    f"(it was {training.learning_rate:g}) or look for bad values in the images"
                )
            optimizer.zero_grad()
            loss.backward()
            method.adjust_gradients(net, step)
            prepare(optimizer)
            optimizer.step()
            method.after_step(net, step)
            done += 1
            if observer:
                observer(Progress(newest, epoch, done, steps, value))
        if isinstance(schedule, Plateau):
            verdict = schedule.judge(validation_loss(net, tasks, training.batch_size))
            if verdict == "better":
                best = {name: value.clone() for name, value in net.state_dict().items()}
            if verdict == "stop":
                break
    if best is not None:
        net.load_state_dict(best)
    if training.compile:
        net.trunk._compiled_call_impl = None


def compile_trunk(net: Network) -> None:
    """Compile the trunk for the training steps of one task."""
    if not any(which(name) for name in (os.environ.get("CXX", "c++"), "g++", "clang++")):
        raise UserError("compile needs a C++ compiler, and there is none: leave it out")
    torch.compiler.reset()  # tasks have layers of their own; what was compiled for others is stale
    net.trunk.compile()


def prepare(optimizer: torch.optim.Optimizer) -> None:
    """Give a fused optimiser what it takes for granted.

    It goes blindly through gradients as their weights lie in memory. And it has a momentum for all
    weights or for none, though a weight may get its first gradient later: zero gives the same.
    """
    for group in optimizer.param_groups:
        here = [parameter for parameter in group["params"] if parameter.grad is not None]
        for parameter in here:
            if parameter.grad.stride() != parameter.stride():
                parameter.grad = torch.empty_like(parameter).copy_(parameter.grad)
        states = [optimizer.state[parameter] for parameter in here]
        moving = [state.get("momentum_buffer") is not None for state in states]
        if any(moving) and not all(moving):
            for parameter, state in zip(here, states, strict=True):
                if state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(parameter)


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
        for index in batches(len(task.valid), size):
            x = task.transform(task.valid.unit_images(index, dtype))
            logits = net(x, task.id)
            total += float(functional.cross_entropy(logits, task.valid.labels[index])) * len(index)
            count += len(index)
    return total / count
