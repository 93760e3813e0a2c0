import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings

from classgrad.cli.options import error_message
from classgrad.data import DATASETS, Images, load
from classgrad.data import cifar as reader
from classgrad.data.datasets import Missing
from classgrad.errors import UserError
from data.datafiles import (
    OldPickle,
    as_release,
    cifar10,
    cifar10_batch,
    cifar100,
    cifar100_tables,
    mutated,
    one_line,
    pixels,
)


def refused(root, name, split="train", match=None):
    with pytest.raises(UserError, match=match) as caught:
        load(name, root, split)
    one_line(caught.value)
    return error_message(caught.value)


def test_cifar10_batches_come_in_order(tmp_path):
    cifar10(tmp_path)
    images = load("cifar10", tmp_path, "train")
    expected = np.concatenate([pixels(seed, 4, 3, 32, 32) for seed in range(5)])
    assert images.images.dtype == torch.uint8
    assert torch.equal(images.images, torch.from_numpy(expected))
    assert images.labels.dtype == torch.int64
    assert images.labels.tolist() == [(seed + n) % 10 for seed in range(5) for n in range(4)]
    assert images.class_names == tuple(f"class {n}" for n in range(10))
    assert images.coarse is None
    assert (images.status, images.note) == ("subset", "20 of 50,000 training images")
    assert load("cifar10", tmp_path, "test").labels.tolist() == [5, 6, 7, 8]


def test_cifar100_has_superclasses(tmp_path):
    cifar100(tmp_path)
    images = load("cifar100", tmp_path, "test")
    assert images.coarse_names == tuple(f"coarse {n}" for n in range(20))
    assert images.coarse.tolist() == [label // 5 for label in images.labels.tolist()]
    upper = reader.superclasses(images)
    assert upper[images.labels].tolist() == images.coarse.tolist()
    assert (upper == -1).sum() == 100 - len(set(images.labels.tolist()))


def test_superclasses_need_coarse_labels(tmp_path):
    cifar10(tmp_path)
    with pytest.raises(UserError, match="no superclasses"):
        reader.superclasses(load("cifar10", tmp_path))


def test_a_repacked_copy_is_the_same_data(tmp_path):
    folder = cifar100(tmp_path)
    release = as_release("cifar100", tmp_path)
    for name in ("train", "test", "meta"):
        table = pickle.loads((folder / name).read_bytes(), encoding="latin1")
        (folder / name).write_bytes(pickle.dumps(table, protocol=4))
    for split in ("train", "test"):
        assert load(release, tmp_path, split).complete


def test_changed_content_is_not_the_release(tmp_path):
    folder = cifar100(tmp_path)
    release = as_release("cifar100", tmp_path)
    table = cifar100_tables(0, "training batch")
    table["data"][0, 0] ^= 1
    (folder / "train").write_bytes(OldPickle().dump(table))
    images = load(release, tmp_path, "train")
    assert images.status == "other"
    assert "whose pixels differ" in images.note


def test_missing_files_are_named(tmp_path):
    message = refused(tmp_path, "cifar100", match="cifar-100-python")
    assert "classgrad data fetch cifar100" in message
    folder = cifar10(tmp_path)
    (folder / "data_batch_3").unlink()
    with pytest.raises(Missing, match="data_batch_3"):
        load("cifar10", tmp_path)


@pytest.mark.parametrize("name", ["data_batch_2", "batches.meta"])
@pytest.mark.parametrize("damage", ["empty", "cut", "zeros", "text", "doubled", "folder"])
def test_damaged_files_are_refused(tmp_path, name, damage):
    path = cifar10(tmp_path) / name
    raw = path.read_bytes()
    path.unlink()
    if damage == "folder":
        path.mkdir()
    else:
        contents = {
            "empty": b"",
            "cut": raw[: len(raw) // 2],
            "zeros": bytes(len(raw)),
            "text": b"<!DOCTYPE html>\n<html>",
            "doubled": raw + raw,
        }
        path.write_bytes(contents[damage])
    assert name in refused(tmp_path, "cifar10")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"labels": [0, 1, 2]}, "3 labels for 4 images"),
        ({"labels": [0, 1, 2, 10]}, "from 0 to 9"),
        ({"labels": "words"}, "holds no labels"),
        ({"labels": ["a", "b", "c", "d"]}, "from 0 to 9"),
        ({"data": np.zeros((4, 3071), np.uint8)}, "4 x 3071"),
        ({"data": np.zeros((0, 3072), np.uint8)}, "0 x 3072"),
        ({"data": [1, 2]}, "holds no images"),
        ({"batch_label": "testing batch 1 of 1"}, "holds the testing batch"),
    ],
)
def test_wrong_tables_are_refused(tmp_path, change, match):
    path = cifar10(tmp_path) / "data_batch_1"
    table = {"batch_label": "training", "labels": [0, 1, 2, 3], "data": pixels(0, 4, 3072)}
    path.write_bytes(OldPickle().dump({**table, **change}))
    assert "data_batch_1" in refused(tmp_path, "cifar10", match=match)


def test_only_bytes_are_pixels(tmp_path):
    path = cifar10(tmp_path) / "data_batch_1"
    path.write_bytes(pickle.dumps({"labels": [0], "data": np.zeros((1, 3072))}, protocol=4))
    refused(tmp_path, "cifar10", match="float64")


def test_swapped_files_are_refused(tmp_path):
    folder = cifar10(tmp_path)
    test = (folder / "test_batch").read_bytes()
    (folder / "test_batch").write_bytes((folder / "data_batch_1").read_bytes())
    refused(tmp_path, "cifar10", "test", match="holds the training batch")
    (folder / "data_batch_1").write_bytes(test)
    refused(tmp_path, "cifar10", match="holds the testing batch")
    fine = cifar100(tmp_path)
    (folder / "data_batch_1").write_bytes((fine / "train").read_bytes())
    refused(tmp_path, "cifar10", match="not a batch of CIFAR-10")


def test_a_class_has_one_superclass(tmp_path):
    folder = cifar100(tmp_path)
    table = cifar100_tables(0, "training batch")
    table["fine_labels"] = [3] * 6
    (folder / "train").write_bytes(OldPickle().dump(table))
    refused(tmp_path, "cifar100", match="two superclasses")


def test_a_call_is_not_made(tmp_path):
    folder, touched = cifar10(tmp_path), tmp_path / "touched"
    shell = f"touch {touched}".encode()
    call = b"\x80\x02cposix\nsystem\nU" + bytes([len(shell)]) + shell + b"\x85R."
    (folder / "data_batch_4").write_bytes(call)
    message = refused(tmp_path, "cifar10", match="asks for 'posix.system'")
    assert "data_batch_4" in message
    assert not touched.exists()


def test_more_than_the_release_is_refused(tmp_path):
    cifar10(tmp_path)
    release = as_release("cifar10", tmp_path)
    (tmp_path / "cifar-10-batches-py" / "data_batch_5").write_bytes(cifar10_batch(4, "", 9))
    refused(tmp_path, release, match="25 images, the release has 20")


META = OldPickle().dump({"label_names": [f"class {n}" for n in range(10)]})


@settings(max_examples=150, deadline=None)
@given(mutated(cifar10_batch(0, "testing batch", 2)))
def test_mutations_load_or_are_refused(content):
    sources = [(Path("batches.meta"), META), (Path("test_batch"), content)]
    try:
        images = reader.decode(sources, DATASETS["cifar10"], "test")
    except UserError as error:
        one_line(error)
    else:
        assert isinstance(images, Images)
        assert images.images.shape == (len(images), 3, 32, 32)
        assert images.labels.max() < 10
