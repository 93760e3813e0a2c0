import gzip
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.cli.options import error_message
from classgrad.data import DATASETS, load, loading
from classgrad.data import idx as reader
from classgrad.errors import UserError
from data.datafiles import as_release, idx, idx_images, idx_labels, mutated, one_line, pixels

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def refused(root, match, name="mnist", split="train"):
    with pytest.raises(UserError, match=match) as caught:
        load(name, root, split)
    one_line(caught.value)
    return error_message(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files(tmp_path, packed):
    idx(tmp_path, packed=packed)
    images = load("mnist", tmp_path, "train")
    assert torch.equal(images.images, torch.from_numpy(pixels(12, 12, 1, 28, 28)))
    assert images.labels.tolist() == [n % 10 for n in range(12)]
    assert images.class_names[7] == "7"
    assert images.note == "12 of 60,000 training images"
    assert len(load("mnist", tmp_path, "test")) == 5


def test_plain_and_packed_are_the_same_data(tmp_path):
    idx(tmp_path / "plain")
    release = as_release("mnist", tmp_path / "plain")
    idx(tmp_path / "packed", packed=True)
    for split in ("train", "test"):
        assert load(release, tmp_path / "packed", split).complete


def test_the_plain_file_comes_first(tmp_path):
    folder = idx(tmp_path)
    (folder / f"{IMAGES}.gz").write_bytes(b"not gzip")
    assert len(load("mnist", tmp_path)) == 12


def test_missing_files_are_named(tmp_path):
    assert IMAGES in refused(tmp_path, "Fashion-MNIST is missing", "fashion_mnist")
    (idx(tmp_path) / LABELS).unlink()
    assert "classgrad data fetch mnist" in refused(tmp_path, LABELS)


ZEROS = np.zeros((3, 28, 28), np.uint8)


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        (IMAGES, b"", "only 0 bytes"),
        (IMAGES, b"\0\0\x08\x03", "only 4 bytes"),
        (IMAGES, idx_images(ZEROS)[:-1], "2,351 bytes where its header declares 2,352"),
        (IMAGES, idx_images(ZEROS) + b"x", "more than 2,352 bytes"),
        (IMAGES, idx_images(np.zeros((3, 32, 32), np.uint8)), "3 x 32 x 32"),
        (IMAGES, idx_images(np.zeros((0, 28, 28), np.uint8)), "0 x 28 x 28"),
        (IMAGES, struct.pack(">IIII", 0x0803, 2**32 - 1, 28, 28), "4294967295 x 28 x 28"),
        (IMAGES, struct.pack(">IIII", 0x0803, 2**32 - 1, 2**32 - 1, 2**32 - 1), "at most"),
        (IMAGES, struct.pack(">IIII", 0x0D03, 3, 28, 28) + bytes(2352), "0x00000d03"),
        (IMAGES, idx_labels([1] * 12), "not an idx file of images"),
        (IMAGES, idx_images(ZEROS), "12 labels for 3 images"),
        (LABELS, idx_images(ZEROS), "not an idx file of labels"),
        (LABELS, idx_labels([1] * 11 + [10]), "label 10"),
        (LABELS, idx_labels([1] * 11), "11 labels for 12 images"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_wrong_files_are_refused(tmp_path, name, content, match, packed):
    folder = idx(tmp_path, packed=packed)
    path = folder / (f"{name}.gz" if packed else name)
    path.write_bytes(gzip.compress(content) if packed else content)
    refused(tmp_path, match)


def damaged_gzip(content):
    sound = gzip.compress(content)
    half = len(sound) // 2
    return {
        "plain under a packed name": content,
        "cut": sound[:-9],
        "torn": sound[:half] + bytes([sound[half] ^ 0xFF]) + sound[half + 1 :],
        "false checksum": sound[:-8] + b"\0\0\0\0" + sound[-4:],
        "trailing bytes": sound + b"trailing",
        "empty": b"",
    }


@pytest.mark.parametrize("damage", list(damaged_gzip(b"")))
def test_damaged_gzip_is_refused(tmp_path, damage):
    path = idx(tmp_path, packed=True) / f"{IMAGES}.gz"
    content = damaged_gzip(idx_images(pixels(12, 12, 28, 28)))[damage]
    path.write_bytes(content)
    assert path.name in refused(tmp_path, "gzip|bytes long")


def test_a_packed_file_is_unpacked_no_further_than_its_header_says(tmp_path):
    path = idx(tmp_path, packed=True) / f"{IMAGES}.gz"
    bomb = gzip.compress(idx_images(ZEROS) + bytes(64 * 2**20))
    path.write_bytes(bomb)
    tracemalloc.start()
    refused(tmp_path, "more than 2,352 bytes")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


def test_mnist_is_not_fashion_mnist(tmp_path, monkeypatch):
    """A loader that fetches MNIST under Fashion-MNIST's name has happened in published work."""
    idx(tmp_path, "mnist", seed=1)
    idx(tmp_path, "fashion_mnist", seed=2)
    known = {name: as_release(name, tmp_path) for name in ("mnist", "fashion_mnist")}
    monkeypatch.setattr(loading, "DATASETS", known)
    assert load(known["fashion_mnist"], tmp_path, "test").complete
    mnist, fashion = (tmp_path / known[name].folder for name in ("mnist", "fashion_mnist"))
    for name in (IMAGES, LABELS):
        (fashion / name).write_bytes((mnist / name).read_bytes())
    message = refused(tmp_path, "these are MNIST's training files", known["fashion_mnist"])
    assert "not Fashion-MNIST's training files" in message
    assert "classgrad data fetch fashion_mnist" in message


def test_the_test_set_is_not_the_training_set(tmp_path, monkeypatch):
    folder = idx(tmp_path)
    known = as_release("mnist", tmp_path)
    monkeypatch.setattr(loading, "DATASETS", {"mnist": known})
    for name in (IMAGES, LABELS):
        (folder / name).write_bytes((folder / name.replace("train", "t10k")).read_bytes())
    refused(tmp_path, "MNIST's test files", known)


PARTS = idx_images(pixels(0, 3, 28, 28)), idx_labels([1, 2, 3])


@settings(max_examples=200, deadline=None)
@given(st.data(), st.booleans())
def test_mutations_load_or_are_refused(data, packed):
    first, second = (gzip.compress(part) if packed else part for part in PARTS)
    if data.draw(st.booleans()):
        first = data.draw(mutated(first))
    else:
        second = data.draw(mutated(second))
    suffix = ".gz" if packed else ""
    sources = [(Path(f"images{suffix}"), first), (Path(f"labels{suffix}"), second)]
    try:
        images = reader.decode(sources, DATASETS["mnist"], "train")
    except UserError as error:
        one_line(error)
    else:
        assert images.images.shape == (len(images), 1, 28, 28)
        assert images.labels.max() < 10
        if packed:
            assert torch.equal(images.images, torch.from_numpy(pixels(0, 3, 1, 28, 28)))
