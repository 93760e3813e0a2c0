"""Random images and streams of the size of CIFAR-100."""

import torch

from benchmarks.smooth import smooth_images
from classgrad.benchmarks.base import Normalise
from classgrad.benchmarks.cifar import DEVIATION, MEAN
from classgrad.tasks import Split, Task, TaskStream

CLASSES = 10


def random_task(number: int, per_class: int, seed: int = 0) -> Task:
    """Return a task of ten classes."""
    labels = torch.arange(CLASSES).repeat(per_class)
    split = Split(smooth_images(len(labels), seed), labels)
    few = Split(split.images[:CLASSES], labels[:CLASSES])
    names = tuple(f"{number}.{label}" for label in range(CLASSES))
    return Task(number, f"task {number}", names, split, few, Normalise(MEAN, DEVIATION))


def random_stream(tasks: int, per_class: int) -> TaskStream:
    """Return a stream that is named split-cifar100, so that recipes treat it as that."""
    stream = [random_task(number, per_class, seed=number) for number in range(tasks)]
    return TaskStream("split-cifar100", stream, [task.valid for task in stream])
