"""The files of the datasets, one by one."""

import gzip
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np

from classgrad.data import DATASETS, load
from data import datafiles
from fuzz import binaries
from fuzz.pickles import PICKLES
from fuzz.target import Strategy, Target


def _dataset(
    title: str,
    name: str,
    write: Callable[[Path], object],
    file: str,
    inputs: Callable[[bytes], Strategy],
) -> Target:
    """Return the target for one of the files of a dataset's training set."""
    data = DATASETS[name]

    def make(folder: Path) -> Path:
        write(folder)
        return folder / data.folder / file

    def read(folder: Path) -> None:
        images = load(data, folder, "train")
        assert images.images.shape == (len(images), *data.shape)
        assert 0 <= images.labels.min() <= images.labels.max() < len(images.class_names)

    return Target(title, make, read, inputs)


def _write_cifar10(folder: Path) -> None:
    datafiles.cifar10(folder, each=1)


def _write_zipped_idx(folder: Path) -> None:
    datafiles.idx(folder, packed=True)


def _write_svhn(folder: Path) -> None:
    (folder / "train_32x32.mat").write_bytes(datafiles.mat(datafiles.svhn_tables(0, 1)))


def _write_plain_svhn(folder: Path) -> None:
    tables = datafiles.svhn_tables(0, 1)
    (folder / "train_32x32.mat").write_bytes(datafiles.mat(tables, packed=False))


def _write_notmnist32(folder: Path) -> None:
    table = {"features": np.ones((2, 1, 32, 32), np.uint8), "labels": np.array([0, 9], np.uint8)}
    (folder / "notmnist").mkdir()
    (folder / "notmnist" / "notmnist_train.pkl").write_bytes(pickle.dumps(table, protocol=4))


def _pickles(sound: bytes) -> Strategy:
    return PICKLES


def _idx(sound: bytes) -> Strategy:
    return binaries.idx_files(packed=False)


def _zipped_idx(sound: bytes) -> Strategy:
    return binaries.zipped(gzip.decompress(sound)) | binaries.idx_files(packed=True)


def _mat(sound: bytes) -> Strategy:
    return binaries.mat_files(sound[:128])


def _png(sound: bytes) -> Strategy:
    return binaries.png_files(28)


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TARGETS = (
    _dataset("cifar10-batch", "cifar10", _write_cifar10, "data_batch_2", _pickles),
    _dataset("cifar10-names", "cifar10", _write_cifar10, "batches.meta", _pickles),
    _dataset("cifar100-batch", "cifar100", datafiles.cifar100, "train", _pickles),
    _dataset("cifar100-names", "cifar100", datafiles.cifar100, "meta", _pickles),
    _dataset("notmnist32", "notmnist32", _write_notmnist32, "notmnist_train.pkl", _pickles),
    _dataset("idx-images", "mnist", datafiles.idx, IMAGES, _idx),
    _dataset("idx-labels", "mnist", datafiles.idx, LABELS, _idx),
    _dataset("idx-zipped", "mnist", _write_zipped_idx, f"{IMAGES}.gz", _zipped_idx),
    _dataset("mat", "svhn", _write_plain_svhn, "train_32x32.mat", _mat),
    _dataset("mat-packed", "svhn", _write_svhn, "train_32x32.mat", _mat),
    _dataset("notmnist", "notmnist", datafiles.notmnist, "Train/C/TrainC1.png", _png),
)
