"""Small files in the official formats, and byte mutations of them."""

import gzip
import io
import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from PIL import Image
from scipy.io import savemat

from classgrad.data import DATASETS, Dataset, Split, load
from classgrad.data.datasets import checksums


class OldPickle:
    """A pickle as Python 2 wrote it: protocol 2, text as byte strings, arrays by latin-1."""

    def __init__(self) -> None:
        self.parts = [b"\x80\x02"]
        self.memo = 0

    def put(self, raw: bytes) -> None:
        self.memo += 1
        mark = b"q" + bytes([self.memo]) if self.memo < 256 else b"r" + struct.pack("<I", self.memo)
        self.parts.append(raw + mark)

    def value(self, value: object) -> None:
        if isinstance(value, str):
            self.put(b"U" + bytes([len(value)]) + value.encode())
        elif isinstance(value, int):
            self.parts.append(
                b"K" + bytes([value]) if value < 256 else b"M" + struct.pack("<H", value)
            )
        elif isinstance(value, list):
            self.put(b"]")
            self.parts.append(b"(")
            for item in value:
                self.value(item)
            self.parts.append(b"e")
        elif isinstance(value, np.ndarray):
            self.array(value)

    def array(self, array: np.ndarray) -> None:
        self.put(b"cnumpy.core.multiarray\n_reconstruct\n")
        self.put(b"cnumpy\nndarray\n")
        self.put(b"K\x00\x85U\x01b\x87R")
        self.parts.append(b"(K\x01")
        for size in array.shape:
            self.parts.append(b"M" + struct.pack("<H", size))
        self.put(b"\x86cnumpy\ndtype\n")
        self.put(b"U\x02u1K\x00K\x01\x87R")
        minus = b"J\xff\xff\xff\xff"
        self.parts.append(b"(K\x03U\x01|NNN" + minus * 2 + b"K\x00tb\x89")
        self.parts.append(b"T" + struct.pack("<I", array.nbytes) + array.tobytes() + b"tb")

    def dump(self, table: dict[str, object]) -> bytes:
        self.put(b"}")
        self.parts.append(b"(")
        for key, value in table.items():
            self.value(key)
            self.value(value)
        return b"".join([*self.parts, b"u."])


def pixels(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def cifar10(root: Path, each: int = 4) -> Path:
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [f"class {n}" for n in range(10)]
    (folder / "batches.meta").write_bytes(OldPickle().dump({"label_names": names}))
    batches = [(f"data_batch_{n}", f"training batch {n} of 5") for n in range(1, 6)]
    for seed, (name, label) in enumerate([*batches, ("test_batch", "testing batch 1 of 1")]):
        (folder / name).write_bytes(cifar10_batch(seed, label, each))
    return folder


def cifar10_batch(seed: int, label: str, each: int = 4) -> bytes:
    labels = [(seed + n) % 10 for n in range(each)]
    return OldPickle().dump(
        {"batch_label": label, "labels": labels, "data": pixels(seed, each, 3072)}
    )


def cifar100_tables(seed: int, label: str, count: int = 6) -> dict[str, object]:
    fine = [(17 * n + seed) % 100 for n in range(count)]
    return {
        "filenames": [f"{n}.png" for n in range(count)],
        "batch_label": label,
        "fine_labels": fine,
        "coarse_labels": [label // 5 for label in fine],
        "data": pixels(seed, count, 3072),
    }


def cifar100(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    names = {
        "fine_label_names": [f"fine {n}" for n in range(100)],
        "coarse_label_names": [f"coarse {n}" for n in range(20)],
    }
    (folder / "meta").write_bytes(OldPickle().dump(names))
    for seed, (name, label) in enumerate([("train", "training batch"), ("test", "testing batch")]):
        (folder / name).write_bytes(OldPickle().dump(cifar100_tables(seed, label)))
    return folder


def idx_images(array: np.ndarray) -> bytes:
    return struct.pack(">IIII", 0x0803, *array.shape) + array.tobytes()


def idx_labels(labels: list[int]) -> bytes:
    return struct.pack(">II", 0x0801, len(labels)) + bytes(labels)


def idx(root: Path, name: str = "mnist", packed: bool = False, seed: int = 0) -> Path:
    folder = root / DATASETS[name].folder
    folder.mkdir(parents=True)
    for part, count in (("train", 12), ("t10k", 5)):
        files = {
            f"{part}-images-idx3-ubyte": idx_images(pixels(seed + count, count, 28, 28)),
            f"{part}-labels-idx1-ubyte": idx_labels([(seed + n) % 10 for n in range(count)]),
        }
        for file, raw in files.items():
            if packed:
                (folder / f"{file}.gz").write_bytes(gzip.compress(raw))
            else:
                (folder / file).write_bytes(raw)
    return folder


def mat(values: dict[str, object], packed: bool = True) -> bytes:
    file = io.BytesIO()
    savemat(file, values, do_compression=packed)
    return file.getvalue()


def svhn_tables(seed: int, count: int) -> dict[str, np.ndarray]:
    labels = np.array([1 + (n + seed) % 10 for n in range(count)], np.uint8)[:, None]
    return {"X": pixels(seed, 32, 32, 3, count), "y": labels}


def svhn(root: Path, packed: bool = True) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    for seed, name in enumerate(("train", "test")):
        (root / f"{name}_32x32.mat").write_bytes(mat(svhn_tables(seed, 12), packed))
    return root


def png(array: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG", **options)
    return file.getvalue()


def notmnist(root: Path, each: int = 2) -> Path:
    folder = root / "notMNIST"
    for seed, part in enumerate(("Train", "Test")):
        for row, letter in enumerate("ABCDEFGHIJ"):
            place = folder / part / letter
            place.mkdir(parents=True)
            for n in range(each):
                image = pixels(1000 * seed + 10 * row + n, 28, 28)
                (place / f"{part}{letter}{n}.png").write_bytes(png(image))
    return folder


WRITERS = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "mnist": idx,
    "svhn": svhn,
    "notmnist": notmnist,
}


def as_release(which: str | Dataset, root: Path) -> Dataset:
    """Return a description by which the files under `root` are the complete release."""
    data = DATASETS[which] if isinstance(which, str) else which
    splits = {}
    for split in ("train", "test"):
        images = load(data, root, split)
        result = checksums(images)
        splits[split] = Split(len(images), images.per_class, result.images, result.labels)
    return replace(data, **splits)


def one_line(error: Exception) -> None:
    assert "\n" not in str(error)
    assert str(error)


@st.composite
def mutated(draw: st.DrawFn, raw: bytes) -> bytes:
    """Return `raw` with a few bytes changed, put in, taken out, or its end cut off."""
    content = bytearray(raw)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(content) - 1)))
        # The structure is at the beginning: half of the changes go there.
        at = min(at, 400) if draw(st.booleans()) else at
        kind = draw(st.sampled_from(["change", "insert", "delete", "cut"]))
        if kind == "change" and content:
            content[at] = draw(st.integers(0, 255))
        elif kind == "insert":
            content[at:at] = draw(st.binary(max_size=9))
        elif kind == "delete":
            del content[at : at + draw(st.integers(1, 9))]
        else:
            del content[at:]
    return bytes(content)
