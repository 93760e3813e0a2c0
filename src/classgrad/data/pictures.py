"""Pictures of one's own: single files, folders of classes, or what a program holds already.

`decoding` says which files can be read, and how they become squares of colour. In every folder,
names that begin with a dot are passed over, and files are taken in the order of their names.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from classgrad.data.decoding import (
    FORMATS,
    Progress,
    Skipped,
    Unreadable,
    from_file,
    from_files,
    from_pillow,
)
from classgrad.errors import UserError, shown

LISTED = 5  # of the files that cannot be read, in a message


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of several classes, by class and then by name.

    `images` is uint8 (n, 3, size, size); `labels` is int64 (n,) and indexes `class_names`, the
    names of the folders in their order; `skipped` are the files left out, each with the reason.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    skipped: list[Skipped]


def read_picture(path: str | Path, size: int) -> Tensor:
    """Return the picture in a file: (3, size, size) uint8."""
    file = _path(path)
    try:
        return from_file(file, size)
    except Unreadable as error:
        raise unreadable(file, str(error)) from None


def read_class_folders(
    path: str | Path, size: int, skip_bad: bool = False, progress: Progress | None = None
) -> Pictures:
    """Read PATH/class/picture; every file in a class folder has to be a picture.

    With `skip_bad`, files that cannot be read are left out and listed. Folders inside a class
    folder are refused: they may be classes themselves, given one folder too high. `progress` is
    called with the number of files done and of all files, in the thread that calls.
    """
    folders = _class_folders(_path(path))
    own = [picture_files(folder) for folder in folders]
    images, kept, bad = from_files([file for files in own for file in files], size, progress)
    if bad and not skip_bad:
        raise _skippable(bad)
    lengths = torch.tensor([len(files) for files in own])
    labels = torch.arange(len(folders)).repeat_interleave(lengths)[torch.tensor(kept).long()]
    for label, folder in enumerate(folders):
        if not (labels == label).any():
            lost = [(file, reason) for file, reason in bad if file.parent == folder]
            raise UserError(f"no picture is left in class folder '{shown(folder)}': {_told(lost)}")
    return Pictures(images, labels, tuple(folder.name for folder in folders), bad)


def as_pictures(value: object, size: int) -> Tensor:
    """Return pictures as (n, 3, size, size) from whatever holds them.

    That is the path of a file or of a folder, a picture of Pillow, a list of paths or of such
    pictures, or a tensor (3, H, W) or (n, 3, H, W) of uint8 or of floats from 0 to 1. The result is
    uint8, but for floats, which stay floats.
    """
    if isinstance(value, Tensor):
        return _from_tensor(value, size)
    if isinstance(value, str | Path) and os.path.isdir(_path(value)):
        value = picture_files(_path(value))
    given = list(value) if isinstance(value, list | tuple) else [value]
    if not given:
        raise UserError("no picture is given: the list is empty")
    files = [_path(one) for one in given if isinstance(one, str | Path)]
    if len(files) == len(given):
        return _from_files(files, size)
    held = [one for one in given if isinstance(one, Image.Image)]
    if len(held) == len(given):
        return torch.stack([_from_pillow(one, size, n) for n, one in enumerate(held, start=1)])
    kinds = ", ".join(sorted({type(one).__name__ for one in given}))
    raise UserError(
        f"{kinds} cannot be taken for pictures: give the path of a file or a folder, a picture of "
        "Pillow, a list of one of them, or a tensor (n, 3, H, W)"
    )


def read_pictures(
    paths: Sequence[str | Path],
    size: int,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, list[Path], list[Skipped]]:
    """Read files, and all files of folders.

    Returned are the pictures, their files, and what was left out with `skip_bad`, each with the
    reason. `progress` is as in `read_class_folders`.
    """
    files: list[Path] = []
    for path in map(_path, paths):
        files += picture_files(path) if os.path.isdir(path) else [path]
    images, kept, bad = from_files(files, size, progress)
    if bad and not skip_bad:
        raise _skippable(bad)
    if not kept:
        raise UserError(f"no picture is left: {_told(bad)}")
    return images, [files[row] for row in kept], bad


def picture_files(folder: Path) -> list[Path]:
    """Return the files of a folder that holds pictures and nothing else, by name."""
    folders, files = _inside(folder)
    if folders:
        raise UserError(
            f"'{shown(folders[0])}' is a folder among pictures: move what it holds to "
            f"'{shown(folder)}', or move it away"
        )
    if not files:
        raise UserError(f"'{shown(folder)}' holds no picture: put some in it, or leave it out")
    return files


def unreadable(path: Path, reason: str) -> UserError:
    """Return the error for one file."""
    return UserError(f"'{shown(path)}' is not an image that can be read: {reason}")


def _path(given: str | Path) -> Path:
    # Unlike Path.expanduser, this leaves a name like "~1.png" as it is.
    return Path(os.path.expanduser(given))


def _class_folders(path: Path) -> list[Path]:
    folders, files = _inside(path)
    kinds = Image.registered_extensions()
    loose = [file for file in files if kinds.get(file.suffix.lower()) in FORMATS]
    if loose:
        raise UserError(
            f"'{shown(loose[0])}' is in no class folder: put each picture into a folder of "
            f"'{shown(path)}' that has the name of its class"
        )
    if not folders:
        raise UserError(f"'{shown(path)}' holds no folder: there must be one for each class")
    return folders


def _inside(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the folders and the files in a folder by name, without hidden ones."""
    try:
        found = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"'{shown(folder)}' is not a folder that can be read: {reason}") from None
    folders = [path for path in found if os.path.isdir(path)]
    return folders, [path for path in found if not os.path.isdir(path)]


def _skippable(bad: Sequence[Skipped]) -> UserError:
    advice = "remove what cannot be read, or leave it out with skip_bad=True"
    return UserError(f"{_told(bad)}; {advice}", hint="skip_bad")


def _told(bad: Sequence[Skipped]) -> str:
    listed = ", ".join(f"'{shown(file)}' ({reason})" for file, reason in bad[:LISTED])
    more = f" and {len(bad) - LISTED:,} more" if len(bad) > LISTED else ""
    return f"{len(bad):,} file(s) cannot be read as pictures: {listed}{more}"


def _from_files(files: Sequence[Path], size: int) -> Tensor:
    images, _, bad = from_files(files, size)
    if bad:
        raise UserError(f"{_told(bad)}; leave out what cannot be read")
    return images


def _from_pillow(image: Image.Image, size: int, number: int) -> Tensor:
    try:
        return from_pillow(image, size)
    except Unreadable as error:
        raise UserError(f"picture {number} of those given cannot be read: {error}") from None


def _from_tensor(images: Tensor, size: int) -> Tensor:
    bytes_given = images.dtype == torch.uint8
    batch = images[None] if images.dim() == 3 else images
    typed = bytes_given or images.is_floating_point()
    if not typed or batch.dim() != 4 or batch.shape[1] != 3 or not batch.numel():
        raise UserError(
            f"a tensor of {images.dtype} and shape {tuple(images.shape)} does not hold pictures: "
            "give uint8, or floats from 0 to 1, of shape (3, H, W) or (n, 3, H, W)"
        )
    if not bytes_given and not ((batch >= 0) & (batch <= 1)).all():
        low, high = batch.min().item(), batch.max().item()
        raise UserError(f"pictures with values from {low:g} to {high:g}: floats go from 0 to 1")
    if batch.shape[2:] != (size, size):
        batch = functional.interpolate(
            batch.float(), (size, size), mode="bilinear", antialias=True, align_corners=False
        )
    return batch.round().to(torch.uint8) if bytes_given else batch.float()
