import contextlib
import pickle
import struct
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from PIL import Image

from classgrad.cli.options import error_message
from classgrad.data import DATASETS, load
from classgrad.data import notmnist as reader
from classgrad.errors import UserError
from data.datafiles import as_release, mutated, notmnist, one_line, pixels, png


def refused(root, match=None, name="notmnist", split="train"):
    with pytest.raises(UserError, match=match) as caught:
        load(name, root, split)
    one_line(caught.value)
    return error_message(caught.value)


def test_folders_of_letters(tmp_path):
    folder = notmnist(tmp_path)
    (folder / "Train" / "A" / "Thumbs.db").write_bytes(b"passed over")
    (folder / "Train" / "A" / ".hidden.png").write_bytes(b"passed over")
    for empty in reader.EMPTY:
        (folder / "Train" / empty).write_bytes(b"")
    images = load("notmnist", tmp_path, "train")
    expected = np.stack([pixels(10 * row + n, 28, 28) for row in range(10) for n in range(2)])
    assert torch.equal(images.images[:, 0], torch.from_numpy(expected))
    assert images.labels.tolist() == [row for row in range(10) for _ in range(2)]
    assert images.class_names == tuple("ABCDEFGHIJ")
    assert images.status == "subset"
    assert images.note.startswith("20 of 16,854 training images")
    assert "not that of GPM and CGP" in images.note


def test_another_packing_is_the_same_data(tmp_path):
    folder = notmnist(tmp_path)
    release = as_release("notmnist", tmp_path)
    for path in folder.glob("*/*/*.png"):
        with Image.open(path) as image:
            image.load()
        image.save(path, "PNG", compress_level=0, dpi=(72, 72))
    assert load(release, tmp_path, "test").complete


def test_few_shades_are_grey_too(tmp_path):
    path = notmnist(tmp_path) / "Train" / "A" / "TrainA0.png"
    black = np.zeros((28, 28), bool)
    black[3:9] = True
    path.write_bytes(png(black))
    assert torch.equal(
        load("notmnist", tmp_path).images[0, 0], torch.from_numpy(black.astype(np.uint8) * 255)
    )


def test_missing_letters_are_named(tmp_path):
    assert "classgrad data fetch notmnist" in refused(tmp_path, "Train/A")
    folder = notmnist(tmp_path)
    for path in (folder / "Train" / "J").iterdir():
        path.unlink()
    (folder / "Train" / "J").rmdir()
    refused(tmp_path, "Train/J")


def test_folders_without_images_are_missing(tmp_path):
    folder = notmnist(tmp_path)
    for path in folder.glob("Train/*/*.png"):
        path.unlink()
    refused(tmp_path, "missing")


def test_more_than_the_release_is_refused(tmp_path):
    folder = notmnist(tmp_path)
    release = as_release("notmnist", tmp_path)
    (folder / "Train" / "B" / "more.png").write_bytes(png(pixels(0, 28, 28)))
    refused(tmp_path, "21 files where notMNIST has 20", release)


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def chunk(kind, content):
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def picture(width=28, height=28, depth=8, colour=0, rows=None, interlace=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlace)
    rows = zlib.compress(bytes(29 * 28)) if rows is None else rows
    return SIGNATURE + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


SOUND = png(pixels(5, 28, 28))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "it is empty"),
        (b"GIF89a", "not a PNG file"),
        (SOUND[:20], "28, not 28 x 28"),
        (SOUND[:-13], "truncated or damaged"),
        (SOUND[:40], "truncated or damaged"),
        (SOUND[:60] + bytes([SOUND[60] ^ 1]) + SOUND[61:], "truncated or damaged"),
        (png(pixels(0, 32, 32)), "32 x 32, not 28 x 28"),
        (png(pixels(0, 28, 28, 3)), "shades of grey"),
        (png(pixels(0, 28, 28).astype(np.uint16)), "shades of grey"),
        (picture(width=2**31 - 1, height=2**31 - 1), "2147483647"),
        (picture(colour=3), "shades of grey"),
        (picture(interlace=1), "shades of grey"),
        (picture(rows=b""), "truncated or damaged"),
        (picture(rows=zlib.compress(bytes(29 * 28))[:-8]), "truncated or damaged"),
        (picture(rows=b"not deflated"), "truncated or damaged"),
        (SIGNATURE + chunk(b"IEND", b""), "not a PNG file"),
        (SIGNATURE + chunk(b"IDAT", b"") + chunk(b"IEND", b""), "not a PNG file"),
        (SOUND[:33] + chunk(b"IEND", b""), "truncated or damaged"),
        (b"x" * (64 * 2**10 + 1), "more than"),
    ],
)
def test_wrong_pictures_are_refused(tmp_path, content, match):
    path = notmnist(tmp_path) / "Train" / "C" / "TrainC1.png"
    path.write_bytes(content)
    assert path.name in refused(tmp_path, match)


