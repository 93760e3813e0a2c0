"""MNIST as streams of tasks: with permuted pixels, and split by digits."""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from classgrad.benchmarks.base import (
    BenchmarkSettings,
    chunks,
    load_both,
    permute_pixels,
    split_classes,
)
from classgrad.tasks import Split, TaskStream


class PermutedMnistOptions(BenchmarkSettings):
    """Options of the benchmark."""

    tasks: int = Field(default=10, ge=1, le=1000, description="number of tasks")
    valid_fraction: float = Field(
        default=0.1, ge=0, lt=1, description="share of the training data kept for validation"
    )


class SplitMnistOptions(BenchmarkSettings):
    """Options of the benchmark."""

    tasks: Literal[1, 2, 5, 10] = Field(default=5, description="number of tasks")


def permuted_mnist(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """All ten digits in every task, each with its own order of the pixels; natural in the first."""
    options = PermutedMnistOptions(**values)
    train, test = load_both("mnist", root, options.held_out)
    return permute_pixels(
        "permuted-mnist",
        Split(train.images, train.labels),
        Split(test.images, test.labels),
        train.class_names,
        options.tasks,
        options,
        seed,
        notes=[part.note for part in (train, test) if part.note],
    )


def split_mnist(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Two digits in each of five tasks, in their natural order."""
    options = SplitMnistOptions(**values)
    train, test = load_both("mnist", root, options.held_out)
    return split_classes(
        "split-mnist",
        Split(train.images, train.labels),
        Split(test.images, test.labels),
        chunks(torch.arange(10), options.tasks),
        train.class_names,
        options,
        seed,
        notes=[part.note for part in (train, test) if part.note],
    )
