"""Accuracy on test data: with the task given, and without it by confidence and by prototypes."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.distributed import world
from classgrad.networks.network import Network
from classgrad.tasks import Split, Task, Transform, batches

# With BatchNorm on batch statistics the batches are part of the result: always 64, in a fixed
# order, one task at a time.
BATCH = 64

# Images per class behind a prototype: enough for a mean, and a small share of an epoch.
PROTOTYPE_SAMPLES = 100


@dataclass
class Judge:
    """What prediction without task identity needs to know of the tasks learnt so far."""

    class_ids: dict[str, int] = field(default_factory=dict)  # one number per class name
    tasks: list[Tensor] = field(default_factory=list)  # per task: the class id of each output
    prototypes: list[Tensor] = field(default_factory=list)  # per task: unit class means

    def learn(self, net: Network, task: Task) -> None:
        """Take in a task that was just learnt."""
        ids = [self.class_ids.setdefault(n, len(self.class_ids)) for n in task.class_names]
        self.tasks.append(torch.tensor(ids).to(task.train.labels.device))
        self.prototypes.append(class_means(net, task))


@dataclass(frozen=True)
class Score:
    """Accuracies in per cent on one test set."""

    given: float  # the task is given
    by_class: list[float | None]  # the same for each class; None without a test sample
    confident: float = math.nan  # the head with the highest confidence decides
    nearest: float = math.nan  # the nearest class prototype decides


@torch.no_grad()
def evaluate(
    net: Network, judge: Judge, task: Task, test: Split, *, task_free: bool = True
) -> Score:
    """Score a network on the test set of a task it has learnt, also without task identity."""
    net.eval()
    wanted = judge.tasks[task.id][test.labels]
    right = torch.zeros(3, len(test), dtype=torch.uint8)
    for index, x in inputs(net, test, task.transform):
        features = net.embed(x, task.id)
        logits = net.classify(features, task.id)[:, : task.classes]
        right[0, index] = as_right(logits.argmax(1) == test.labels[index])
        if task_free:
            by_confidence, by_prototype = guess(net, judge, x, task.id, features)
            right[1, index] = as_right(by_confidence == wanted[index])
            right[2, index] = as_right(by_prototype == wanted[index])
    given, confident, nearest = world().sum(right)
    of_class = [given[test.labels.cpu() == label] for label in range(task.classes)]
    by_class = [_percent(part) if len(part) else None for part in of_class]
    if not task_free:
        return Score(_percent(given), by_class)
    return Score(_percent(given), by_class, _percent(confident), _percent(nearest))


def guess(
    net: Network, judge: Judge, x: Tensor, own: int, features: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the class ids that confidence and prototypes choose among all tasks learnt so far.

    `features` are the embeddings for task `own`, to be had for the others too where they do not
    depend on the task.
    """
    best = x.new_full((2, len(x)), -torch.inf)
    choice = x.new_zeros(2, len(x), dtype=torch.int64)
    for task, ids in enumerate(judge.tasks):
        seen = net.embed(x, task) if net.task_dependent and task != own else features
        # A head for all tasks may have more outputs than this one has classes.
        sure, output = net.classify(seen, task)[:, : len(ids)].softmax(1).max(1)
        close, near = (functional.normalize(seen, dim=1) @ judge.prototypes[task].T).max(1)
        for row, (value, label) in enumerate([(sure, ids[output]), (close, ids[near])]):
            better = value > best[row]
            best[row] = torch.where(better, value, best[row])
            choice[row] = torch.where(better, label, choice[row])
    return choice[0], choice[1]


@torch.no_grad()
def accuracy(net: Network, head: int, task: Task, test: Split) -> float:
    """Return the accuracy in per cent of one head on the test set of a task."""
    net.eval()
    right = torch.zeros(len(test), dtype=torch.uint8)
    for index, x in inputs(net, test, task.transform):
        right[index] = as_right(net(x, head)[:, : task.classes].argmax(1) == test.labels[index])
    return _percent(world().sum(right))


@torch.no_grad()
def class_means(net: Network, task: Task) -> Tensor:
    """Return the unit mean embedding of each class (classes x embedding), from training data."""
    net.eval()
    kept = [
        (task.train.labels == label).nonzero().flatten()[:PROTOTYPE_SAMPLES]
        for label in range(task.classes)
    ]
    some = torch.cat(kept).sort().values
    split = Split(task.train.images[some], task.train.labels[some])
    like = next(net.parameters())
    sums = torch.zeros(task.classes, net.embedding, dtype=like.dtype, device=like.device)
    for index, x in inputs(net, split, task.transform):
        features = functional.normalize(net.embed(x, task.id), dim=1)
        sums.index_add_(0, split.labels[index], features)
    return functional.normalize(world().sum(sums), dim=1)


def inputs(net: Network, split: Split, transform: Transform):  # type: ignore[no-untyped-def]
    """Yield (indices, network inputs) over a split, in order; several processes take turns."""
    dtype = next(net.parameters()).dtype
    for index in world().take_turns(batches(len(split), BATCH)):
        yield index, transform(split.unit_images(index, dtype))


def as_right(matches: Tensor) -> Tensor:
    """Return 1 for each sample that was told right, else 0, on the CPU."""
    return matches.cpu().to(torch.uint8)


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())
