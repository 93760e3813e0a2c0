"""CIFAR-10 and CIFAR-100 in their Python version: pickled batches of rows of bytes."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from classgrad.data.datasets import Dataset, Images, Source, damaged, missing
from classgrad.data.pickled import Refused, read_pickle
from classgrad.errors import UserError, shown

# The key of the labels in a batch, and the number of classes.
LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}
CLASSES = {"cifar10": 10, "cifar100": 100}
SUPERCLASSES = 20


def find(root: Path, data: Dataset, split: str) -> list[Path]:
    """Return the file of class names and the batches of a split."""
    folder = root / data.folder
    if not os.path.isdir(folder):
        raise missing(data, folder)
    if data.name == "cifar100":
        return [folder / "meta", folder / split]
    batches = [f"data_batch_{n}" for n in range(1, 6)] if split == "train" else ["test_batch"]
    return [folder / "batches.meta", *(folder / batch for batch in batches)]


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the images of the batches; the first file has the class names."""
    names, *batches = sources
    key = LABELS[data.name]
    table = _table(data, *names)
    fine = _names(data, names[0], table, key.replace("labels", "label_names"), CLASSES[data.name])
    pixels, labels, coarse = [], [], []
    for path, content in batches:
        batch = _table(data, path, content)
        _refuse_other_split(data, path, batch, split)
        pixels.append(_pixels(data, path, batch))
        labels += _labels(data, path, batch, key, len(fine), len(pixels[-1]))
        if data.name == "cifar100":
            coarse += _labels(data, path, batch, "coarse_labels", SUPERCLASSES, len(pixels[-1]))
    images = torch.from_numpy(np.concatenate(pixels)).reshape(-1, *data.shape)
    if data.name == "cifar10":
        return Images(images, torch.tensor(labels), fine)
    coarse_names = _names(data, names[0], table, "coarse_label_names", SUPERCLASSES)
    result = Images(images, torch.tensor(labels), fine, torch.tensor(coarse), coarse_names)
    _refuse_inconsistent_superclasses(data, batches[0][0], result)
    return result


def superclasses(images: Images) -> Tensor:
    """Return the superclass of each class, or -1 for a class without images."""
    if images.coarse is None:
        raise UserError("these images have no superclasses: use CIFAR-100")
    coarse = torch.full((len(images.class_names),), -1)
    coarse[images.labels] = images.coarse
    return coarse


def _table(data: Dataset, path: Path, content: bytes) -> dict[str, Any]:
    try:
        return read_pickle(content)
    except Refused as error:
        raise damaged(data, path, f"not a file of {data.title}: {shown(error)}") from None


def _refuse_other_split(data: Dataset, path: Path, batch: dict[str, Any], split: str) -> None:
    other = b"testing" if split == "train" else b"training"
    label = batch.get("batch_label")
    label = label.encode() if isinstance(label, str) else label
    if isinstance(label, bytes) and label.startswith(other):
        raise damaged(data, path, f"holds the {other.decode()} batch of {data.title}")


def _pixels(data: Dataset, path: Path, batch: dict[str, Any]) -> np.ndarray:
    rows = batch.get("data")
    width = data.shape[0] * data.shape[1] * data.shape[2]
    if not isinstance(rows, np.ndarray):
        raise damaged(data, path, "holds no images")
    if rows.dtype != np.uint8 or rows.ndim != 2 or rows.shape[1] != width or not len(rows):
        shape = " x ".join(map(str, rows.shape))
        raise damaged(data, path, f"images are {rows.dtype} {shape}, not uint8 N x {width}")
    return rows


def _labels(
    data: Dataset, path: Path, batch: dict[str, Any], key: str, classes: int, count: int
) -> list[int]:
    labels = batch.get(key)
    if type(labels) is not list:
        raise damaged(data, path, f"holds no {key}: not a batch of {data.title}")
    if len(labels) != count:
        raise damaged(data, path, f"{len(labels):,} {key} for {count:,} images")
    if not all(type(label) is int and 0 <= label < classes for label in labels):
        raise damaged(data, path, f"{key} are not all whole numbers from 0 to {classes - 1}")
    return labels


def _names(
    data: Dataset, path: Path, table: dict[str, Any], key: str, count: int
) -> tuple[str, ...]:
    names = table.get(key)
    if type(names) is not list or len(names) != count:
        raise damaged(data, path, f"does not hold the {count} {key}")
    decoded = [name.decode("latin-1") if isinstance(name, bytes) else name for name in names]
    if not all(isinstance(name, str) and name.isprintable() for name in decoded):
        raise damaged(data, path, f"{key} are not all text")
    return tuple(decoded)


def _refuse_inconsistent_superclasses(data: Dataset, path: Path, images: Images) -> None:
    if not torch.equal(superclasses(images)[images.labels], images.coarse):  # type: ignore[arg-type]
        raise damaged(data, path, "a class belongs to two superclasses")
