"""Streams from one dataset: its classes split into tasks, or its pixels permuted."""

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


def select_classes(split: Split, classes: Sequence[int]) -> Split:
    """Keep some classes, and number their labels from 0 in the given order."""
    position = torch.full((int(split.labels.max()) + 1 + max(classes),), -1)
    position[list(classes)] = torch.arange(len(classes))
    labels = position[split.labels]
    return Split(split.images[labels >= 0], labels[labels >= 0])


def split_classes(
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
    """Return a stream with a task for each group of classes."""
    tasks, tests = [], []
    for number, group in enumerate(groups):
        rng = seeds.generator(seed, "valid", number)
        train_split, valid = options.divide(select_classes(train, group), rng)
        names = tuple(class_names[label] for label in group)
        title = task_names[number] if task_names else " ".join(names)
        tasks.append(Task(number, title, names, train_split, valid, transform))
        tests.append(options.reduce(select_classes(test, group)))
    return TaskStream(name, tasks, tests, notes, options.model_dump())


def permute_pixels(
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
    """Return a stream of `count` tasks with all classes, each with its own order of pixels."""
    train_split, valid = options.divide(train, seeds.generator(seed, "valid"))
    pixels = train.images[0].numel()
    tasks = []
    for number in range(count):
        rng = seeds.generator(seed, "permutation", number)
        order = torch.arange(pixels) if number == 0 else torch.randperm(pixels, generator=rng)
        title = f"order {number + 1}"
        tasks.append(Task(number, title, tuple(class_names), train_split, valid, Permute(order)))
    return TaskStream(name, tasks, [options.reduce(test)] * count, notes, options.model_dump())


def chunks(order: Tensor, count: int) -> list[list[int]]:
    """Split an order of classes into equal groups."""
    return [group.tolist() for group in order.chunk(count)]
