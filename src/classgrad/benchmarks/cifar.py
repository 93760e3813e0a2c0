"""CIFAR-100 as streams of tasks: split by classes, and by its twenty superclasses."""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from classgrad import seeds
from classgrad.benchmarks.base import BenchmarkSettings, Normalise, chunks, load_both, split_classes
from classgrad.data.cifar import superclasses
from classgrad.tasks import Split, TaskStream

MEAN = [125.3 / 255, 123.0 / 255, 113.9 / 255]
DEVIATION = [63.0 / 255, 62.1 / 255, 66.7 / 255]

# The orders of superclasses that APD (ICLR 2020) averages over; GPM's code has the same.
ORDERS = {
    "A": list(range(20)),
    "B": [15, 12, 5, 9, 7, 16, 18, 17, 1, 0, 3, 8, 11, 14, 10, 6, 2, 4, 13, 19],
    "C": [17, 1, 19, 18, 12, 7, 6, 0, 11, 15, 10, 5, 13, 3, 9, 16, 4, 14, 2, 8],
    "D": [11, 9, 6, 5, 12, 4, 0, 10, 13, 7, 14, 3, 15, 16, 8, 1, 2, 19, 18, 17],
    "E": [6, 14, 0, 11, 12, 17, 13, 4, 9, 1, 7, 19, 8, 10, 3, 15, 18, 5, 2, 16],
}


class SplitCifar100Options(BenchmarkSettings):
    """Options of the benchmark."""

    tasks: Literal[5, 10, 20] = Field(default=10, description="number of tasks")
    class_order: Literal["natural", "shuffled"] = Field(
        default="natural",
        description="classes by label as in released code, or shuffled with the run's seed",
    )


class SuperclassOptions(BenchmarkSettings):
    """Options of the benchmark."""

    layout: Literal["image", "scrambled"] = Field(
        default="image",
        description="pixels in the right order, or in the wrong one of published loaders",
    )
    task_order: Literal["A", "B", "C", "D", "E"] = Field(
        default="A", description="order of the tasks"
    )


def split_cifar100(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """The classes of CIFAR-100 in 5, 10 or 20 tasks; channels normalised as GPM and CGP do."""
    options = SplitCifar100Options(**values)
    train, test = load_both("cifar100", root, options.held_out)
    order = torch.arange(100)
    if options.class_order == "shuffled":
        order = torch.randperm(100, generator=seeds.generator(seed, "classes"))
    groups = chunks(order, options.tasks)
    return split_classes(
        "split-cifar100",
        Split(train.images, train.labels),
        Split(test.images, test.labels),
        groups,
        train.class_names,
        options,
        seed,
        task_names=[
            f"classes {classes[0]}-{classes[-1]}"
            if options.class_order == "natural"
            else f"draw {number}"
            for number, classes in enumerate(groups, start=1)
        ],
        transform=Normalise(MEAN, DEVIATION),
        notes=[part.note for part in (train, test) if part.note],
    )


def cifar100_superclass(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Twenty tasks, each of the five classes of a superclass; pixels in [0, 1], not normalised."""
    options = SuperclassOptions(**values)
    train, test = load_both("cifar100", root, options.held_out)
    superclass_of = superclasses(train)
    order = ORDERS[options.task_order]
    arrange = scramble if options.layout == "scrambled" else torch.Tensor.contiguous
    return split_classes(
        "cifar100-superclass",
        Split(arrange(train.images), train.labels),
        Split(arrange(test.images), test.labels),
        [(superclass_of == number).nonzero().flatten().tolist() for number in order],
        train.class_names,
        options,
        seed,
        task_names=[train.coarse_names[number] for number in order],
        notes=[part.note for part in (train, test) if part.note],
    )


def scramble(images: Tensor) -> Tensor:
    """Read channel-first bytes as if they were channel-last, as the published loaders do.

    A row of CIFAR is 1,024 red, 1,024 green, 1,024 blue values. The loaders of APD, GPM, CGP and
    others reshape it to (32, 32, 3) and then move the last axis to the front, so every "pixel" is
    three neighbours of one channel.
    """
    count = len(images)
    return images.reshape(count, 32, 32, 3).permute(0, 3, 1, 2).contiguous()
