"""Archives of datasets, as they are unpacked after a download."""

import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from unittest import mock

from classgrad.data import DATASETS, Dataset, fetch
from classgrad.data.fetch import unpack
from data import datafiles
from fuzz import binaries
from fuzz.target import Strategy, Target


def _archive(title: str, name: str, top: str, write: Callable[[Path], Path], file: str) -> Target:
    """Return the target for an archive of what `write` writes; `file` is one of its members."""
    download = DATASETS[name].downloads[0]

    def make(folder: Path) -> Path:
        path, place = folder / download.name, write(folder / "written")
        with tarfile.open(path, "w:gz", compresslevel=1) as tar:
            tar.add(place, top)
        with _small_and_quick():
            unpack(DATASETS[name], download, path, folder / "source")
        return path

    @cache
    def release(source: Path) -> Dataset:
        return datafiles.as_release(name, source)

    def read(folder: Path) -> None:
        store, root = folder / "store", folder / "root"
        store.mkdir(exist_ok=True)
        if root.exists():
            shutil.rmtree(root)
        with _small_and_quick():
            fetch._install(
                release(folder / "source"), download, folder / download.name, root, store
            )

    def inputs(sound: bytes) -> Strategy:
        return binaries.archives((f"{top}/{file}", top), sound[:600])

    return Target(title, make, read, inputs)


@contextmanager
def _small_and_quick() -> Iterator[None]:
    """Have test sets of one image per letter, and do not wait for the disk or for huge members."""
    with (
        mock.patch("classgrad.data.fetch.MAX_UNPACKED", 2**20),
        mock.patch("classgrad.data.notmnist.TEST_PER_LETTER", 1),
        mock.patch("os.fsync"),
        mock.patch("os.sync"),
    ):
        yield


def _write_letters(folder: Path) -> Path:
    return datafiles.notmnist(folder) / "Train"


TARGETS = (
    _archive("cifar-archive", "cifar100", "cifar-100-python", datafiles.cifar100, "meta"),
    _archive("notmnist-archive", "notmnist", "notMNIST_small", _write_letters, "A/TrainA0.png"),
)
