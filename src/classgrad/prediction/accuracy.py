"""Accuracy on test data: with the task known, and task-free by confidence and by prototypes."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.distributed import world
from classgrad.networks.network import Network
from classgrad.prediction.statistics import ClassStatistics, LinearDiscriminant, unit
from classgrad.tasks import Split, Task, Transform, batches

# With norm=batch, accuracy depends on which images share a batch: always 64 in a fixed order. With
# the task known they are of that task. Otherwise they are of all tasks so far, since the statistics
# of a batch of one task would reveal it.
BATCH = 64

# Images per class for a prototype: enough for a mean, and a small share of an epoch.
PROTOTYPE_SAMPLES = 100

# How a class is chosen when the task is unknown.
WAYS = ("confidence", "prototypes", "statistics")


@dataclass
class ClassPrototypes:
    """Classes of the tasks learnt so far, with their prototypes, for task-free prediction.

    Names of fields are keys of saved states.
    """

    class_ids: dict[str, int] = field(default_factory=dict)  # by class name
    tasks: list[Tensor] = field(default_factory=list)  # per task: the class id of each output
    prototypes: list[Tensor] = field(default_factory=list)  # per task: unit class means

    def add_task(self, net: Network, task: Task) -> None:
        """Add the classes of a task that was just learnt."""
        self.add(task.class_names, class_means(net, task))

    def add(self, class_names: Sequence[str], means: Tensor) -> None:
        """Add the classes of a task with their unit means."""
        ids = [self.class_ids.setdefault(n, len(self.class_ids)) for n in class_names]
        self.tasks.append(torch.tensor(ids).to(means.device))
        self.prototypes.append(means)


@dataclass(frozen=True)
class Score:
    """Accuracies in per cent on one test set."""

    task_known: float
    by_class: list[float | None]  # task known, for each class; None without a test sample
    by_confidence: float = math.nan  # task unknown: the class with the highest confidence
    by_prototype: float = math.nan  # task unknown: the class with the nearest prototype
    by_statistics: float = math.nan  # task unknown: the class with the highest discriminant score
    # Task unknown: the share of samples answered with a class of each task so far, by `WAYS`.
    chosen_tasks: dict[str, list[float]] | None = None


class TaskFree(NamedTuple):
    """The accuracies of a `Score` that are task-free."""

    by_confidence: float
    by_prototype: float
    by_statistics: float = math.nan
    chosen_tasks: dict[str, list[float]] | None = None


@torch.no_grad()
def evaluate(net: Network, task: Task, test: Split) -> Score:
    """Score a network on the test set of a task, with the task known."""
    net.eval()
    correct = torch.zeros(len(test), dtype=torch.uint8)
    for index, x in inputs(net, test, task.transform):
        logits = net(x, task.id)[:, : task.classes]
        correct[index] = is_correct(logits.argmax(1) == test.labels[index])
    correct = world().sum(correct)
    per_class = [correct[test.labels.cpu() == label] for label in range(task.classes)]
    by_class = [_percent(samples) if len(samples) else None for samples in per_class]
    return Score(_percent(correct), by_class)


@torch.no_grad()
def evaluate_task_free(
    net: Network,
    known: ClassPrototypes,
    tasks: Sequence[Task],
    tests: Sequence[Split],
    statistics: ClassStatistics | None = None,
) -> list[TaskFree]:
    """Return the task-free accuracies on each test set, measured on batches that mix all tasks.

    Those by statistics need embeddings that depend neither on the task nor on the batch.
    """
    net.eval()
    labelled = zip(tasks, tests, strict=True)
    true_ids = torch.cat([known.tasks[task.id][test.labels] for task, test in labelled])
    discriminant = None if statistics is None else LinearDiscriminant(statistics)
    class_ids = torch.cat(known.tasks)
    sizes = [len(test) for test in tests]
    outputs = torch.tensor([len(ids) for ids in known.tasks])
    owners = torch.arange(len(outputs)).repeat_interleave(outputs).to(class_ids.device)
    ways = WAYS if discriminant else WAYS[:2]
    correct = torch.zeros(len(ways), sum(sizes), dtype=torch.uint8)
    chosen = torch.zeros(len(ways), sum(sizes), dtype=torch.int64)  # tasks
    for index, x in mixed_inputs(net, tasks, tests):
        candidates = range(len(known.tasks))
        embeddings = dict(zip(candidates, net.embed_each(x, candidates), strict=True))
        predicted = list(zip(*predict_task_free(net, known, embeddings), strict=True))
        if discriminant:
            best = discriminant.scores(unit(embeddings[0])).argmax(1).to(class_ids.device)
            predicted.append((class_ids[best], owners[best]))
        for row, (ids, numbers) in enumerate(predicted):
            correct[row, index] = is_correct(ids == true_ids[index])
            chosen[row, index] = numbers.cpu()
    by_task = zip(*(row.split(sizes) for row in world().sum(correct)), strict=True)
    tasks_of = zip(*(row.split(sizes) for row in world().sum(chosen)), strict=True)
    found = []
    for hits, numbers in zip(by_task, tasks_of, strict=True):
        shares = {
            way: (100 * part.bincount(minlength=len(outputs)).double() / len(part)).tolist()
            for way, part in zip(ways, numbers, strict=True)
        }
        rates = [*map(_percent, hits), math.nan]
        found.append(TaskFree(rates[0], rates[1], rates[2], shares))
    return found


def predict_task_free(
    net: Network, known: ClassPrototypes, embeddings: Mapping[int, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return what confidence and prototypes choose among all tasks learnt so far.

    That is the ids of classes (2, n), and the tasks whose outputs they are (2, n). `embeddings` are
    those of the same inputs for each task.
    """
    inputs = embeddings[0]
    best = inputs.new_full((2, len(inputs)), -torch.inf)
    choice = inputs.new_zeros(2, len(inputs), dtype=torch.int64)
    chosen = torch.zeros_like(choice)
    for task, ids in enumerate(known.tasks):
        embedding = embeddings[task]
        # A head shared by all tasks may have more outputs than this task has classes.
        confidence, output = net.classify(embedding, task)[:, : len(ids)].softmax(1).max(1)
        cosine, nearest = (functional.normalize(embedding, dim=1) @ known.prototypes[task].T).max(1)
        for row, (value, label) in enumerate([(confidence, ids[output]), (cosine, ids[nearest])]):
            better = value > best[row]
            best[row] = torch.where(better, value, best[row])
            choice[row] = torch.where(better, label, choice[row])
            chosen[row] = chosen[row].masked_fill(better, task)
    return choice, chosen


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
    of_class = [
        (task.train.labels == label).nonzero().flatten()[:PROTOTYPE_SAMPLES]
        for label in range(task.classes)
    ]
    chosen = torch.cat(of_class).sort().values
    split = Split(task.train.images[chosen], task.train.labels[chosen])
    like = next(net.parameters())
    sums = torch.zeros(task.classes, net.embedding, dtype=like.dtype, device=like.device)
    for index, x in inputs(net, split, task.transform):
        features = functional.normalize(net.embed(x, task.id), dim=1)
        sums.index_add_(0, split.labels[index], features)
    return functional.normalize(world().sum(sums), dim=1)


