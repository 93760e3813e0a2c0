"""notMNIST as the pickles notmnist_train.pkl and notmnist_test.pkl of 32 x 32 images."""

from pathlib import Path

import numpy as np
import torch

from classgrad.data.datasets import Dataset, Images, Source, damaged
from classgrad.data.pickled import Refused, read_pickle
from classgrad.errors import shown


def find(root: Path, data: Dataset, split: str) -> list[Path]:
    """Return the file of a split."""
    return [root / data.folder / f"notmnist_{split}.pkl"]


def decode(sources: list[Source], data: Dataset, split: str) -> Images:
    """Return the arrays "features" and "labels" of a pickle."""
    ((path, content),) = sources
    try:
        table = read_pickle(content)
    except Refused as error:
        raise damaged(data, path, f"not a file of {data.title}: {shown(error)}") from None
    pixels = _integers(data, path, table.get("features"), "features", 255)
    labels = _integers(data, path, table.get("labels"), "labels", len(data.class_names) - 1)
    if pixels.shape[1:] != data.shape or labels.ndim != 1 or not len(labels):
        shapes = " and ".join(" x ".join(map(str, each.shape)) for each in (pixels, labels))
        raise damaged(data, path, f"features and labels are {shapes}, not N x 1 x 32 x 32 and N")
    if len(pixels) != len(labels):
        raise damaged(data, path, f"{len(labels):,} labels for {len(pixels):,} images")
    return Images(
        torch.from_numpy(pixels.astype(np.uint8)),
        torch.from_numpy(labels.astype(np.int64)),
        data.class_names,
    )


def _integers(data: Dataset, path: Path, values: object, name: str, largest: int) -> np.ndarray:
    if not isinstance(values, np.ndarray):
        raise damaged(data, path, f"holds no array of {name}")
    with np.errstate(invalid="ignore"):
        whole = (values >= 0) & (values <= largest) & (values % 1 == 0)
    if not whole.all():
        raise damaged(data, path, f"{name} are not all whole numbers from 0 to {largest}")
    return values
