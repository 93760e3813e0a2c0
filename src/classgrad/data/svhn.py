"""SVHN's cropped digits: MATLAB 5 files with the variables X and y.

This is our own reader, because scipy's indexes a table of number types without checking the bounds:
with scipy 1.17, one changed byte crashes the process with a segmentation fault, and so do deeply
nested arrays. To rule that out before calling scipy would take all of the checks below.
"""

import math
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from classgrad.data.datasets import Dataset, Images, Source, Unreadable, damaged, missing

FOLDERS = (".", "svhn")
HEADER = 128
MATRIX, COMPRESSED = 14, 15
NUMBERS = {1: "<i1", 2: "<u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 9: "<f8"}
UINT8_CLASS, DOUBLE_CLASS = 9, 6
# Flags, dimensions and a short name take far less than this before the numbers begin.
PREAMBLE = 256


class Matrix(NamedTuple):
    """One variable, in MATLAB's memory order."""

    name: str
    shape: tuple[int, ...]
    values: np.ndarray


def find(root: Path, data: Dataset, split: str) -> list[Path]:
    """Return the file of a split, in the root or in its folder svhn."""
    name = f"{split}_32x32.mat"
    for folder in FOLDERS:
        if os.path.exists(root / folder / name):
            return [root / folder / name]
    raise missing(data, root / name)


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the images of X and the digits of y, where 10 means the digit 0."""
    ((path, content),) = sources
    try:
        variables = {matrix.name: matrix for matrix in matrices(content, data.split(split).count)}
    except (Unreadable, struct.error, zlib.error) as error:
        raise damaged(data, path, f"not an intact MATLAB 5 file ({error})") from None
    if not {"X", "y"} <= variables.keys():
        raise damaged(data, path, "does not hold the variables X and y")
    x, y = variables["X"], variables["y"]
    channels, height, width = data.shape
    if x.shape[:-1] != (height, width, channels) or x.values.dtype != np.uint8 or not x.shape[-1]:
        shape = " x ".join(map(str, x.shape))
        raise damaged(data, path, f"X is {x.values.dtype} {shape}, not uint8 32 x 32 x 3 x N")
    if sorted(y.shape) != sorted((1, x.shape[-1])):
        raise damaged(data, path, f"{len(y.values):,} labels for {x.shape[-1]:,} images")
    if not (np.isin(y.values, np.arange(1, 11))).all():
        raise damaged(data, path, "labels are not all whole numbers from 1 to 10")
    # In MATLAB the first axis varies fastest: the shape is (N, C, W, H) in numpy's order.
    pixels = x.values.reshape(-1, channels, width, height).transpose(0, 1, 3, 2)
    return Images(
        torch.from_numpy(np.ascontiguousarray(pixels)),
        torch.from_numpy(y.values.astype(np.int64) % 10),
        data.class_names,
    )


def matrices(content: bytes, most: int) -> Iterator[Matrix]:
    """Yield the numeric variables X and y of a MATLAB 5 file, of at most `most` images.

    Other variables are ignored, and nothing is unpacked before its size is known.
    """
    version, order = struct.unpack("<H2s", content[HEADER - 4 : HEADER].ljust(4))
    if version == 0x0200:
        raise Unreadable("it is of version 7.3; save it with -v7")
    if order != b"IM" or version != 0x0100:
        raise Unreadable("its header is not that of version 5")
    view, at = memoryview(content), HEADER
    while at < len(view):
        if at + 8 > len(view):
            raise Unreadable("it ends too early")
        kind, length = struct.unpack_from("<II", view, at)
        if at + 8 + length > len(view):
            raise Unreadable("it ends too early")
        body = view[at + 8 : at + 8 + length]
        at += 8 + length
        if kind == COMPRESSED:
            matrix = _compressed(body, most)
        elif kind == MATRIX:
            matrix = _matrix(body, most)
        else:
            raise Unreadable(f"it has an element of type {kind}")
        if matrix is not None:
            yield matrix


def _compressed(body: memoryview, most: int) -> Matrix | None:
    packed = zlib.decompressobj()
    head = packed.decompress(body, 8 + PREAMBLE)
    if len(head) < 8:
        raise Unreadable("it ends too early")
    kind, length = struct.unpack_from("<II", head)
    if kind != MATRIX:
        raise Unreadable(f"it has an element of type {kind}")
    start = _start(memoryview(head)[8:], most)
    if start is None:
        return None
    matlab_class, shape, _, at = start
    # Sixteen bytes hold the tag and the padding.
    if length > at + (1 if matlab_class == UINT8_CLASS else 8) * math.prod(shape) + 16:
        raise Unreadable(f"it declares {length:,} bytes for {math.prod(shape):,} numbers")
    left = 8 + length - len(head)
    # One byte more than is left, to notice what is too long, and because 0 would mean no limit.
    whole = head + packed.decompress(packed.unconsumed_tail, max(left, 0) + 1)
    if len(whole) != 8 + length or not packed.eof:
        raise Unreadable("a packed variable is truncated or too long")
    return _matrix(memoryview(whole)[8:], most)


def _start(body: memoryview, most: int) -> tuple[int, tuple[int, ...], str, int] | None:
    """Return class, shape, name and the offset of the numbers; None for another variable."""
    kind, flags, at = _element(body, 0)
    if kind != 6 or len(flags) != 8:
        raise Unreadable("a variable has no flags")
    matlab_class, bits = flags[0], flags[1]
    kind, sizes, at = _element(body, at)
    if kind != 5 or len(sizes) % 4:
        raise Unreadable("a variable has no dimensions")
    shape = tuple(int(size) for size in np.frombuffer(sizes, "<i4"))
    _, letters, at = _element(body, at)
    name = bytes(letters).decode("latin-1")
    if name not in ("X", "y"):
        return None
    accepted = (UINT8_CLASS,) if name == "X" else (UINT8_CLASS, DOUBLE_CLASS)
    if matlab_class not in accepted or bits & 0b1110:
        raise Unreadable(f"{name} is not an array of plain numbers")
    largest = 32 * 32 * 3 * most if name == "X" else most
    if not 2 <= len(shape) <= 4 or min(shape) < 0 or math.prod(shape) > largest:
        dimensions = " x ".join(map(str, shape[:8]))
        raise Unreadable(f"{name} is {dimensions}; the release has {most:,} images")
    return matlab_class, shape, name, at


def _matrix(body: memoryview, most: int) -> Matrix | None:
    start = _start(body, most)
    if start is None:
        return None
    matlab_class, shape, name, at = start
    kind, raw, _ = _element(body, at)
    if kind not in NUMBERS or len(raw) % (dtype := np.dtype(NUMBERS[kind])).itemsize:
        raise Unreadable(f"{name} is not an array of plain numbers")
    values = np.frombuffer(raw, dtype)
    if len(values) != math.prod(shape):
        raise Unreadable(f"{name} has {len(values):,} numbers for {math.prod(shape):,} entries")
    if matlab_class == UINT8_CLASS and kind != 2:
        raise Unreadable(f"{name} is declared as bytes and is not")
    return Matrix(name, shape, values)


def _element(body: memoryview, at: int) -> tuple[int, memoryview, int]:
    """Return the type and the bytes of the element at an offset, and the offset of the next one."""
    if at + 8 > len(body):
        raise Unreadable("it ends too early")
    kind, length = struct.unpack_from("<II", body, at)
    if kind >> 16:
        # The short format: length, type and up to four bytes in one tag.
        kind, length = kind & 0xFFFF, kind >> 16
        if length > 4:
            raise Unreadable("a short element is too long")
        return kind, body[at + 4 : at + 4 + length], at + 8
    if at + 8 + length > len(body):
        raise Unreadable("it ends too early")
    return kind, body[at + 8 : at + 8 + length], at + 8 + -(-length // 8) * 8
