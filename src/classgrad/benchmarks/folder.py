"""Images of your own: one folder per task, in it one folder per class.

They may be whatever `classgrad.data.decoding` reads.
"""

from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from classgrad import seeds
from classgrad.benchmarks.options import BenchmarkSettings
from classgrad.benchmarks.transforms import Normalise
from classgrad.data.pictures import Pictures, read_class_folders, unreadable
from classgrad.errors import UserError, shown
from classgrad.tasks import Split, Task, TaskStream


class FolderOptions(BenchmarkSettings):
    """What can be set."""

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
    for number, place in enumerate(_folders(path)):
        found = _read(place, options.image_size)
        images, labels = found.images, found.labels
        kept, held = _divide(labels, options.test_fraction, seeds.generator(seed, "test", number))
        names = tuple(f"{place.name}/{name}" for name in found.class_names)
        learn, valid = options.divide(
            Split(images[kept], labels[kept]), seeds.generator(seed, "valid", number)
        )
        # Halfway between black and white, and a usual spread of photographs.
        view = Normalise([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
        tasks.append(Task(number, place.name, names, learn, valid, view))
        tests.append(options.reduce(Split(images[held], labels[held])))
    return TaskStream(f"folder:{path}", tasks, tests, options=options.model_dump())


def _folders(path: Path) -> list[Path]:
    found = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise UserError(f"'{path}' holds no folder: there must be one for each task")
    return found


def _read(place: Path, size: int) -> Pictures:
    """Read the classes of a task: all files have to be images, and two of each class are needed."""
    # Bad files are skipped to get hold of them: there is no switch to leave them out of a task.
    found = read_class_folders(place, size, skip_bad=True)
    if found.skipped:
        raise unreadable(*found.skipped[0])
    for name, count in zip(found.class_names, torch.bincount(found.labels).tolist(), strict=True):
        if count < 2:
            raise UserError(
                f"class folder '{shown(place / name)}' holds {count} image(s): at least 2 are "
                "needed, one to learn from and one to test with"
            )
    return found


def _divide(labels: Tensor, share: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return the indices to learn from and to test with: at least one of each class in both."""
    kept, held = [], []
    for label in labels.unique():
        own = (labels == label).nonzero().flatten()
        own = own[torch.randperm(len(own), generator=generator)]
        count = min(max(1, round(len(own) * share)), len(own) - 1)
        held.append(own[:count])
        kept.append(own[count:])
    return torch.cat(kept), torch.cat(held)
