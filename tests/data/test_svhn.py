import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from classgrad.cli.options import error_message
from classgrad.data import DATASETS, load
from classgrad.data import svhn as reader
from classgrad.errors import UserError
from data.datafiles import as_release, mat, mutated, one_line, svhn, svhn_tables

TRAIN = "train_32x32.mat"


def refused(root, match=None):
    with pytest.raises(UserError, match=match) as caught:
        load("svhn", root, "train")
    one_line(caught.value)
    return error_message(caught.value)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("folder", [".", "svhn"])
def test_matlab_files(tmp_path, packed, folder):
    svhn(tmp_path / folder, packed)
    images = load("svhn", tmp_path, "train")
    expected = svhn_tables(0, 12)["X"].transpose(3, 2, 0, 1)
    assert torch.equal(images.images, torch.from_numpy(np.ascontiguousarray(expected)))
    assert images.labels.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2]
    assert images.note == "12 of 73,257 training images"


def test_labels_may_be_doubles_and_lie_in_a_row(tmp_path):
    tables = svhn_tables(0, 4)
    tables["y"] = tables["y"].T.astype(np.float64)
    (tmp_path / TRAIN).write_bytes(mat({"other": np.ones(3), **tables}))
    assert load("svhn", tmp_path, "train").labels.tolist() == [1, 2, 3, 4]


def test_packed_and_plain_are_the_same_data(tmp_path):
    svhn(tmp_path / "plain", packed=False)
    release = as_release("svhn", tmp_path / "plain")
    svhn(tmp_path / "packed", packed=True)
    assert load(release, tmp_path / "packed", "test").complete


def test_missing_files_are_named(tmp_path):
    assert "classgrad data fetch svhn" in refused(tmp_path, TRAIN)


def changed(**changes):
    return {**svhn_tables(0, 4), **changes}


LABELS = svhn_tables(0, 4)["y"]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("tables", "match"),
    [
        (changed(y=LABELS[:3]), "3 labels for 4 images"),
        (changed(y=LABELS * 0), "from 1 to 10"),
        (changed(y=LABELS + 7), "from 1 to 10"),
        (changed(y=LABELS + 0.5), "from 1 to 10"),
        (changed(y=np.full((4, 1), np.nan)), "from 1 to 10"),
        (changed(X=np.zeros((28, 28, 3, 4), np.uint8)), "28 x 28 x 3 x 4"),
        (changed(X=np.zeros((32, 32, 3, 0), np.uint8)), "32 x 32 x 3 x 0"),
        (changed(X=np.zeros((32, 32, 3, 4))), "X is not an array of plain numbers"),
        (changed(X=np.zeros((32, 32, 3, 4), np.int8)), "X is not an array of plain numbers"),
        (changed(X={"a": 1}), "X is not an array of plain numbers"),
        (changed(X=np.array([1, "a"], object)), "X is not an array of plain numbers"),
        (changed(X="text"), "X is not an array of plain numbers"),
        (changed(y=LABELS.astype(complex)), "y is not an array of plain numbers"),
        (changed(y=LABELS.astype(bool)), "y is not an array of plain numbers"),
        ({"X": svhn_tables(0, 4)["X"]}, "variables X and y"),
        ({"z": np.ones(3)}, "variables X and y"),
    ],
)
def test_wrong_variables_are_refused(tmp_path, tables, match, packed):
    (tmp_path / TRAIN).write_bytes(mat(tables, packed))
    assert TRAIN in refused(tmp_path, match)


SOUND = mat(svhn_tables(0, 4))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "version 5"),
        (SOUND[:60], "version 5"),
        (SOUND[:-1], "too early"),
        (SOUND[:2000], "too early"),
        (SOUND + b"more", "too early"),
        (SOUND[:124] + b"\x00\x02IM" + SOUND[128:], "7.3"),
        (SOUND[:124] + b"\x01\x00MI" + SOUND[128:], "version 5"),
        (b"\x89HDF\r\n\x1a\n" + bytes(600), "version 5"),
        (b"<html>" + b" " * 600, "version 5"),
        (SOUND[:300] + bytes(50) + SOUND[350:], "MATLAB"),
    ],
)
def test_damaged_files_are_refused(tmp_path, content, match):
    (tmp_path / TRAIN).write_bytes(content)
    refused(tmp_path, match)


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def variable(name, shape, length, matlab_class=9):
    """Return the beginning of a variable which announces `length` bytes."""
    return (
        element(6, struct.pack("<II", matlab_class, 0))
        + element(5, struct.pack(f"<{len(shape)}i", *shape))
        + element(1, name)
        + struct.pack("<II", 2, length)
    )


@pytest.mark.parametrize(
    ("shape", "announced"),
    [
        ((32, 32, 3, 2**31 - 1), 2**32 - 64),
        ((32, 32, 3, 100_000), 307_200_000),
        ((2**31 - 1,) * 4, 64),
        ((32, 32, 3, 4), 2**32 - 64),
        ((-32, -32, 3, 4), 12288),
        ((1,) * 40, 1),
    ],
)
@pytest.mark.parametrize("bomb", [False, True])
def test_announced_sizes_are_not_believed(tmp_path, shape, announced, bomb):
    start = variable(b"X", shape, announced)
    whole = struct.pack("<II", 14, min(announced + len(start), 2**32 - 1)) + start
    if bomb:
        whole = zlib.compress(whole + bytes(64 * 2**20))
        whole = struct.pack("<II", 15, len(whole)) + whole
    (tmp_path / TRAIN).write_bytes(SOUND[:128] + whole)
    tracemalloc.start()
    refused(tmp_path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


@pytest.mark.parametrize("length", [48, 255, 256, 300])
def test_a_packed_variable_longer_than_it_announces_is_not_unpacked(tmp_path, length):
    """The first 264 bytes are unpacked to see what it is; more only if more is announced."""
    start = variable(b"y", (1, 300), 300)
    packed = zlib.compress(struct.pack("<II", 14, length) + start + bytes(64 * 2**20))
    (tmp_path / TRAIN).write_bytes(SOUND[:128] + struct.pack("<II", 15, len(packed)) + packed)
    tracemalloc.start()
    refused(tmp_path, "truncated or too long")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


@settings(max_examples=300, deadline=None)
@given(st.data(), st.booleans())
def test_mutations_load_or_are_refused(data, packed):
    content = data.draw(mutated(mat(svhn_tables(0, 2), packed)))
    try:
        images = reader.decode([(Path(TRAIN), content)], DATASETS["svhn"], "train")
    except UserError as error:
        one_line(error)
    else:
        assert images.images.shape == (len(images), 3, 32, 32)
        assert images.labels.max() < 10
