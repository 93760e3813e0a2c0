"""Streams of tasks: labelled images for training and validation, and test sets kept apart."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, overload

import torch
from torch import Tensor

from classgrad.errors import UserError

Transform = Callable[[Tensor], Tensor]
# Alters images at random. Given (start, count) they are a shard of that many images, from `start`
# on, and become the same as if all were given.
Augment = Callable[[Tensor, torch.Generator, tuple[int, int] | None], Tensor]


def unchanged(images: Tensor) -> Tensor:
    """Return images unchanged."""
    return images


@dataclass(frozen=True)
class Split:
    """Images (n, ...), uint8 or float in [0, 1], and labels (n,) that count from 0."""

    images: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if len(self.images) != len(self.labels):
            raise UserError(
                f"{len(self.images)} images but {len(self.labels)} labels: give one for each"
            )
        if self.images.dtype != torch.uint8 and not self.images.is_floating_point():
            raise UserError(
                f"images cannot be of type {self.images.dtype}: give uint8, or float in [0, 1]"
            )
        if self.labels.dtype != torch.int64 or self.labels.dim() != 1:
            raise UserError(
                f"labels are {self.labels.dtype} of shape {tuple(self.labels.shape)}: give int64 "
                "of shape (n,)"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Split":
        """Return the same on a device."""
        return Split(self.images.to(device), self.labels.to(device))

    def unit_images(self, index: Tensor | slice, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return some of the images as floats in [0, 1]."""
        chosen = self.images[index]
        if chosen.dtype == torch.uint8:
            return chosen.to(dtype).div_(255)
        return chosen.to(dtype)


@dataclass(frozen=True)
class Task:
    """Training and validation data of a task: all that a method may see, so no test data.

    `transform` maps images in [0, 1] to inputs of the network, after any augmentation. `augment` is
    what training does to images in every step; whatever else is computed of them is of images as
    they are.
    """

    id: int
    name: str
    class_names: tuple[str, ...]
    train: Split
    valid: Split
    transform: Transform = unchanged
    augment: Augment | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        for part in (self.train, self.valid):
            check_labels(part.labels, self.class_names, f"task '{self.name}'")
        counts = torch.bincount(self.train.labels, minlength=len(self.class_names))
        if not counts.all():
            missing = self.class_names[int((counts == 0).nonzero()[0])]
            raise UserError(
                f"class '{missing}' of task '{self.name}' has no training sample: add some or "
                "leave the class out"
            )

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


class TaskStream(Sequence[Task]):
    """Tasks in the order they arrive; `stream.test(j)` is for evaluation only.

    `notes` are remarks on the data to be shown with every result; `options` are the settings the
    stream was made with. Both go into the record of a run.
    """

    def __init__(
        self,
        name: str,
        tasks: Sequence[Task],
        tests: Sequence[Split],
        notes: Sequence[str] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not tasks:
            raise UserError(f"stream '{name}' has no task")
        if len(tasks) != len(tests):
            raise UserError(f"stream '{name}' has {len(tasks)} tasks but {len(tests)} test sets")
        for position, (task, test) in enumerate(zip(tasks, tests, strict=True)):
            if task.id != position:
                raise UserError(f"task '{task.name}' at position {position} has id {task.id}")
            if not len(test):
                raise UserError(f"task '{task.name}' of stream '{name}' has no test sample")
            check_labels(test.labels, task.class_names, f"the test set of '{task.name}'")
        self.name = name
        self._tasks = tuple(tasks)
        self._tests = tuple(tests)
        self.notes = tuple(notes)
        self.options = dict(options or {})
        self._refuse_other_shapes()

    def __len__(self) -> int:
        return len(self._tasks)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Task, ...]: ...

    def __getitem__(self, index: int | slice) -> Task | tuple[Task, ...]:
        return self._tasks[index]

    def test(self, task: int) -> Split:
        """Return the test set of a task."""
        return self._tests[task]

    def to(self, device: torch.device | str) -> "TaskStream":
        """Return the same on a device."""
        moved = copy(self)
        moved._tasks = tuple(
            replace(task, train=task.train.to(device), valid=task.valid.to(device))
            for task in self._tasks
        )
        moved._tests = tuple(test.to(device) for test in self._tests)
        return moved

    def with_transforms(self, change: Callable[[Transform], Transform]) -> "TaskStream":
        """Return the same with the transform of each task changed."""
        changed = copy(self)
        changed._tasks = tuple(
            replace(task, transform=change(task.transform)) for task in self._tasks
        )
        return changed

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input of the network."""
        return self._shape(self._tasks[0], self._tasks[0].train)

    def _shape(self, task: Task, split: Split) -> tuple[int, ...]:
        return tuple(task.transform(split.unit_images(slice(0, 1))).shape[1:])

    def _refuse_other_shapes(self) -> None:
        for task, test in zip(self._tasks, self._tests, strict=True):
            for kind, split in (
                ("training", task.train),
                ("validation", task.valid),
                ("test", test),
            ):
                if len(split) and self._shape(task, split) != self.input_shape:
                    raise UserError(
                        f"{kind} images of task '{task.name}' have shape "
                        f"{self._shape(task, split)}, those of the first task {self.input_shape}: "
                        "give all the same"
                    )

    def fingerprint(self) -> str:
        """Return a digest of all images and labels, by which the same data are recognised."""
        pairs = zip(self._tasks, self._tests, strict=True)
        return digest(split for task, test in pairs for split in (task.train, task.valid, test))

    @property
    def class_names(self) -> list[str]:
        """Every class of the stream once; a name that returns in a later task is the same class."""
        return list(dict.fromkeys(name for task in self._tasks for name in task.class_names))


def digest(splits: Iterable[Split]) -> str:
    """Return a digest of images and labels."""
    content = hashlib.blake2b(digest_size=16)
    for split in splits:
        for tensor in (split.images, split.labels):
            content.update(repr((tensor.dtype, tuple(tensor.shape))).encode())
            content.update(tensor.contiguous().cpu().numpy().reshape(-1).view("uint8").data)
    return content.hexdigest()


def check_labels(labels: Tensor, class_names: Sequence[str], where: str) -> None:
    """Refuse labels that are not the number of a class."""
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < len(class_names)):
        wrong = int(labels.min()) if int(labels.min()) < 0 else int(labels.max())
        raise UserError(
            f"label {wrong} of {where} is outside 0..{len(class_names) - 1}: there are "
            f"{len(class_names)} classes"
        )


def batches(count: int, size: int, generator: torch.Generator | None = None) -> Iterator[Tensor]:
    """Yield the indices of batches: in random order with a generator, else in order.

    A last batch of at most an eighth of the batch size joins the one before it. Alone it would
    count as much as a full batch, with poor batch statistics, or none for a single sample:
    AlexNet-5 on 450 photos in batches of 32, the last of 2, learnt next to nothing.

    >>> [len(b) for b in batches(66, 32)], [len(b) for b in batches(37, 32)]
    ([32, 34], [32, 5])
    """
    order = torch.arange(count) if generator is None else torch.randperm(count, generator=generator)
    for number in range(batch_count(count, size)):
        last = number == batch_count(count, size) - 1
        yield order[number * size :] if last else order[number * size : (number + 1) * size]


def batch_count(count: int, size: int) -> int:
    """Return how many batches `batches` yields."""
    full, rest = divmod(count, size)
    joined = full > 0 and size > 1 and rest <= max(1, size // 8)
    return full if joined else full + (rest > 0)
