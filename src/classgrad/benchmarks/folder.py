"""Images of your own: one folder per task, in it one folder per class.

They may be BMP, GIF, JPEG, PNG, PPM, TIFF or WebP, of up to 25 million pixels each.
"""

import warnings
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from classgrad import seeds
from classgrad.benchmarks.options import BenchmarkSettings
from classgrad.benchmarks.transforms import Normalise
from classgrad.errors import UserError, shown
from classgrad.tasks import Split, Task, TaskStream

# Of all that Pillow reads: EPS is a program that another program would run.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A camera of 24 megapixels is within it; a file of a few bytes can announce any size.
MOST_PIXELS = 25_000_000


class FolderOptions(BenchmarkSettings):
    """What can be set."""

    image_size: int = Field(32, ge=2, le=1024, description="height and width images are scaled to")
    test_fraction: float = Field(
        0.2, gt=0, lt=1, description="share of each class kept for testing, drawn with the seed"
    )
    valid_fraction: float = Field(
        0.1, ge=0, lt=1, description="share of the training data kept for validation"
    )


def folder(path: Path, seed: int = 1, **values: Any) -> TaskStream:
    """Return the stream of PATH/task/class/image, tasks and classes by name."""
    options = FolderOptions(**values)
    if not path.is_dir():
        raise UserError(f"'{path}' is not a folder: give one that holds a folder for each task")
    tasks, tests = [], []
    for number, place in enumerate(_folders(path, "task")):
        classes = _folders(place, "class")
        parts = [_images(c, options.image_size) for c in classes]
        images = torch.cat(parts)
        labels = torch.arange(len(parts)).repeat_interleave(torch.tensor([len(p) for p in parts]))
        kept, held = _divide(labels, options.test_fraction, seeds.generator(seed, "test", number))
        names = tuple(f"{place.name}/{c.name}" for c in classes)
        learn, valid = options.divide(
            Split(images[kept], labels[kept]), seeds.generator(seed, "valid", number)
        )
        # Halfway between black and white, and a usual spread of photographs.
        view = Normalise([0.5, 0.5, 0.5], [0.25, 0.25, 0.25])
        tasks.append(Task(number, place.name, names, learn, valid, view))
        tests.append(options.reduce(Split(images[held], labels[held])))
    return TaskStream(f"folder:{path}", tasks, tests, options=options.model_dump())


def _folders(path: Path, kind: str) -> list[Path]:
    found = sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not found:
        raise UserError(f"'{path}' holds no folder: there must be one for each {kind}")
    return found


def _images(path: Path, size: int) -> Tensor:
    """Read every image of a folder, in the order of names: (n, 3, size, size)."""
    files = sorted(p for p in path.iterdir() if p.is_file() and not p.name.startswith("."))
    if len(files) < 2:
        raise UserError(
            f"class folder '{path}' holds {len(files)} image(s): at least 2 are needed, one to "
            "learn from and one to test with"
        )
    return torch.stack([_image(file, size) for file in files])


def _image(file: Path, size: int) -> Tensor:
    """Read an image as colour, upright, scaled to a square: (3, size, size)."""
    import numpy as np
    from PIL import Image, ImageOps

    try:
        # Warnings are of what is odd and can be read all the same.
        with (
            warnings.catch_warnings(action="ignore"),
            Image.open(file, formats=FORMATS) as image,
        ):
            width, height = image.size
            if width * height > MOST_PIXELS:
                raise ValueError(f"{width} x {height} pixels are too many, scale it down first")
            upright = ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"'{file}' is not an image that can be read: {shown(error)}") from None
    scaled = upright.resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(scaled)).permute(2, 0, 1)


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
