"""What benchmarks share: options, transforms, and streams from one dataset.

A stream splits the classes of a dataset into tasks, or permutes its pixels.
"""

from collections.abc import Sequence
from dataclasses import InitVar, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from classgrad import data, seeds
from classgrad.data import Images
from classgrad.errors import UserError
from classgrad.settings import Settings
from classgrad.tasks import Split, Task, TaskStream, Transform, unchanged

HELD_OUT_NOTE = "judged on held-out training images"


class BenchmarkSettings(Settings):
    """Options that all benchmarks share; each benchmark adds its own."""

    kind = "benchmark option"
    aliases: ClassVar[dict[str, str]] = {"valid": "valid_fraction"}

    valid_fraction: float = Field(
        default=0.05, ge=0, lt=1, description="share of the training data kept for validation"
    )
    train_per_class: int | None = Field(
        default=None,
        ge=1,
        description="at most this many training images per class, for quick runs",
    )

    test_per_class: int | None = Field(
        default=None,
        ge=1,
        description="at most this many test images per class, for quick runs",
    )
    held_out: float | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="judge on this share of each class's training images instead of the test "
        "images, to choose settings",
    )

    if TYPE_CHECKING:  # aliases, see Settings
        valid: InitVar[float] = valid_fraction

    @property
    def remarks(self) -> tuple[str, ...]:
        """What the notes of every stream with these options say."""
        return () if self.held_out is None else (HELD_OUT_NOTE,)

    def reduce(self, test: Split) -> Split:
        """Return the test data, with at most `test_per_class` images per class."""
        if self.test_per_class is None:
            return test
        kept = first_of_each(test.labels, self.test_per_class)
        return Split(test.images[kept], test.labels[kept])

    def divide(self, data: Split, generator: torch.Generator) -> tuple[Split, Split]:
        """Return training and validation data, in an order drawn from `generator`.

        No class is left without a training sample.
        """
        order = torch.randperm(len(data), generator=generator)
        count = round(len(data) * self.valid_fraction)
        valid, train = order[:count], order[count:]
        missing = ~torch.isin(data.labels[valid], data.labels[train])
        if missing.any():
            moved = missing.nonzero().flatten()
            moved = moved[first_of_each(data.labels[valid][moved], 1)]
            train = torch.cat([valid[moved], train])
            keep = torch.ones(len(valid), dtype=torch.bool)
            keep[moved] = False
            valid = valid[keep]
        if self.train_per_class is not None:
            train = train[first_of_each(data.labels[train], self.train_per_class)]
        return (
            Split(data.images[train], data.labels[train]),
            Split(data.images[valid], data.labels[valid]),
        )


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """Return the indices of the first `count` samples of each class, in order.

    >>> first_of_each(torch.tensor([1, 0, 1, 1, 0]), 2).tolist()
    [0, 1, 2, 4]
    """
    kept = [(labels == label).nonzero().flatten()[:count] for label in labels.unique()]
    return torch.cat(kept).sort().values


@dataclass(frozen=True)
class Permute:
    """Permute the pixels of every image."""

    order: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Permute (n, ...), keeping the shape."""
        return images.flatten(1)[:, self.order].reshape(images.shape)


class Normalise:
    """Pad with black, subtract mean and divide by deviation per channel, repeat grey channels.

    >>> Normalise([0.5], [0.25], padding=2, channels=3)(torch.ones(1, 1, 28, 28)).shape
    torch.Size([1, 3, 32, 32])
    """

    def __init__(
        self, mean: Sequence[float], deviation: Sequence[float], padding: int = 0, channels: int = 0
    ) -> None:
        self.mean = torch.tensor(mean, dtype=torch.float64).reshape(-1, 1, 1)
        self.deviation = torch.tensor(deviation, dtype=torch.float64).reshape(-1, 1, 1)
        self.padding, self.channels = padding, channels

    def __call__(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to the network's input."""
        if self.padding:
            images = functional.pad(images, [self.padding] * 4)
        images = (images - self.mean.to(images)) / self.deviation.to(images)
        return images.expand(-1, self.channels, -1, -1) if self.channels else images


def renormalise(transform: Transform, mean: float, deviation: float) -> Transform:
    """Return a transform with the normalisation that pretrained weights need, for all channels.

    It takes the place of the data's own; padding and grey channels stay as they are. The network
    itself could not do so, as every task of a stream may have been normalised in another way. A
    transform of a user's own, of which nothing is known, is not changed.
    """
    if isinstance(transform, Normalise):
        return Normalise([mean], [deviation], transform.padding, transform.channels)
    return Normalise([mean], [deviation]) if transform is unchanged else transform


def load_both(name: str, root: Path | None, held_out: float | None = None) -> tuple[Images, Images]:
    """Return the training and the test data of a dataset.

    With `held_out`, that share of the training data takes the place of the test data, which are not
    read.
    """
    folder = data.data_dir(root)
    train = data.load(name, folder, "train")
    if held_out is None:
        return train, data.load(name, folder, "test")
    rest, held = hold_out(train.labels, held_out)

    def part(index: Tensor, note: str) -> Images:
        coarse = None if train.coarse is None else train.coarse[index]
        images, labels = train.images[index], train.labels[index]
        return replace(train, images=images, labels=labels, coarse=coarse, note=note)

    return part(rest, train.note), part(held, "")


def hold_out(labels: Tensor, share: float, *purpose: str | int) -> tuple[Tensor, Tensor]:
    """Return the indices of training images and of those held out, a share of each class.

    No seed of a run has a part in the choice, so that all runs are judged on the same images. Both
    parts have at least one image of each class, and are in order.

    >>> rest, held = hold_out(torch.tensor([0] * 10 + [1] * 5), 0.2)
    >>> len(rest), (held < 10).sum().item(), (held >= 10).sum().item()
    (12, 2, 1)
    """
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique().tolist():
        indices = (labels == label).nonzero().flatten()
        if len(indices) < 2:
            raise UserError(
                f"held_out {share:g} needs at least 2 training images of each class, and class "
                f"{label} has 1: add images or leave held_out away"
            )
        rng = seeds.generator(0, "held out", *purpose, label)
        count = min(max(1, round(len(indices) * share)), len(indices) - 1)
        held[indices[torch.randperm(len(indices), generator=rng)[:count]]] = True
    return (~held).nonzero().flatten(), held.nonzero().flatten()


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
    return TaskStream(name, tasks, tests, [*options.remarks, *notes], options.model_dump())


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
    tests, notes = [options.reduce(test)] * count, [*options.remarks, *notes]
    return TaskStream(name, tasks, tests, notes, options.model_dump())


def chunks(order: Tensor, count: int) -> list[list[int]]:
    """Split an order of classes into equal groups."""
    return [group.tolist() for group in order.chunk(count)]
