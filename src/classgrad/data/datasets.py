"""A dataset as it was released, its files, and its decoded images.

Every failure to read a file is a `UserError` of one line.
"""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from classgrad.errors import UserError, shown, unknown


@dataclass(frozen=True, eq=False)
class Images:
    """The images of one split, in the order of the files.

    `images` is uint8 (N, C, H, W), or (N, bytes) of sentences; `labels` is int64 (N,) and indexes
    `class_names`; `coarse` does the same for `coarse_names` where the dataset has superclasses.
    `status` is "complete", "subset" or "other", and `note` says how this copy compares with the
    release.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    coarse: Tensor | None = None
    coarse_names: tuple[str, ...] = ()
    status: str = "other"
    note: str = ""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def complete(self) -> bool:
        """Tell whether count and content are those of the release."""
        return self.status == "complete"

    @property
    def per_class(self) -> tuple[int, ...]:
        """Count the images of each class."""
        return tuple(torch.bincount(self.labels, minlength=len(self.class_names)).tolist())


class Content(NamedTuple):
    """The sha256 of decoded images and of their labels."""

    images: str
    labels: str


def checksums(images: Images) -> Content:
    """Return the checksums by which a repacked copy is recognised as the same data."""
    labels = hashlib.sha256(images.labels.numpy().astype(np.uint8).tobytes())
    if images.coarse is not None:
        labels.update(images.coarse.numpy().astype(np.uint8).tobytes())
    pixels = hashlib.sha256(np.ascontiguousarray(images.images.numpy()).data)
    return Content(pixels.hexdigest(), labels.hexdigest())


SPLITS = ("train", "test")


@dataclass(frozen=True)
class Download:
    """A file at its official address; `unpack` says how it becomes `place` under the root.

    `checksum` is "algorithm:hex", or None if the publisher gives none: such a file is checked by
    its size and by the decoded content.
    """

    address: str
    size: int
    checksum: str | None
    place: str
    unpack: str = ""
    members: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the last part of the address."""
        return self.address.rsplit("/", 1)[1]


@dataclass(frozen=True)
class Split:
    """A split of a release: `images` and `labels` are the sha256 of the decoded arrays.

    Images are hashed as uint8 (N, C, H, W), labels as uint8 followed by the coarse labels if there
    are any. None means that a value is not known; `files` has checksums of the released files.
    """

    count: int
    per_class: tuple[int, ...] | None = None
    images: str | None = None
    labels: str | None = None
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Dataset:
    """A dataset as its publisher released it; `remark` is added to every note on its data."""

    name: str
    title: str
    format: str
    folder: str
    shape: tuple[int, ...]
    train: Split
    test: Split
    licence: str
    class_names: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    by_hand: str = ""
    remark: str = ""
    content: str = "images"  # or "sentences"
    # Bytes. The largest released file has 182 MB; a larger file is not one of these datasets.
    largest: int = 512 * 2**20

    def split(self, name: str) -> Split:
        """Return the split called `name`."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        return self.train if name == "train" else self.test

    @property
    def hint(self) -> str | None:
        """Return the hint for the command line that goes with the remedy."""
        return f"fetch:{self.name}" if self.downloads else None

    def remedy(self, again: bool = False) -> str:
        """Return how to get the files."""
        if self.downloads:
            return f"fetch it{' again' if again else ''} with classgrad.data.fetch"
        return f"get it from {self.by_hand} and unpack it in {self.folder}/"


Source = tuple[Path, bytes]


class Unreadable(ValueError):
    """A file cannot be decoded; the message is one line, without the name of the file."""


class Missing(UserError):
    """A file of the dataset does not exist."""


def missing(data: Dataset, path: Path) -> Missing:
    """Return the error for a file or folder that does not exist."""
    what = f"{data.title} is missing: no {shown(path)}"
    return Missing(f"{what}; {data.remedy()}", hint=data.hint)


def damaged(data: Dataset, path: Path, what: str) -> UserError:
    """Return the error for a file that cannot be used."""
    return unusable(data, path, f"{what}; remove it", again=True)


def unusable(data: Dataset, path: Path, what: str, *, again: bool = False) -> UserError:
    """Return the error for a file or folder that is not the dataset's."""
    return UserError(f"{shown(path)}: {what} and {data.remedy(again)}", hint=data.hint)


def read(data: Dataset, path: Path) -> bytes:
    """Return the content of a regular file, if it is no larger than a file of `data` can be."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise unusable(data, path, "not a file; move it away")
        if status.st_size > data.largest:
            raise damaged(data, path, f"{status.st_size:,} bytes, more than {data.largest:,}")
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except FileNotFoundError:
        raise missing(data, path) from None
    except OSError as error:
        raise UserError(f"{shown(path)}: cannot be read ({error.strerror})") from None


def file_matches(path: Path, checksum: str) -> bool:
    """Tell whether a file has a checksum written as "algorithm:hex"."""
    algorithm, _, wanted = checksum.partition(":")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == wanted


def released(paths: Iterable[Path], checksums: Mapping[str, str]) -> bool:
    """Tell whether every file with a known checksum exists, byte for byte as released."""
    by_name = {path.name: path for path in paths}
    return bool(checksums) and all(
        name in by_name and file_matches(by_name[name], checksum)
        for name, checksum in checksums.items()
    )
