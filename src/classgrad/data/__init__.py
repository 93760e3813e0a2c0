"""Datasets from their official files, checked against the release and decoded to uint8 tensors."""

import os
from pathlib import Path

from classgrad.data.datasets import SPLITS, Dataset, Download, Images, Split
from classgrad.data.loading import load
from classgrad.data.releases import DATASETS, describe

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "Download",
    "Images",
    "Split",
    "data_dir",
    "describe",
    "load",
]


def data_dir(given: str | Path | None = None) -> Path:
    """Return the folder of the datasets: `given`, or CLASSGRAD_DATA, or one in the user's cache.

    >>> data_dir("sets").name
    'sets'
    """
    chosen = given or os.environ.get("CLASSGRAD_DATA")
    if chosen:
        return Path(chosen).expanduser()
    import pooch

    return Path(pooch.os_cache("classgrad")) / "data"
