"""Streams from one dataset: its classes dealt out to tasks, or its pixels put in other orders."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from classgrad import data, seeds
from classgrad.benchmarks.options import BenchmarkSettings
from classgrad.benchmarks.transforms import Permute
from classgrad.data import Images
from classgrad.tasks import Split, Task, TaskStream, Transform, unchanged


def load_both(name: str, root: Path | None) -> tuple[Images, Images]:
    """Return the training and the test data of a dataset."""
    folder = data.data_dir(root)
    return data.load(name, folder, "train"), data.load(name, folder, "test")


def only(split: Split, classes: Sequence[int]) -> Split:
    """Keep some classes, and count their labels from 0 in the order they are given."""
    position = torch.full((int(split.labels.max()) + 1 + max(classes),), -1)
    position[list(classes)] = torch.arange(len(classes))
    labels = position[split.labels]
    return Split(split.images[labels >= 0], labels[labels >= 0])


def deal(
    name: str,
    train: Split,
    test: Split,
    groups: Sequence[Sequence[int]],
    class_names: Sequence[str],
    options: BenchmarkSettings,
    seed: int,
    *,
    task_names: Sequence[str] | None = None,
    transform: Transform = unchanged,
    notes: Sequence[str] = (),
) -> TaskStream:
    """Return a stream with one task for each group of classes."""
    tasks, tests = [], []
    for number, group in enumerate(groups):
        learn, valid = options.divide(only(train, group), seeds.generator(seed, "valid", number))
        names = tuple(class_names[label] for label in group)
        title = task_names[number] if task_names else " ".join(names)
        tasks.append(Task(number, title, names, learn, valid, transform))
        tests.append(options.reduce(only(test, group)))
    return TaskStream(name, tasks, tests, notes, options.model_dump())


def permute(
    name: str,
    train: Split,
    test: Split,
    class_names: Sequence[str],
    count: int,
    options: BenchmarkSettings,
    seed: int,
    *,
    notes: Sequence[str] = (),
) -> TaskStream:
    """Return a stream of all classes again and again, each with its own order of pixels."""
    learn, valid = options.divide(train, seeds.generator(seed, "valid"))
    pixels = train.images[0].numel()
    tasks = []
    for number in range(count):
        chance = seeds.generator(seed, "permutation", number)
        order = torch.arange(pixels) if number == 0 else torch.randperm(pixels, generator=chance)
        title = f"order {number + 1}"
        tasks.append(Task(number, title, tuple(class_names), learn, valid, Permute(order)))
    return TaskStream(name, tasks, [options.reduce(test)] * count, notes, options.model_dump())


def chunks(order: Tensor, count: int) -> list[list[int]]:
    """Cut an order of classes into equal groups."""
    return [part.tolist() for part in order.chunk(count)]
