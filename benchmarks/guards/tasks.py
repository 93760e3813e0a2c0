"""The tasks: the digits that come with the package, split by class, another way for each seed."""

from typing import NamedTuple

import torch
from torch import Tensor

from classgrad import seeds
from classgrad.benchmarks.digits import digits
from classgrad.tasks import Split

VALID_SHARE = 0.3  # of the training images


class Samples(NamedTuple):
    """Images with pixels from -1 to 1, and labels from 0."""

    x: Tensor
    y: Tensor


class DigitTask(NamedTuple):
    """Some of the digits; tests are for the figures only."""

    digits: list[int]
    train: Samples
    valid: Samples
    test: Samples


def split_tasks(count: int, seed: int) -> list[DigitTask]:
    """Return tasks of 10 / count digits each, in the order of the seed."""
    rng = seeds.generator(seed, "guards", "tasks")
    train, test = digits()
    order = torch.randperm(len(train.labels), generator=rng)
    held = round(VALID_SHARE * len(order))
    tasks = []
    for group in torch.randperm(10, generator=rng).chunk(count):
        parts = (
            samples(train, order[held:], group),
            samples(train, order[:held], group),
            samples(test, torch.arange(len(test.labels)), group),
        )
        tasks.append(DigitTask(group.tolist(), *parts))
    return tasks


def samples(split: Split, index: Tensor, group: Tensor) -> Samples:
    """Return those of the samples with this index that are of these digits."""
    labels = split.labels[index]
    chosen = torch.isin(labels, group)
    y = (labels[chosen].unsqueeze(1) == group).int().argmax(1)
    return Samples(split.images[index[chosen]] / 127.5 - 1, y)
