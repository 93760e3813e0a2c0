"""Random images and streams of the size of CIFAR-100."""

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.benchmarks.base import Normalise
from classgrad.benchmarks.cifar import DEVIATION, MEAN
from classgrad.tasks import Split, Task, TaskStream

CLASSES = 10


def smooth_images(count: int, seed: int = 0) -> Tensor:
    """Return uint8 (count, 3, 32, 32): coarse patches of colour with some grain.

    Not plain noise, as the work of AugMix depends on the histograms and edges of images.
    """
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=rng)
    grain = torch.rand(count, 3, 32, 32, generator=rng)
    images = functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    return (0.9 * images + 0.1 * grain).mul(255).to(torch.uint8)


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
