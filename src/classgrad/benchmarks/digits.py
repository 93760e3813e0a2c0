"""Streams of scikit-learn's handwritten digits (8 x 8 pixels, 1,797 images): no download needed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from classgrad import seeds
from classgrad.benchmarks.options import BenchmarkSettings
from classgrad.errors import UserError
from classgrad.tasks import Split, Task, TaskStream

# One image in five is for testing: the same ones whatever the seed, so that runs are comparable.
TEST_SHARE = 0.2


class PermutedDigitsOptions(BenchmarkSettings):
    """What can be set."""

    tasks: int = Field(5, ge=1, le=1000, description="number of tasks")


class SplitDigitsOptions(BenchmarkSettings):
    """What can be set."""

    tasks: int = Field(5, ge=1, le=10, description="number of tasks; a divisor of 10")


@dataclass(frozen=True)
class Permute:
    """Put the pixels of every image in another order, the same for all images."""

    order: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Permute (n, ...), keeping the shape."""
        return images.flatten(1)[:, self.order].reshape(images.shape)


def permuted_digits(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """All ten digits in every task, each task with its own order of the pixels; the first as drawn.

    >>> stream = permuted_digits(seed=1)
    >>> len(stream), stream.input_shape, stream[1].class_names[:3]
    (5, (1, 8, 8), ('0', '1', '2'))
    """
    options = PermutedDigitsOptions(**values)
    train, test = digits()
    tasks = []
    for number in range(options.tasks):
        chance = seeds.generator(seed, "permutation", number)
        order = torch.arange(64) if number == 0 else torch.randperm(64, generator=chance)
        learn, valid = options.divide(train, seeds.generator(seed, "valid"))
        names = tuple(str(digit) for digit in range(10))
        tasks.append(Task(number, f"order {number + 1}", names, learn, valid, Permute(order)))
    return TaskStream("permuted-digits", tasks, [test] * options.tasks)


def split_digits(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Two digits in each of five tasks, in their natural order.

    >>> [task.name for task in split_digits()]
    ['0 1', '2 3', '4 5', '6 7', '8 9']
    """
    options = SplitDigitsOptions(**values)
    if 10 % options.tasks:
        raise UserError(
            f"tasks must divide the 10 digits evenly: 1, 2, 5 or 10 (got {options.tasks})"
        )
    train, test = digits()
    size = 10 // options.tasks
    tasks, tests = [], []
    for number in range(options.tasks):
        wanted = range(number * size, (number + 1) * size)
        part = _only(train, wanted)
        learn, valid = options.divide(part, seeds.generator(seed, "valid", number))
        names = tuple(str(digit) for digit in wanted)
        tasks.append(Task(number, " ".join(names), names, learn, valid))
        tests.append(_only(test, wanted))
    return TaskStream("split-digits", tasks, tests)


def digits() -> tuple[Split, Split]:
    """Return the digits as uint8 images (n, 1, 8, 8): training and test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    # Pixels count 0 to 16 dark dots.
    images = torch.tensor(data.images).mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    labels = torch.tensor(data.target, dtype=torch.int64)
    order = torch.randperm(len(labels), generator=seeds.generator(0, "digits", "test"))
    held = round(len(labels) * TEST_SHARE)
    test, train = order[:held], order[held:]
    return Split(images[train], labels[train]), Split(images[test], labels[test])


def _only(split: Split, wanted: range) -> Split:
    """Keep some classes, counted from 0."""
    chosen = (split.labels >= wanted.start) & (split.labels < wanted.stop)
    return Split(split.images[chosen], split.labels[chosen] - wanted.start)
