"""Accuracy on test data: with the task given, and without it by confidence and by prototypes."""

import math
from collections.abc import Sequence
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
class ClassPrototypes:
    """What prediction without task identity needs to know of the tasks learnt so far."""

    class_ids: dict[str, int] = field(default_factory=dict)  # one number per class name
    tasks: list[Tensor] = field(default_factory=list)  # per task: the class id of each output
    prototypes: list[Tensor] = field(default_factory=list)  # per task: unit class means

    def add_task(self, net: Network, task: Task) -> None:
        """Take in a task that was just learnt."""
        self.add(task.class_names, class_means(net, task))

    def add(self, class_names: Sequence[str], means: Tensor) -> None:
        """Take in the classes of a task with their unit means."""
        ids = [self.class_ids.setdefault(n, len(self.class_ids)) for n in class_names]
        self.tasks.append(torch.tensor(ids).to(means.device))
        self.prototypes.append(means)


@dataclass(frozen=True)
class Score:
    """Accuracies in per cent on one test set."""

    task_known: float
    by_class: list[float | None]  # the same for each class; None without a test sample
    by_confidence: float = math.nan  # task unknown: the head with the highest confidence decides
    by_prototype: float = math.nan  # task unknown: the nearest class prototype decides


@torch.no_grad()
def evaluate(
    net: Network, known: ClassPrototypes, task: Task, test: Split, *, task_free: bool = True
) -> Score:
    """Score a network on the test set of a task it has learnt, also without task identity."""
    net.eval()
    wanted = known.tasks[task.id][test.labels]
    correct = torch.zeros(3, len(test), dtype=torch.uint8)
    for index, x in inputs(net, test, task.transform):
        features = net.embed(x, task.id)
        logits = net.classify(features, task.id)[:, : task.classes]
        correct[0, index] = is_correct(logits.argmax(1) == test.labels[index])
        if task_free:
            by_confidence, by_prototype = predict_task_free(net, known, x, task.id, features)
            correct[1, index] = is_correct(by_confidence == wanted[index])
            correct[2, index] = is_correct(by_prototype == wanted[index])
    task_known, by_confidence, by_prototype = world().sum(correct)
    of_class = [task_known[test.labels.cpu() == label] for label in range(task.classes)]
    by_class = [_percent(part) if len(part) else None for part in of_class]
    if not task_free:
        return Score(_percent(task_known), by_class)
    return Score(_percent(task_known), by_class, _percent(by_confidence), _percent(by_prototype))


def predict_task_free(
    net: Network, known: ClassPrototypes, x: Tensor, own: int, features: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the class ids that confidence and prototypes choose among all tasks learnt so far.

    `features` are the embeddings for task `own`, to be had for the others too where they do not
    depend on the task.
    """
    best = x.new_full((2, len(x)), -torch.inf)
    choice = x.new_zeros(2, len(x), dtype=torch.int64)
    for task, ids in enumerate(known.tasks):
        seen = net.embed(x, task) if net.task_dependent and task != own else features
        # A head for all tasks may have more outputs than this one has classes.
        sure, output = net.classify(seen, task)[:, : len(ids)].softmax(1).max(1)
        close, near = (functional.normalize(seen, dim=1) @ known.prototypes[task].T).max(1)
        for row, (value, label) in enumerate([(sure, ids[output]), (close, ids[near])]):
            better = value > best[row]
            best[row] = torch.where(better, value, best[row])
            choice[row] = torch.where(better, label, choice[row])
    return choice[0], choice[1]


@torch.no_grad()
def accuracy(net: Network, head: int, task: Task, test: Split) -> float:
    """Return the accuracy in per cent of one head on the test set of a task."""
    net.eval()
    correct = torch.zeros(len(test), dtype=torch.uint8)
    for index, x in inputs(net, test, task.transform):
        correct[index] = is_correct(net(x, head)[:, : task.classes].argmax(1) == test.labels[index])
    return _percent(world().sum(correct))


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


def is_correct(matches: Tensor) -> Tensor:
    """Return 1 for each sample that was classified correctly, else 0, on the CPU."""
    return matches.cpu().to(torch.uint8)


def _percent(correct: Tensor) -> float:
    return 100 * float(correct.double().mean())
