"""MNIST and Fashion-MNIST: idx files, plain or gzipped."""

import gzip
import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import torch

from classgrad.data.datasets import Dataset, Images, Source, damaged, missing
from classgrad.errors import shown

PREFIX = {"train": "train", "test": "t10k"}
# Two zero bytes, 8 for unsigned bytes, and the number of dimensions.
MAGIC = {1: 0x0801, 3: 0x0803}


def find(root: Path, data: Dataset, split: str) -> list[Path]:
    """Return the files of images and of labels; of a plain and a packed file, the plain one."""
    folder = root / data.folder
    paths = []
    for part in ("images-idx3-ubyte", "labels-idx1-ubyte"):
        plain = folder / f"{PREFIX[split]}-{part}"
        packed = plain.with_name(f"{plain.name}.gz")
        if not os.path.exists(plain) and not os.path.exists(packed):
            raise missing(data, plain)
        paths.append(plain if os.path.exists(plain) else packed)
    return paths


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the images and labels of two idx files."""
    (image_path, image_file), (label_path, label_file) = sources
    most = data.split(split).count
    pixels = _array(data, image_path, image_file, (most, *data.shape[1:]))
    labels = _array(data, label_path, label_file, (most,))
    if len(labels) != len(pixels):
        raise damaged(data, label_path, f"{len(labels):,} labels for {len(pixels):,} images")
    if labels.max() >= len(data.class_names):
        raise damaged(data, label_path, f"label {labels.max()} is not one of 0 to 9")
    return Images(
        torch.from_numpy(pixels.copy()).reshape(-1, *data.shape),
        torch.from_numpy(labels.astype(np.int64)),
        data.class_names,
    )


def _array(data: Dataset, path: Path, content: bytes, most: tuple[int, ...]) -> np.ndarray:
    """Return the bytes of an idx file, of at most `most[0]` items of the shape `most[1:]`."""
    packed = path.suffix == ".gz"
    file = gzip.GzipFile(fileobj=io.BytesIO(content)) if packed else io.BytesIO(content)
    length = 4 * (1 + len(most))
    try:
        header = file.read(length)
        if len(header) < length:
            raise damaged(data, path, f"only {len(header)} bytes long")
        magic, *sizes = struct.unpack(f">{1 + len(most)}I", header)
        if magic != MAGIC[len(most)]:
            kind = "images" if len(most) == 3 else "labels"
            raise damaged(data, path, f"not an idx file of {kind} (it begins with {magic:#010x})")
        if tuple(sizes[1:]) != most[1:] or not 0 < sizes[0] <= most[0]:
            shape, largest = (" x ".join(map(str, each)) for each in (sizes, most))
            raise damaged(data, path, f"holds {shape} bytes, {data.title} has at most {largest}")
        count = int(np.prod(sizes))
        # One byte more than declared, so that excess is noticed and a packed file is never
        # unpacked further than its header says.
        body = file.read(count + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise damaged(data, path, f"not an intact gzip file ({shown(error)})") from None
    if len(body) != count:
        actual = f"{len(body):,}" if len(body) < count else f"more than {count:,}"
        raise damaged(data, path, f"{actual} bytes where its header declares {count:,}")
    return np.frombuffer(body, np.uint8).reshape(sizes)
