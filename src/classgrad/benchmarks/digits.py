"""Streams of the handwritten digits that come with the package: 1,797 images of 8 x 8 pixels.

`digits.npz` is the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak;
UCI Machine Learning Repository, 1998; CC BY 4.0), as scikit-learn has it. A pixel counts dark dots,
from 0 to 16.
"""

from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field

from classgrad import seeds
from classgrad.benchmarks.base import (
    BenchmarkSettings,
    chunks,
    hold_out,
    permute_pixels,
    split_classes,
)
from classgrad.tasks import Split, TaskStream

# Test images are the same for all seeds, so that runs are comparable.
TEST_SHARE = 0.2


class PermutedDigitsOptions(BenchmarkSettings):
    """Options of the benchmark."""

    tasks: int = Field(default=5, ge=1, le=1000, description="number of tasks")


class SplitDigitsOptions(BenchmarkSettings):
    """Options of the benchmark."""

    tasks: Literal[1, 2, 5, 10] = Field(default=5, description="number of tasks")


def permuted_digits(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """All ten digits in every task, each with its own order of the pixels; natural in the first.

    >>> stream = permuted_digits(seed=1)
    >>> len(stream), stream.input_shape, stream[1].class_names[:3]
    (5, (1, 8, 8), ('0', '1', '2'))
    """
    options = PermutedDigitsOptions(**values)
    train, test = digits(options.held_out)
    names = [str(digit) for digit in range(10)]
    return permute_pixels("permuted-digits", train, test, names, options.tasks, options, seed)


def split_digits(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Two digits in each of five tasks, in their natural order.

    >>> [task.name for task in split_digits()]
    ['0 1', '2 3', '4 5', '6 7', '8 9']
    """
    options = SplitDigitsOptions(**values)
    train, test = digits(options.held_out)
    groups = chunks(torch.arange(10), options.tasks)
    names = [str(digit) for digit in range(10)]
    return split_classes("split-digits", train, test, groups, names, options, seed)


def digits(held_out: float | None = None) -> tuple[Split, Split]:
    """Return the digits as uint8 images (n, 1, 8, 8): training and test.

    With `held_out`, that share of the training images takes the place of the test images.
    """
    with np.load(Path(__file__).with_name("digits.npz"), allow_pickle=False) as file:
        dots, labels = torch.from_numpy(file["images"]), torch.from_numpy(file["labels"]).long()
    images = dots.double().mul(255 / 16).round().to(torch.uint8).unsqueeze(1)
    order = torch.randperm(len(labels), generator=seeds.generator(0, "digits", "test"))
    count = round(len(labels) * TEST_SHARE)
    test, train = order[:count], order[count:]
    if held_out is not None:
        rest, held = hold_out(labels[train], held_out)
        test, train = train[held], train[rest]
    return Split(images[train], labels[train]), Split(images[test], labels[test])
