"""How tasks are learnt, each to the same accuracy, and what is measured of it."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.guards.contenders import FineTuning
from benchmarks.guards.models import Model, build
from benchmarks.guards.tasks import DigitTask, Samples
from classgrad import seeds

BATCH = 16
TARGET = 0.95  # validation accuracy at which a new task has been learnt
MOST_STEPS, BETWEEN_LOOKS = 400, 5
FIRST_STEPS, FIRST_RATE = 300, 1e-3  # of the first task, which is the same for all contenders


@dataclass
class Outcome:
    """What a contender has kept and learnt after all tasks; shares, not per cent."""

    valid: list[float]  # validation accuracy on each task, at the end
    when_learnt: list[float]  # test accuracy on each task
    at_end: list[float]
    steps: list[int]  # of each new task
    reached: list[bool]  # the target
    moved: float  # of layers' outputs for old inputs
    inside: float | None  # share of the last update along protected directions
    kept: int  # numbers between tasks


def accuracy(net: nn.Module, samples: Samples, task: int) -> float:
    """Return the share of samples classified correctly."""
    with torch.no_grad():
        return float((net(samples.x, task).argmax(1) == samples.y).double().mean())


def learner(net: nn.Module, model: Model, task: int, rate: float) -> torch.optim.Optimizer:
    """Return AdamW for what is trainable of a net, without the heads of other tasks."""
    other = [p for i, head in enumerate(model.heads) if i != task for p in head.parameters()]
    left_out = {id(parameter) for parameter in other}
    chosen = [p for p in net.parameters() if p.requires_grad and id(p) not in left_out]
    return torch.optim.AdamW(chosen, rate)


class Trainer:
    """Takes ordinary steps on random batches of a task."""

    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        samples: Samples,
        task: int,
        rng: torch.Generator,
    ) -> None:
        self.net, self.optimizer, self.samples, self.task = net, optimizer, samples, task
        self.rng = rng

    def step(self) -> None:
        """Take a step."""
        index = torch.randint(len(self.samples.y), (BATCH,), generator=self.rng)
        self.optimizer.zero_grad()
        logits = self.net(self.samples.x[index], self.task)
        functional.cross_entropy(logits, self.samples.y[index]).backward()
        self.optimizer.step()

    def learn(self, valid: Samples) -> tuple[int, bool]:
        """Take steps until the target is reached; return how many, and whether it was."""
        for step in range(1, MOST_STEPS + 1):
            self.step()
            if step % BETWEEN_LOOKS == 0 and accuracy(self.net, valid, self.task) >= TARGET:
                return step, True
        return MOST_STEPS, False


def learn_first(kind: str, tasks: list[DigitTask], seed: int) -> Model:
    """Return a model that has learnt the first task."""
    model = build(kind, [len(task.digits) for task in tasks], seed)
    rng = seeds.generator(seed, "guards", "first")
    trainer = Trainer(model, learner(model, model, 0, FIRST_RATE), tasks[0].train, 0, rng)
    for _ in range(FIRST_STEPS):
        trainer.step()
    return model


class LayerOutputs:
    """The inputs and outputs of a model's layers for the samples of a task."""

    def __init__(self, model: Model, samples: Samples, task: int) -> None:
        self.seen: dict[str, tuple[Tensor, Tensor]] = {}
        hooks = [
            layer.register_forward_hook(
                lambda _layer, args, output, name=name: self.seen.update({name: (args[0], output)})
            )
            for name, layer in model.layers().items()
        ]
        with torch.no_grad():
            model(samples.x, task)
        for hook in hooks:
            hook.remove()

    def moved(self, model: Model) -> float:
        """Return how far the outputs for the same inputs have moved, relative; mean over layers."""
        shares = []
        with torch.no_grad():
            for name, layer in model.layers().items():
                x, y = self.seen[name]
                shares.append(float((layer(x) - y).norm() / y.norm()))
        return sum(shares) / len(shares)


def weights(model: Model) -> dict[str, Tensor]:
    """Return copies of the weight matrices."""
    return {name: layer.weight.detach().clone() for name, layer in model.layers().items()}


def learn_all(
    contender: FineTuning, start: Model, tasks: list[DigitTask], rate: float, seed: int
) -> Outcome:
    """Learn all tasks but the first, which the model knows."""
    model = copy.deepcopy(start)
    rng = seeds.generator(seed, "guards", "batches")
    outputs, steps, reached, inside = [], [], [], []
    when_learnt = [accuracy(model, tasks[0].test, 0)]
    contender.end_task(model, tasks[0].train, 0)
    for number, task in list(enumerate(tasks))[1:]:
        outputs.append(LayerOutputs(model, tasks[number - 1].train, number - 1))
        before = weights(model)
        with torch.random.fork_rng(devices=[]):  # adapters are drawn from the global generator
            torch.manual_seed(seed)
            net = contender.begin_task(model, number)
        optimizer = learner(net, model, number, rate)
        contender.watch(optimizer)
        taken, was_reached = Trainer(net, optimizer, task.train, number, rng).learn(task.valid)
        steps.append(taken)
        reached.append(was_reached)
        model = contender.merge(net)
        inside = contender.inside(before, weights(model))
        when_learnt.append(accuracy(model, task.test, number))
        contender.end_task(model, task.train, number)
    moved = [each.moved(model) for each in outputs]
    return Outcome(
        [accuracy(model, task.valid, number) for number, task in enumerate(tasks)],
        when_learnt,
        [accuracy(model, task.test, number) for number, task in enumerate(tasks)],
        steps,
        reached,
        sum(moved) / len(moved),
        max(inside) if inside else None,
        contender.kept(),
    )


def choose(tried: list[tuple[dict[str, Any], list[Outcome]]]) -> dict[str, Any]:
    """Return the settings that reached the target most often, then kept and learnt most."""

    def worth(outcomes: list[Outcome]) -> tuple[int, float]:
        accuracies = [value for outcome in outcomes for value in outcome.valid]
        return (
            sum(sum(outcome.reached) for outcome in outcomes),
            sum(accuracies) / len(accuracies),
        )

    return max(tried, key=lambda pair: worth(pair[1]))[0]
