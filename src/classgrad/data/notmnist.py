"""notMNIST as folders of PNG files: notMNIST/Train/A to J and notMNIST/Test/A to J."""

import hashlib
import io
import os
import struct
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from classgrad.data.datasets import (
    Dataset,
    Images,
    Source,
    Unreadable,
    damaged,
    missing,
    unusable,
)
from classgrad.errors import UserError

FOLDERS = {"train": "Train", "test": "Test"}
# The release has two empty files, which a user who unpacks it has, too.
EMPTY = {
    "A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",
    "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png",
}
# The release has no split. Ours: for each letter, test files are those whose names have the lowest
# sha256.
TEST_PER_LETTER = 187
# The signature, and the length and name of the first chunk: width and height follow.
HEADER = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR"


def find(root: Path, data: Dataset, split: str) -> list[Path]:
    """Return the files of a split by letter and by name."""
    folder = root / data.folder / FOLDERS[split]
    paths = []
    for letter in data.class_names:
        try:
            with os.scandir(folder / letter) as entries:
                names = sorted(entry.name for entry in entries if entry.name.endswith(".png"))
        except (FileNotFoundError, NotADirectoryError):
            raise missing(data, folder / letter) from None
        except OSError as error:
            raise UserError(f"{folder / letter}: cannot be read ({error.strerror})") from None
        paths += [
            folder / letter / name
            for name in names
            if f"{letter}/{name}" not in EMPTY and not name.startswith(".")
        ]
    most = data.split(split).count
    if len(paths) > most:
        what = f"{len(paths):,} files where {data.title} has {most:,}"
        raise unusable(data, folder, f"{what}; move it away")
    if not paths:
        raise missing(data, folder / data.class_names[0] / "*.png")
    return paths


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the images of PNG files, labelled by the folders they are in."""
    pixels = np.empty((len(sources), *data.shape), np.uint8)
    labels = np.empty(len(sources), np.int64)
    with warnings.catch_warnings(action="ignore"):  # about oddities of files that can be read
        for index, (path, content) in enumerate(sources):
            try:
                pixels[index, 0] = read_png(content, (data.shape[1], data.shape[2]))
            except Unreadable as error:
                raise damaged(data, path, f"not an image of {data.title} ({error})") from None
            labels[index] = data.class_names.index(path.parent.name)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), data.class_names)


def select_test_files(letter: str, names: Iterable[str]) -> set[str]:
    """Return the files of a letter that form its test set.

    >>> len(select_test_files("A", [f"{n}.png" for n in range(1872)]))
    187
    """
    return set(
        sorted(names, key=lambda name: hashlib.sha256(f"{letter}/{name}".encode()).digest())[
            :TEST_PER_LETTER
        ]
    )


def read_png(content: bytes, size: tuple[int, int]) -> np.ndarray:
    """Return the pixels of a grey PNG image of the given height and width.

    The size is checked before Pillow opens the file, and all its checksums before its pixels are
    unpacked.
    """
    from PIL import Image

    if not content.startswith(HEADER):
        raise Unreadable("not a PNG file" if content else "it is empty")
    width, height = struct.unpack(">II", content[len(HEADER) :][:8].ljust(8, b"\0"))
    if (height, width) != size:
        raise Unreadable(f"it is {height} x {width}, not {size[0]} x {size[1]}")
    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            if png.mode not in ("1", "L") or "interlace" in png.info:
                raise Unreadable("it is not in shades of grey")
            png.verify()
        with Image.open(io.BytesIO(content), formats=["PNG"]) as png:
            return np.asarray(png.convert("L"))
    except Unreadable:
        raise
    except Exception:  # a damaged file makes Pillow fail in any way
        raise Unreadable("it is truncated or damaged") from None