def test_rows_that_no_file_of_the_release_lacks_are_black(tmp_path):
    """All checksums in the file are right, so nothing is damaged; but it is not the release."""
    release = as_release("notmnist", notmnist(tmp_path).parent)
    rows = zlib.compress((b"\0" + b"\xff" * 28) * 20)
    (tmp_path / "notMNIST" / "Train" / "A" / "TrainA0.png").write_bytes(picture(rows=rows))
    images = load(release, tmp_path, "train")
    assert (images.images[0, 0, :20] == 255).all()
    assert (images.images[0, 0, 20:] == 0).all()
    assert images.status == "other"
    assert "pixels differ from the release" in images.note


def test_other_chunks_change_no_pixel():
    text = chunk(b"zTXt", b"a\0\0" + zlib.compress(b"words"))
    image = reader.read_png(SOUND[:33] + text + SOUND[33:], (28, 28))
    assert np.array_equal(image, pixels(5, 28, 28))


@pytest.mark.parametrize("kind", [b"zTXt", b"iCCP", b"IDAT"])
def test_what_unpacks_to_much_takes_little_memory(kind):
    head = b"" if kind == b"IDAT" else b"a\0\0"
    bomb = chunk(kind, head + zlib.compress(bytes(2**26)))
    tracemalloc.start()
    with contextlib.suppress(reader.Unreadable):
        reader.read_png(SOUND[:33] + bomb + SOUND[33:], (28, 28))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * 2**20


@settings(max_examples=200, deadline=None)
@given(mutated(SOUND))
def test_mutations_load_or_are_refused(content):
    try:
        images = reader.decode([(Path("A/x.png"), content)], DATASETS["notmnist"], "train")
    except UserError as error:
        one_line(error)
    else:
        assert np.array_equal(images.images[0, 0], pixels(5, 28, 28))


def packed(root, **changes):
    table = {"features": pixels(1, 5, 1, 32, 32), "labels": np.array([0, 9, 3, 4, 5], np.uint8)}
    (root / "notmnist").mkdir(exist_ok=True)
    for split in ("train", "test"):
        content = pickle.dumps({**table, **changes}, protocol=4)
        (root / "notmnist" / f"notmnist_{split}.pkl").write_bytes(content)
    return table


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.int64])
def test_pickles_of_hat(tmp_path, dtype):
    features = pixels(1, 5, 1, 32, 32)
    table = packed(tmp_path, features=features.astype(dtype))
    images = load("notmnist32", tmp_path, "test")
    assert torch.equal(images.images, torch.from_numpy(features))
    assert images.labels.tolist() == table["labels"].tolist()
    assert images.note == "5 of 1,873 test images"


def test_pickles_of_hat_have_no_checksum(tmp_path):
    packed(tmp_path, features=pixels(1, 1873, 1, 32, 32), labels=np.zeros(1873, np.uint8))
    images = load("notmnist32", tmp_path, "test")
    assert images.status == "other"
    assert "no checksum of it is known" in images.note


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"features": [1]}, "no array of features"),
        ({"features": pixels(1, 5, 1, 28, 28)}, "5 x 1 x 28 x 28"),
        ({"features": np.full((5, 1, 32, 32), np.nan)}, "from 0 to 255"),
        ({"features": np.full((5, 1, 32, 32), np.inf)}, "from 0 to 255"),
        ({"features": np.full((5, 1, 32, 32), 0.5)}, "from 0 to 255"),
        ({"labels": np.full(5, 10)}, "from 0 to 9"),
        ({"labels": np.zeros(4, np.uint8)}, "4 labels for 5 images"),
        ({"labels": np.zeros((5, 1), np.uint8)}, "5 x 1"),
        ({"labels": np.array([print] * 5)}, "asks for|not of plain numbers"),
    ],
)
def test_wrong_pickles_are_refused(tmp_path, changes, match):
    packed(tmp_path, **changes)
    assert "notmnist_train.pkl" in refused(tmp_path, match, "notmnist32")


def test_missing_pickles_tell_where_to_get_them(tmp_path):
    message = refused(tmp_path, "notmnist_train.pkl", "notmnist32")
    assert DATASETS["notmnist32"].by_hand in message
