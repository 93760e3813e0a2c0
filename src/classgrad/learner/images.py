"""Images as inputs of a learner: pictures in folders and files, or tensors of any shape."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classgrad.data.lookalikes import Scenes, find_scenes
from classgrad.data.pictures import (
    as_pictures,
    none_readable,
    picture_files,
    read_class_folders,
    read_pictures,
    try_pictures,
)
from classgrad.errors import UserError, shown
from classgrad.learner.inputs import InputKind, Labelled, ReadProgress, unusable
from classgrad.tasks import Split


class ImageInputs(InputKind):
    """Pictures, which become (3, size, size); tensors stay as they are."""

    several, source = "images", "file"
    usual_size = 32

    @staticmethod
    def size_text(size: int) -> str:
        """Return width and height."""
        return f"images {size} x {size}"

    def read_classes(
        self, path: Path, skip_bad: bool = False, progress: ReadProgress | None = None
    ) -> Labelled:
        """Read a folder with one folder of pictures per class."""
        found = read_class_folders(path, self.size, skip_bad, progress)
        skipped, root = {file for file, _ in found.skipped}, Path(os.path.expanduser(path))
        files = [file for name in found.class_names for file in picture_files(root / name)]
        return Labelled(
            found.images,
            found.labels,
            found.class_names,
            [file for file in files if file not in skipped],
            [(f"'{shown(file)}'", reason) for file, reason in found.skipped],
        )

    def stack(self, given: Any) -> Tensor:
        """Return a tensor, or what becomes one, as such; or tensors of one shape as one."""
        try:
            if not isinstance(given, list):
                return torch.as_tensor(given)
            images = [torch.as_tensor(image) for image in given]
        except (TypeError, ValueError, RuntimeError):
            raise unusable(self) from None
        if len({image.shape for image in images}) > 1:
            shapes = sorted({tuple(image.shape) for image in images})
            raise UserError(f"images have shapes {shapes[0]} and {shapes[-1]}: give all the same")
        return torch.stack(images) if images else torch.zeros(0)

    def read(self, given: Any) -> Tensor:
        """Return pictures as `as_pictures` reads them, or a tensor as it is."""
        return given if isinstance(given, Tensor) else as_pictures(given, self.size)

    def attempt(
        self, given: Sequence[Any], progress: ReadProgress | None = None
    ) -> tuple[Tensor, list[Any], dict[int, str]]:
        """Read pictures, and all files below folders."""
        return try_pictures(given, self.size, progress)

    def read_all(self, given: Sequence[Any], skip_bad: bool = False) -> tuple[Tensor, list[Any]]:
        """Return the pictures that can be read, and their files; refuse others, or skip them."""
        images, sources, _ = read_pictures(given, self.size, skip_bad)
        return images, list(sources)

    def names(self, sources: Sequence[Any]) -> list[str]:
        """Return the files."""
        return [f"'{shown(source)}'" for source in sources]

    def none_readable(self, sources: Sequence[Any], bad: Mapping[int, str]) -> UserError:
        """Return the error for pictures of which none can be read."""
        return none_readable(sources, bad)

    def scenes(self, parts: Sequence[Split], names: Sequence[str]) -> Scenes:
        """Return the scenes of all pictures: those that look alike are of one."""
        return find_scenes(*parts)
