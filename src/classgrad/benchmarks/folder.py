"""A user's own images: one folder per task, with one folder per class in it.

`classgrad.data.pictures` says which files can be read.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from classgrad import seeds
from classgrad.benchmarks.base import BenchmarkSettings, Normalise, hold_out
from classgrad.data.pictures import Pictures, read_class_folders, unreadable
from classgrad.errors import UserError, shown
from classgrad.tasks import Split, Task, TaskStream


class FolderOptions(BenchmarkSettings):
    """Options of the benchmark."""

    image_size: int = Field(
        default=32, ge=2, le=1024, description="height and width images are scaled to"
    )
    test_fraction: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="share of each class kept for testing, drawn with the seed",
    )
    valid_fraction: float = Field(
        default=0.1, ge=0, lt=1, description="share of the training data kept for validation"
    )


def folder(path: Path, seed: int = 1, **values: Any) -> TaskStream:
    """Return the stream of PATH/task/class/image, tasks and classes by name."""
    options = FolderOptions(**values)
    if not path.is_dir():
        raise UserError(f"'{path}' is not a folder: give one that holds a folder for each task")
    tasks, tests = [], []
    for number, task_folder in enumerate(_folders(path)):
        pictures = _read(task_folder, options.image_size)
        images, labels = pictures.images, pictures.labels
        # The test images of seed 1 are never used to choose settings.
        test_seed = seed if options.held_out is None else 1
        rng = seeds.generator(test_seed, "test", number)
        train, test = _divide(labels, options.test_fraction, rng)
        if options.held_out is not None:
            rest, held = hold_out(labels[train], options.held_out, number)
            train, test = train[rest], train[held]
        names = tuple(f"{task_folder.name}/{name}" for name in pictures.class_names)
        train_split, valid = options.divide(
            Split(images[train], labels[train]), seeds.generator(seed, "valid", number)
        )
        # Halfway between black and white, and a usual standard deviation of photographs.
        transform = Normalise([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
        tasks.append(Task(number, task_folder.name, names, train_split, valid, transform))
        tests.append(options.reduce(Split(images[test], labels[test])))
    return TaskStream(f"folder:{path}", tasks, tests, options.remarks, options.model_dump())


def _folders(path: Path) -> list[Path]:
    folders = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not folders:
        raise UserError(f"'{path}' holds no folder: there must be one for each task")
    return folders


def _read(folder: Path, size: int) -> Pictures:
    """Read the classes of a task; refuse files that are not images, and classes of one image."""
    # skip_bad only to get the names of bad files: a benchmark has no option to leave them out.
    pictures = read_class_folders(folder, size, skip_bad=True)
    if pictures.skipped:
        raise unreadable(*pictures.skipped[0])
    counts = torch.bincount(pictures.labels).tolist()
    for name, count in zip(pictures.class_names, counts, strict=True):
        if count < 2:
            raise UserError(
                f"class folder '{shown(folder / name)}' holds {count} image(s): at least 2 are "
                "needed, one to learn from and one to test with"
            )
    return pictures


def _divide(labels: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return training and test indices, with at least one sample of each class in both."""
    train, test = [], []
    for label in labels.unique():
        indices = (labels == label).nonzero().flatten()
        indices = indices[torch.randperm(len(indices), generator=generator)]
        count = min(max(1, round(len(indices) * share)), len(indices) - 1)
        test.append(indices[:count])
        train.append(indices[count:])
    return torch.cat(train), torch.cat(test)
