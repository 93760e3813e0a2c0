"""notMNIST as folders of PNG files: notMNIST/Train/A to J and notMNIST/Test/A to J."""

import hashlib
import io
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import torch

from classgrad.data.files import Source, damaged, missing
from classgrad.data.images import Images
from classgrad.data.table import Dataset
from classgrad.errors import UserError

FOLDERS = {"train": "Train", "test": "Test"}
# The release holds two files without content; whoever unpacks it by hand has them too.
EMPTY = {
    "A/RGVtb2NyYXRpY2FCb2xkT2xkc3R5bGUgQm9sZC50dGY=.png",
    "F/Q3Jvc3NvdmVyIEJvbGRPYmxpcXVlLnR0Zg==.png",
}
# The release has no split. Ours: in each letter, the files whose names have the least sha256.
TESTED = 187
SIGNATURE = b"\x89PNG\r\n\x1a\n"


class Unreadable(ValueError):
    """The bytes are not a PNG image of the kind that notMNIST holds."""


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
        raise UserError(f"{folder}: {what}; move it away and {data.remedy()}")
    if not paths:
        raise missing(data, folder / data.class_names[0] / "*.png")
    return paths


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the images of PNG files, labelled by the folders they are in."""
    pixels = np.empty((len(sources), *data.shape), np.uint8)
    labels = np.empty(len(sources), np.int64)
    for row, (path, content) in enumerate(sources):
        try:
            pixels[row, 0] = read_png(content, data.shape[1:])
        except Unreadable as error:
            raise damaged(data, path, f"not an image of {data.title} ({error})") from None
        labels[row] = data.class_names.index(path.parent.name)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels), data.class_names)


def tested(letter: str, names: Iterable[str]) -> set[str]:
    """Return the files of a letter that form its test set.

    >>> len(tested("A", [f"{n}.png" for n in range(1872)]))
    187
    """
    return set(
        sorted(names, key=lambda name: hashlib.sha256(f"{letter}/{name}".encode()).digest())[
            :TESTED
        ]
    )


def read_png(content: bytes, size: tuple[int, int]) -> np.ndarray:
    """Return the pixels of a grey PNG image of the given height and width.

    Only the chunks that make up the picture are handed on, each after its checksum has been
    compared, so that no other part of the format comes into play.
    """
    from PIL import Image

    chunks = dict.fromkeys((b"IHDR", b"IDAT", b"IEND"), b"")
    for kind, chunk in _chunks(content):
        if kind in chunks:
            chunks[kind] += chunk
    header = chunks[b"IHDR"]
    if len(header) != 13:
        raise Unreadable("parts of it are missing")
    width, height, depth, colour, _, _, interlaced = struct.unpack(">IIBBBBB", header)
    if (height, width) != size:
        raise Unreadable(f"it is {height} x {width}, not {size[0]} x {size[1]}")
    if depth > 8 or colour or interlaced:
        raise Unreadable("it is not in shades of grey")
    _refuse_other_length(chunks[b"IDAT"], height * (1 + -(-width * depth // 8)))
    try:
        with Image.open(io.BytesIO(_joined(chunks)), formats=["PNG"]) as png:
            return np.asarray(png.convert("L"))
    except (OSError, SyntaxError, ValueError):
        raise Unreadable("its pixels are cut or torn") from None


def _refuse_other_length(packed: bytes, length: int) -> None:
    """Unpack the rows on trial: what is cut, too long or torn must not pass for a picture."""
    rows = zlib.decompressobj()
    try:
        whole = len(rows.decompress(packed, length + 1)) == length and rows.eof
    except zlib.error:
        whole = False
    if not whole:
        raise Unreadable("its pixels are cut or torn")


def _joined(chunks: Mapping[bytes, bytes]) -> bytes:
    parts = [SIGNATURE]
    for kind, content in chunks.items():
        body = kind + content
        parts.append(struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body)))
    return b"".join(parts)


def _chunks(content: bytes) -> Iterable[tuple[bytes, bytes]]:
    if not content.startswith(SIGNATURE):
        raise Unreadable("no PNG file" if content else "it is empty")
    at = len(SIGNATURE)
    while at + 12 <= len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        end = at + 12 + length
        if end > len(content):
            raise Unreadable("it ends too early")
        if zlib.crc32(content[at + 4 : end - 4]) != struct.unpack_from(">I", content, end - 4)[0]:
            raise Unreadable("a checksum in it is wrong")
        yield kind, content[at + 8 : end - 4]
        if kind == b"IEND":
            return
        at = end
    raise Unreadable("it ends too early")