@torch.no_grad()
def class_statistics(net: Network, task: Task) -> ClassStatistics:
    """Return the statistics of a task's classes, from training data."""
    net.eval()
    statistics = ClassStatistics.empty(task.classes, net.embedding)
    for index, x in inputs(net, task.train, task.transform):
        statistics.add(unit(net.embed(x, task.id)), task.train.labels[index])
    counts, sums, products = (
        world().sum(part) for part in (statistics.counts, statistics.sums, statistics.products)
    )
    return ClassStatistics(counts, sums, products)


def inputs(net: Network, split: Split, transform: Transform):  # type: ignore[no-untyped-def]
    """Yield (indices, network inputs) of the batches of a split, in order; processes take turns."""
    dtype = next(net.parameters()).dtype
    for index in world().take_turns(batches(len(split), BATCH)):
        yield index, transform(split.unit_images(index, dtype))


def mixed_inputs(  # type: ignore[no-untyped-def]
    net: Network, tasks: Sequence[Task], tests: Sequence[Split]
):
    """Yield (indices, network inputs) of batches of all test sets together, shuffled alike always.

    An index counts through the test sets one after another.
    """
    dtype = next(net.parameters()).dtype
    sizes = [len(test) for test in tests]
    owners = torch.arange(len(tests)).repeat_interleave(torch.tensor(sizes))
    places = torch.cat([torch.arange(size) for size in sizes])
    shuffled = batches(len(places), BATCH, torch.Generator().manual_seed(0))
    for batch in world().take_turns(shuffled):
        index = batch.sort().values  # grouped by task, as transforms are
        parts = []
        for number in owners[index].unique().tolist():
            of_task = places[index[owners[index] == number]]
            parts.append(tasks[number].transform(tests[number].unit_images(of_task, dtype)))
        yield index, torch.cat(parts)


def is_correct(matches: Tensor) -> Tensor:
    """Return 1 for each sample that was classified correctly, else 0, on the CPU."""
    return matches.cpu().to(torch.uint8)


def _percent(correct: Tensor) -> float:
    return 100 * float(correct.double().mean())
