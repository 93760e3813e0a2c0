import io
import os
import struct
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from importlib.util import find_spec
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from classgrad.data import pictures as reading
from classgrad.data.pictures import (
    as_pictures,
    read_class_folders,
    read_picture,
    read_pictures,
    try_pictures,
)
from classgrad.errors import UserError
from data.datafiles import pixels

SUFFIXES = ["avif", "bmp", "gif", "jpg", "png", "ppm", "tif", "webp"]
RED, WHITE, BLACK = [255, 0, 0], [255, 255, 255], [0, 0, 0]


def refused(call, *given, match=None, **options):
    with pytest.raises(UserError, match=match) as caught:
        call(*given, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


def saved(path, image, **options):
    """Write a picture (an array, or one of Pillow) and return its path."""
    image = Image.fromarray(image) if isinstance(image, np.ndarray) else image
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def plain(path, colour="red", size=(6, 4)):
    return saved(path, Image.new("RGB", size, colour))


def at(picture, row, column):
    return picture[:, row, column].tolist()


# One picture


@pytest.mark.parametrize("suffix", ["bmp", "png", "ppm", "tif"])
def test_a_picture_of_the_right_size_is_read_as_it_is(tmp_path, suffix):
    image = pixels(1, 5, 5, 3)
    picture = read_picture(saved(tmp_path / f"x.{suffix}", image), 5)
    assert picture.dtype == torch.uint8
    assert torch.equal(picture, torch.from_numpy(image).permute(2, 0, 1))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_format_is_read_and_scaled_to_a_square(tmp_path, suffix):
    image = Image.new("RGB", (40, 20), "red")
    image.paste("blue", (20, 0, 40, 20))
    picture = read_picture(saved(tmp_path / f"x.{suffix}", image), 10)
    assert picture.shape == (3, 10, 10)
    for column, colour in ((1, RED), (8, [0, 0, 255])):
        assert np.abs(np.array(at(picture, 5, column)) - colour).max() <= 3


def test_scaling_is_bilinear_over_all_pixels(tmp_path):
    image = Image.fromarray(pixels(2, 30, 20, 3))
    expected = np.array(image.resize((8, 8), Image.Resampling.BILINEAR))
    picture = read_picture(saved(tmp_path / "x.png", image), 8)
    assert torch.equal(picture, torch.from_numpy(expected).permute(2, 0, 1))


@pytest.mark.parametrize("mode", ["L", "1"])
@pytest.mark.parametrize("suffix", ["png", "tif", "bmp"])
def test_grey_and_black_and_white_become_equal_colours(tmp_path, mode, suffix):
    grey = Image.fromarray(np.array([[0, 255], [255, 0]], np.uint8)).convert(mode)
    picture = read_picture(saved(tmp_path / f"x.{suffix}", grey), 2)
    assert picture.tolist() == [[[0, 255], [255, 0]]] * 3


@pytest.mark.parametrize(
    ("suffix", "order"), [("png", "<"), ("pgm", "<"), ("tif", "<"), ("tif", ">")]
)
def test_grey_of_16_bits_keeps_its_upper_8(tmp_path, suffix, order):
    grey = np.array([[0, 255], [256, 65535]], f"{order}u2")
    picture = read_picture(saved(tmp_path / f"x.{suffix}", grey), 2)
    assert picture.tolist() == [[[0, 0], [1, 255]]] * 3


@pytest.mark.parametrize(
    ("kind", "message"), [(np.float32, "floats"), (np.int32, "more than 16 bits")]
)
def test_pixels_of_no_known_range_are_refused(tmp_path, kind, message):
    path = saved(tmp_path / "x.tif", np.full((2, 2), 70_000, kind))
    refused(read_picture, path, 2, match=f"x.tif' .* {message}")


@pytest.mark.parametrize("mode", ["RGBA", "LA"])
def test_what_is_transparent_shows_white(tmp_path, mode):
    layers = np.zeros((2, 2, 4), np.uint8)
    layers[..., 3] = [[0, 255], [128, 51]]
    clear = Image.fromarray(layers).convert(mode)
    picture = read_picture(saved(tmp_path / "x.png", clear), 2)
    assert picture.tolist() == [[[255, 0], [127, 204]]] * 3


@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_a_palette_is_looked_up(tmp_path, suffix):
    picture = read_picture(saved(tmp_path / f"x.{suffix}", _palette()), 2)
    assert [at(picture, 0, 0), at(picture, 0, 1), at(picture, 1, 0)] == [RED, [0, 255, 0], BLACK]


@pytest.mark.parametrize("suffix", ["png", "gif"])
def test_the_transparent_entry_of_a_palette_shows_white(tmp_path, suffix):
    picture = read_picture(saved(tmp_path / f"x.{suffix}", _palette(), transparency=1), 2)
    assert [at(picture, 0, 0), at(picture, 0, 1), at(picture, 1, 0)] == [RED, WHITE, BLACK]


def _palette():
    image = Image.fromarray(np.array([[0, 1], [2, 2]], np.uint8)).convert("P")
    image.putpalette([*RED, 0, 255, 0, *BLACK])
    return image


def test_a_transparent_colour_shows_white(tmp_path):
    image = np.array([[RED, BLACK]], np.uint8)
    picture = read_picture(saved(tmp_path / "x.png", image, transparency=(255, 0, 0)), 2)
    assert [at(picture, 0, 0), at(picture, 0, 1)] == [WHITE, BLACK]


@pytest.mark.parametrize("suffix", ["tif", "jpg"])
def test_colours_of_print_become_those_of_a_screen(tmp_path, suffix):
    magenta_and_yellow = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    picture = read_picture(saved(tmp_path / f"x.{suffix}", magenta_and_yellow), 2)
    assert at(picture, 0, 0) == RED


# What stands at the corners of a picture once it is upright, from the top left by rows, by where
# the camera wrote them: 0 1 / 2 3.
UPRIGHT = {1: "0123", 2: "1032", 3: "3210", 4: "2301", 5: "0213", 6: "2031", 7: "3120", 8: "1302"}


@pytest.mark.parametrize(("number", "corners"), UPRIGHT.items())
@pytest.mark.parametrize("suffix", ["avif", "png", "tif", "webp"])
def test_pictures_are_turned_as_the_camera_says(tmp_path, number, corners, suffix):
    image = Image.fromarray(np.array([[0, 60], [120, 180]], np.uint8)).convert("RGB")
    exif = image.getexif()
    exif[0x0112] = number
    exact = {"webp": {"lossless": True}, "avif": {"quality": 100}}
    options = exact.get(suffix, {})
    picture = read_picture(saved(tmp_path / f"x.{suffix}", image, exif=exif, **options), 2)
    assert picture[0].flatten().tolist() == [60 * int(corner) for corner in corners]


def test_remarks_of_the_camera_that_make_no_sense_do_no_harm(tmp_path):
    image = Image.new("RGB", (8, 4), "red")
    exif = image.getexif()
    exif[0x0112] = 6
    exif[0x011A] = 1.5  # a resolution, of type 5; made a type 2, text, it cannot be written again
    raw = exif.tobytes().replace(b"\x01\x1a\x00\x05", b"\x01\x1a\x00\x02")
    assert raw != exif.tobytes()
    assert at(read_picture(saved(tmp_path / "x.png", image, exif=raw), 2), 0, 0) == RED


@pytest.mark.parametrize("suffix", ["avif", "gif", "tif", "webp", "png"])
def test_the_first_picture_of_several_is_read(tmp_path, suffix):
    first, second = Image.new("RGB", (4, 4), "red"), Image.new("RGB", (4, 4), "blue")
    path = saved(tmp_path / f"x.{suffix}", first, save_all=True, append_images=[second])
    assert np.abs(np.array(at(read_picture(path, 2), 0, 0)) - RED).max() <= 3


def test_two_pictures_that_a_telephone_joins_are_read_as_the_first(tmp_path):
    first, second = Image.new("RGB", (8, 8), "black"), Image.new("RGB", (8, 8), "white")
    path = saved(tmp_path / "x.jpg", first, format="MPO", save_all=True, append_images=[second])
    assert at(read_picture(path, 2), 0, 0) == BLACK


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_truncated_picture_is_refused(tmp_path, suffix):
    path = saved(tmp_path / f"x.{suffix}", pixels(3, 60, 60, 3))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    refused(read_picture, path, 8, match=f"x.{suffix}' is not an image that can be read: ")


@pytest.mark.parametrize("content", [b"", b"hello\n", b"\x00\x00\x00\x18ftypheic" + bytes(40)])
def test_other_files_are_refused_with_the_formats_that_are_read(tmp_path, content):
    (tmp_path / "x.jpg").write_bytes(content)
    refused(read_picture, tmp_path / "x.jpg", 8, match="x.jpg' .* AVIF, BMP, .* or WebP$")


HEICS = Path(__file__).parent / "heic"
LARGE_HEIC = Path(__file__).parent / "large.heic"
QUARTERS = [(220, 30, 30), (30, 200, 40), (40, 60, 210), (240, 230, 60)]


@pytest.mark.parametrize("name", ["plain", "alpha", "turned"])
def test_heic_is_read(name):
    """Whatever EXIF says: in this format it does not turn pictures."""
    pytest.importorskip("pillow_heif")
    path = HEICS / f"{name}.heic"
    picture = read_picture(path, 8).permute(1, 2, 0)
    corners = [picture[row, column] for row in (1, 6) for column in (1, 6)]
    for corner, colour in zip(corners, QUARTERS, strict=True):
        assert (corner - torch.tensor(colour)).abs().max() < 6
    assert torch.equal(as_pictures([path.read_bytes()] * 5, 8)[4].permute(1, 2, 0), picture)


def test_without_the_package_heic_is_refused_with_what_to_do(monkeypatch, tmp_path):
    monkeypatch.setattr(reading, "formats", lambda: tuple(reading.PLUGINS))
    path = HEICS / "plain.heic"
    refused(read_picture, path, 8, match=r"it is HEIC: pip install 'classgrad\[heic\]'$")
    avif = saved(tmp_path / "x.avif", pixels(3, 60, 60, 3))
    expected = read_picture(avif, 8)
    avif.write_bytes(avif.read_bytes().replace(b"ftypavif", b"ftypmif1"))  # a brand of both
    assert torch.equal(read_picture(avif, 8), expected)
    monkeypatch.undo()
    monkeypatch.setattr(reading, "find_spec", lambda name: None)
    assert reading.HEIC not in reading.formats.__wrapped__()


def test_a_damaged_file_that_pillow_stumbles_over_is_refused(tmp_path):
    path = plain(tmp_path / "x.tif")
    place_of_pixels = struct.pack("<HH", 273, 4)
    assert path.read_bytes().count(place_of_pixels) == 1
    as_fraction = struct.pack("<HH", 273, 11)
    path.write_bytes(path.read_bytes().replace(place_of_pixels, as_fraction))
    refused(read_picture, path, 8, match="x.tif' is not an image that can be read: 'float' object")


def test_too_many_pixels_are_refused_before_they_are_read(tmp_path):
    path = tmp_path / "x.png"
    many = "5101 x 10000 pixels are too many for a PNG: 51 million can be decoded; scale it down"
    refused(read_picture, written(path, png_start(5101, 10_000)), 8, match=f"' .* {many} first$")
    refused(read_picture, written(path, png_start(5100, 10_000)), 8, match="truncated")


def png_start(width, height):
    """Return the beginning of a black and white PNG."""
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)), (b"IDAT", b"")]
    parts = [
        struct.pack(">I", len(content)) + kind + content + struct.pack(">I", crc32(kind + content))
        for kind, content in chunks
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


@pytest.mark.parametrize("kind", ["AVIF", "JPEG", "MPO", "TIFF", "WEBP"])
def test_formats_whose_decoders_take_more_memory_may_have_half_as_many_pixels(kind):
    image = Image.new("1", (5001, 5000))
    image.format = kind
    refused(as_pictures, image, 8, match=f"too many for a {kind}: 25 million can be decoded; scale")


def test_a_picture_so_high_that_scaling_it_would_take_too_much_memory_is_refused(tmp_path):
    path = saved(tmp_path / "x.png", Image.new("1", (2, 400_000)))
    refused(read_picture, path, 128, match="2 x 400000 pixels are too many for a picture of these")
    assert read_picture(path, 8).unique().tolist() == [0]
    wide = saved(tmp_path / "wide.png", Image.new("1", (400_000, 2)))
    assert read_picture(wide, 128).unique().tolist() == [0]


@pytest.mark.parametrize("turn", UPRIGHT)
@pytest.mark.parametrize("mode", ["1", "CMYK", "I;16", "L", "LA", "P", "RGB", "RGBA"])
def test_a_picture_that_is_converted_in_strips_has_the_same_pixels(monkeypatch, mode, turn):
    rng = np.random.default_rng(turn)
    grey16 = rng.integers(0, 2**16, (23, 31)).astype(np.uint16)
    colours = Image.fromarray(rng.integers(0, 256, (23, 31, 4), dtype=np.uint8))
    image = Image.fromarray(grey16) if mode == "I;16" else colours.convert(mode)
    if mode in ("P", "RGB"):
        image.info["transparency"] = 3 if mode == "P" else colours.getpixel((0, 0))[:3]
    image.getexif()[0x0112] = turn
    whole = as_pictures(image, 8)
    assert whole.float().std() > 5
    for strip in (1, 100, 31 * 22):
        monkeypatch.setattr(reading, "STRIP", strip)
        assert torch.equal(as_pictures(image, 8), whole)


def test_large_pictures_are_decoded_one_at_a_time(tmp_path, monkeypatch):
    busy, most = [], []
    upright = reading._upright

    def observed(image):
        busy.append(None)
        time.sleep(0.005)
        most.append(len(busy))
        busy.pop()
        return upright(image)

    images = [pixels(number, 30, 20, 3) for number in range(8)]
    paths = [saved(tmp_path / f"{number}.png", image) for number, image in enumerate(images)]
    photo = photograph(200, 160)
    paths += [
        saved(tmp_path / f"{number}.jpg", photo, progressive=True, quality=50 + number)
        for number in range(8)
    ]
    monkeypatch.setattr(reading, "THREADS", 4)
    monkeypatch.setattr(reading, "_upright", observed)
    expected = as_pictures(paths, 8)
    assert max(most) > 1
    most.clear()
    monkeypatch.setattr(reading, "MAX_PIXELS_AT_ONCE", 599)
    monkeypatch.setattr(reading, "LESS_PIXELS", ())
    assert torch.equal(as_pictures(paths[:8], 8), expected[:8])
    monkeypatch.setattr(reading, "MAX_PIXELS_AT_ONCE", 31_000)
    assert torch.equal(as_pictures(paths[8:], 8), expected[8:])
    assert most == [1] * 16


# Large JPEGs


def photograph(width, height, seed=1):
    """Make a picture with large and small things in it, and a little grain."""
    rng = np.random.default_rng(seed)
    channels = []
    for _ in range(3):
        layers = [rng.normal(0, 25, (edge, edge)).astype(np.float32) for edge in (4, 16, 64, 256)]
        sizes = ((width, height),) * len(layers)
        spread = [
            Image.fromarray(layer).resize(to) for layer, to in zip(layers, sizes, strict=True)
        ]
        channels.append(sum(np.asarray(layer) for layer in spread))
    grain = rng.normal(0, 5, (height, width, 1))
    return np.clip(np.stack(channels, -1) + grain + 128, 0, 255).astype(np.uint8)


def decoded_in_full(path, size):
    """Return what Pillow makes of a file at its full size."""
    with Image.open(path) as image:
        scaled = ImageOps.exif_transpose(image).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(scaled)).permute(2, 0, 1)


def segment(marker, content):
    return bytes((0xFF, marker)) + struct.pack(">H", len(content) + 2) + content


BASELINE, PROGRESSIVE, LOSSLESS = 0xC0, 0xC2, 0xC3


def grey_jpeg(width, height, frame=BASELINE, components=1, scans=1):
    """Return a grey JPEG that takes few bits per pixel, so that even a huge one is made quickly.

    All differences are zero, and the code of a zero is one bit, 0.
    """
    table = bytes((1, *[0] * 15, 0))
    tables = b"".join(segment(0xC4, bytes((kind,)) + table) for kind in (0x00, 0x10))
    numbers = range(1, components + 1)
    about = b"".join(bytes((number, 0x11, 0)) for number in numbers)
    frame_segment = segment(frame, struct.pack(">BHHB", 8, height, width, components) + about)
    # Coefficients 0 to 63; of a progressive one only coefficient 0; for a lossless one predictor 1.
    last = {BASELINE: (0, 63, 0), PROGRESSIVE: (0, 0, 0), LOSSLESS: (1, 0, 0)}[frame]
    blocks = -(-width // 8) * -(-height // 8)
    bits = {BASELINE: 2 * blocks, PROGRESSIVE: blocks, LOSSLESS: width * height}[frame]
    per_scan = components // scans
    parts = [b"\xff\xd8", segment(0xDB, bytes((0, *[1] * 64))), frame_segment, tables]
    for scan in range(scans):
        inside = numbers[scan * per_scan : (scan + 1) * per_scan]
        chosen = b"".join(bytes((number, 0)) for number in inside)
        parts.append(segment(0xDA, bytes((per_scan,)) + chosen + bytes(last)))
        parts.append(bytes(bits * per_scan // 8 + 1))
    return b"".join((*parts, b"\xff\xd9"))


def written(path, content):
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("turn", range(1, 9))
def test_a_large_jpeg_is_nearly_what_its_full_size_gives(tmp_path, turn, progressive):
    image = Image.fromarray(photograph(1001, 803))
    exif = image.getexif()
    exif[0x0112] = turn
    options = {"quality": 90, "progressive": progressive, "exif": exif}
    path = saved(tmp_path / "x.jpg", image, **options)
    difference = read_picture(path, 100).float() - decoded_in_full(path, 100).float()
    # With the last row and column not cut at the edge of the picture it is 2.7 and 22.
    assert 0.3 < difference.abs().mean() < 0.8
    assert 2 <= difference.abs().max() <= 8
    assert difference.mean().abs() < 0.1


@pytest.mark.parametrize(
    ("size", "differs"), [((512, 512), True), ((511, 900), False), ((900, 511), False)]
)
def test_a_jpeg_of_less_than_four_times_the_size_is_decoded_in_full(tmp_path, size, differs):
    path = saved(tmp_path / "x.jpg", photograph(*size))
    assert torch.equal(read_picture(path, 128), decoded_in_full(path, 128)) != differs


@pytest.mark.parametrize(
    ("size", "decoded"),
    [
        ((63, 64), (63, 64)),
        ((64, 64), (32, 32)),
        ((127, 200), (64, 100)),
        ((200, 129), (50, 33)),
        ((255, 256), (64, 64)),
        ((256, 257), (32, 33)),
        ((9000, 256), (1125, 32)),
        ((256, 9000), (32, 1125)),
    ],
)
def test_what_is_decoded_has_at_least_twice_the_size(tmp_path, monkeypatch, size, decoded):
    seen = []
    resize = Image.Image.resize

    def observed(image, *given, **options):
        seen.append(image.size)
        return resize(image, *given, **options)

    monkeypatch.setattr(Image.Image, "resize", observed)
    content = grey_jpeg(*size, components=3)
    assert read_picture(written(tmp_path / "x.jpg", content), 16).unique().tolist() == [128]
    assert seen == [decoded]


def test_a_jpeg_that_cannot_be_decoded_smaller_is_read_in_full(tmp_path):
    content = grey_jpeg(800, 600, LOSSLESS)
    assert read_picture(written(tmp_path / "x.jpg", content), 8).unique().tolist() == [128]
    # A marker may be padded, and junk may come before one.
    for junk in (b"\xff", b"junk"):
        padded = grey_jpeg(80, 60).replace(b"\xff\xc0", junk + b"\xff\xc0")
        assert read_picture(written(tmp_path / "x.jpg", padded), 8).unique().tolist() == [128]


def test_a_damaged_large_jpeg_is_refused(tmp_path):
    content = grey_jpeg(800, 600, components=3)
    for length in (3, 4, 30, 100, 200, 240, 300, len(content) // 2):
        path = written(tmp_path / "x.jpg", content[:length])
        refused(read_picture, path, 8, match="x.jpg' is not an image that can be read: ")
    path = written(tmp_path / "x.jpg", content.replace(b"\xff\xdb", b"\xff\xfe"))
    refused(read_picture, path, 8, match="broken data stream")  # as it has no factors


def test_a_jpeg_of_one_scan_may_have_205_million_pixels(tmp_path):
    path = written(tmp_path / "x.jpg", grey_jpeg(16384, 12288))
    assert read_picture(path, 8).unique().tolist() == [128]
    path = written(tmp_path / "x.jpg", grey_jpeg(16384, 12513)[:400])
    refused(read_picture, path, 8, match="16384 x 12513 .* too many for a JPEG: 205 million")
    path = written(tmp_path / "x.jpg", grey_jpeg(16384, 12512)[:400])
    refused(read_picture, path, 8, match="truncated")
    path = written(tmp_path / "x.jpg", grey_jpeg(65535, 2)[:400].replace(b"\0\2\xff", b"\xff" * 3))
    refused(read_picture, path, 8, match="65535 x 65535 pixels are too many")


def test_a_jpeg_of_several_scans_may_have_51_million_pixels(tmp_path):
    for options in ({"frame": PROGRESSIVE}, {"components": 3, "scans": 3}):
        path = written(tmp_path / "x.jpg", grey_jpeg(5100, 10_000, **options))
        assert read_picture(path, 8).unique().tolist() == [128]
        path = written(tmp_path / "x.jpg", grey_jpeg(5101, 10_000, **options)[:400])
        refused(read_picture, path, 8, match="too many for a progressive JPEG: 51 million can be")


def test_a_jpeg_may_not_have_more_than_25_million_pixels_once_it_is_decoded(tmp_path):
    path = written(tmp_path / "x.jpg", grey_jpeg(50_000, 1024)[:400])
    refused(read_picture, path, 512, match="50000 x 1024 .* for a JPEG of these proportions: 25 ")
    path = written(tmp_path / "x.jpg", grey_jpeg(50_000, 2048)[:400])
    refused(read_picture, path, 512, match="50000 x 2048 .* for a JPEG of these proportions: 25 ")
    assert read_picture(written(path, grey_jpeg(50_000, 1024)), 64).unique().tolist() == [128]


PEAK = """
import os, re, sys
from pathlib import Path
from classgrad.data.pictures import read_picture

def highest():
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

count, *paths = sys.argv[1:]
for path in paths[:int(count)]:
    read_picture(path, 128)
for path in paths[int(count):]:
    if not os.fork():  # a process for each, as memory that one frees is not always given back
        Path("/proc/self/clear_refs").write_text("5")  # what was highest until now is forgotten
        before = highest()
        read_picture(path, 128)
        print((highest() - before) / 1024, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def peaks(tmp_path_factory):
    """Return how many megabytes it takes to read each of some large pictures."""
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    folder = tmp_path_factory.mktemp("large")
    first = [plain(folder / "first.png")]
    contents = {
        "baseline": grey_jpeg(16384, 12288, components=3),
        "progressive": grey_jpeg(5100, 10_000, PROGRESSIVE, components=3),
    }
    paths = {name: written(folder / name, content) for name, content in contents.items()}
    red, turned = Image.new("RGBA", (4000, 2500), (200, 0, 0, 50)), Image.Exif()
    turned[0x0112] = 6
    for mode, name in (("RGBA", "clear"), ("RGB", "turned"), ("P", "palette")):
        image = red if mode == "RGBA" else red.convert("RGB").convert(mode)
        paths[name] = saved(folder / f"{name}.png", image, exif=turned, compress_level=1)
    if find_spec("pillow_heif"):
        first.append(HEICS / "plain.heic")
        paths["heic"] = LARGE_HEIC
    command = [sys.executable, "-c", PEAK, str(len(first)), *first, *paths.values()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, capture_output=True, check=True, text=True, env=environment)
    return dict(zip(paths, map(float, ended.stdout.split()), strict=True))


def test_large_jpegs_take_little_memory(peaks):
    assert 10 < peaks["baseline"] < 50  # 3.2 million pixels of 4 bytes, as an eighth is decoded
    assert 290 < peaks["progressive"] < 340  # 153 million coefficients of 2 bytes


def test_a_picture_is_held_twice_at_most_whatever_has_to_be_done_with_it(peaks):
    per_pixel = {name: megabytes * 2**20 / 10_000_000 for name, megabytes in peaks.items()}
    assert 7 < per_pixel["clear"] < 10.5
    assert 7 < per_pixel["turned"] < 10.5
    assert 4 < per_pixel["palette"] < 7.5


def test_a_heic_of_48_megapixels_is_read_in_bounded_memory(peaks):
    pytest.importorskip("pillow_heif")
    picture = read_picture(LARGE_HEIC, 8)  # 8064 x 6048
    assert (picture[:, 1, 6] - torch.tensor([20, 200, 40])).abs().max() < 6
    assert (picture[:, 6, 6] - torch.tensor([200, 40, 40])).abs().max() < 6
    assert 250 < peaks["heic"] < 400


def test_what_is_no_file_is_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    refused(read_picture, tmp_path / "pipe.png", 8, match="pipe.png' .* not a file")
    refused(read_picture, tmp_path, 8, match="not a file")
    refused(read_picture, str(tmp_path / "none.png"), 8, match="none.png' .* No such file")
    refused(read_picture, "a\0b.png", 8, match="null byte")
    (tmp_path / "a\nb.png").write_bytes(b"no picture")
    refused(read_picture, tmp_path / "a\nb.png", 8, match="b.png")


# Folders of classes


@pytest.fixture
def photos(tmp_path):
    for number in range(3):
        plain(tmp_path / "dog" / f"{number}.png", (number, 0, 0))
    for number in range(2):
        plain(tmp_path / "cat" / f"{number}.JPG", (0, 0, 10 * number))
    plain(tmp_path / "dog" / ".hidden.png")
    (tmp_path / ".git").mkdir()
    (tmp_path / "notes.txt").write_text("passed over")
    return tmp_path


def test_class_folders_become_labelled_pictures_by_name(photos):
    result = read_class_folders(str(photos), 4)
    assert result.class_names == ("cat", "dog")
    assert result.images.shape == (5, 3, 4, 4)
    assert result.images.dtype == torch.uint8
    assert result.labels.tolist() == [0, 0, 1, 1, 1]
    assert result.labels.dtype == torch.int64
    assert [at(one, 0, 0) for one in result.images[2:]] == [[0, 0, 0], [1, 0, 0], [2, 0, 0]]
    assert result.skipped == []


def test_the_order_is_that_of_the_names_whichever_is_read_first(tmp_path):
    # The first ones are large and take longest.
    for number in range(24):
        plain(tmp_path / "a" / f"{number:02}.png", (number, 0, 0), (1500 if number < 4 else 4, 900))
    result = read_class_folders(tmp_path, 2)
    assert result.images[:, 0, 0, 0].tolist() == list(range(24))


def test_progress_is_reported_in_the_thread_that_calls(photos):
    told = []
    here = threading.get_ident()
    read_class_folders(
        photos, 4, progress=lambda *seen: told.append((*seen, threading.get_ident()))
    )
    assert told == [(done, 5, here) for done in range(1, 6)]


def test_who_stops_does_not_wait_for_the_rest(tmp_path, monkeypatch):
    for number in range(200):
        plain(tmp_path / "a" / f"{number}.png")
    begun = []

    def read_slowly(path, size, lock):
        begun.append(path)
        time.sleep(0.002)
        return torch.zeros(3, size, size, dtype=torch.uint8)

    def stop(done, total):
        raise KeyboardInterrupt

    monkeypatch.setattr(reading, "_attempt", read_slowly)
    with pytest.raises(KeyboardInterrupt):
        read_class_folders(tmp_path, 2, progress=stop)
    assert 0 < len(begun) < 100


def test_bad_files_are_listed_up_to_five(photos):
    bad = [photos / "cat" / "x.png", *(photos / "dog" / f"x{n}.png" for n in range(6))]
    for path in bad:
        path.write_bytes(b"no picture")
    message = refused(read_class_folders, photos, 4, match="^7 file.* and 2 more; .*skip_bad=True$")
    assert [str(path) in message for path in bad] == [True] * 5 + [False] * 2
    for read, given in ((read_class_folders, photos), (read_pictures, [photos / "cat"])):
        with pytest.raises(UserError, match="skip_bad=True") as caught:
            read(given, 4)
        assert caught.value.hint == "skip_bad"
    for path in bad[5:]:
        path.unlink()
    assert " more" not in refused(read_class_folders, photos, 4, match="^5 file")


def test_bad_files_can_be_skipped(photos):
    (photos / "cat" / "0.JPG").write_bytes(b"no picture")
    (photos / "dog" / "0a.png").symlink_to(photos / "none.png")
    (photos / "dog" / "Thumbs.db").write_bytes(b"no picture")
    refused(read_class_folders, photos, 4, match="0.JPG' .*0a.png' .*Thumbs.db'")
    told = []
    result = read_class_folders(photos, 4, skip_bad=True, progress=lambda *seen: told.append(seen))
    assert [path.name for path, _ in result.skipped] == ["0.JPG", "0a.png", "Thumbs.db"]
    assert result.skipped[0][1].startswith("cannot identify")
    assert result.skipped[1][1] == "No such file or directory"
    assert result.labels.tolist() == [0, 1, 1, 1]
    assert result.images[:, 0, 0, 0].tolist() == [0, 0, 1, 2]
    assert told[-1] == (7, 7)


def test_a_class_without_a_picture_is_refused_by_name(photos):
    (photos / "empty").mkdir()
    refused(read_class_folders, photos, 4, skip_bad=True, match="empty' holds no picture")
    (photos / "empty" / "x.png").write_bytes(b"no picture")
    refused(read_class_folders, photos, 4, skip_bad=True, match="empty': .*x.png' .cannot ident")


def test_a_folder_in_a_class_folder_is_refused_by_name(photos):
    plain(photos / "dog" / "puppies" / "x.png")
    refused(read_class_folders, photos, 4, match="puppies' is a folder among pictures")
    (photos / "dog" / "puppies").rename(photos / "dog" / ".puppies")
    assert len(read_class_folders(photos, 4).labels) == 5


def test_pictures_in_no_class_folder_are_refused(photos):
    plain(photos / "x.JPEG")
    refused(read_class_folders, photos, 4, match="x.JPEG' is in no class folder: put each picture")
    refused(read_class_folders, photos / "dog", 4, match="dog/0.png' is in no class folder")


def test_a_folder_without_classes_is_refused(tmp_path):
    refused(read_class_folders, tmp_path, 4, match="holds no folder: there must be one for each")
    refused(read_class_folders, tmp_path / "none", 4, match="none' is not a folder")
    refused(read_class_folders, plain(tmp_path / "x.png"), 4, match="x.png' is not a folder")
    refused(read_class_folders, "a\0b", 4, match="is not a folder")


def test_pictures_that_pillow_warns_of_are_read_without_a_warning(tmp_path):
    image = Image.new("RGB", (4, 4), "red")
    remarks = b"Exif\0\0MM\0*\0\0\0\x08\0\x03"  # announces three and ends
    for number in range(8):
        saved(tmp_path / "a" / f"{number}.png", image, exif=remarks)
    before = list(warnings.filters)
    assert len(read_class_folders(tmp_path, 4).labels) == 8
    assert at(read_picture(tmp_path / "a" / "0.png", 2), 0, 0) == RED
    with Image.open(tmp_path / "a" / "0.png") as held:
        assert len(as_pictures(held, 4)) == 1
    assert warnings.filters == before


# What a program gives


def test_paths_are_read_in_the_order_given(photos):
    one = as_pictures(photos / "dog" / "1.png", 4)
    assert torch.equal(one, read_picture(photos / "dog" / "1.png", 4)[None])
    names = [str(photos / "dog" / "2.png"), photos / "dog" / "0.png"]
    assert as_pictures(names, 4)[:, 0, 0, 0].tolist() == [2, 0]
    assert torch.equal(as_pictures(tuple(names), 4), as_pictures(names, 4))


def test_a_folder_gives_all_its_pictures_by_name(photos):
    assert as_pictures(str(photos / "dog"), 4)[:, 0, 0, 0].tolist() == [0, 1, 2]
    (photos / "dog" / "notes.txt").write_text("no picture")
    refused(as_pictures, photos / "dog", 4, match="1 file.*notes.txt' .*; leave them out")


def test_a_folder_stands_for_all_files_below_it_by_path(photos):
    (photos / "notes.txt").unlink()
    inner = photos / "dog" / "1 puppies"
    plain(inner / "deep" / "0.png", (9, 0, 0))
    plain(inner / ".hidden" / "x.png")
    (inner / "nothing").mkdir()
    (photos / "z.png").symlink_to(inner / "deep" / "0.png")  # a file may be there twice
    names = ["cat/0.JPG", "cat/1.JPG", "dog/0.png", "dog/1 puppies/deep/0.png", "dog/1.png"]
    names += ["dog/2.png", "z.png"]
    files = [photos / name for name in names]
    images, sources, _ = read_pictures([str(photos), files[0]], 4)
    assert sources == [*files, files[0]]
    assert sources[:-1] == sorted(sources[:-1])
    assert images[2:7, 0, 0, 0].tolist() == [0, 9, 1, 2, 9]
    assert torch.equal(as_pictures(photos, 4), images[:-1])
    refused(read_class_folders, photos / "dog", 4, match="0.png' is in no class folder")


def test_a_folder_that_links_lead_to_several_times_is_read_once(photos):
    (photos / "notes.txt").unlink()
    (photos / "dog" / "up").symlink_to(photos)
    (photos / "a").symlink_to(photos / "cat")
    (photos / "round").symlink_to(photos / "round")
    files = read_pictures([photos], 4, skip_bad=True)[1]
    names = [str(file.relative_to(photos)) for file in files]
    assert names == ["a/0.JPG", "a/1.JPG", "dog/0.png", "dog/1.png", "dog/2.png"]
    refused(as_pictures, photos, 4, match="1 file.*round' .Too many levels")


def test_what_cannot_be_read_below_a_folder_is_told_as_elsewhere(photos):
    (photos / "dog" / "Thumbs.db").write_bytes(b"no picture")
    _, sources, bad = try_pictures([photos], 4)
    assert [sources[index].name for index in bad] == ["Thumbs.db", "notes.txt"]
    refused(as_pictures, photos, 4, match="2 file.*Thumbs.db' .*notes.txt' .*; leave them out")


def test_a_folder_without_a_picture_below_it_is_refused_in_one_line(tmp_path, monkeypatch):
    (tmp_path / "a" / "b").mkdir(parents=True)
    plain(tmp_path / "a" / ".hidden.png")
    for read, given in ((as_pictures, tmp_path / "a"), (read_pictures, [tmp_path / "a"])):
        refused(read, given, 4, match="^'.*/a' holds no picture: put some in it, or leave it out$")
    list_folder = Path.iterdir

    def closed(path):
        if path.name == "b":
            raise PermissionError(13, "Permission denied")
        return list_folder(path)

    monkeypatch.setattr(Path, "iterdir", closed)
    refused(as_pictures, tmp_path, 4, match="a/b' is not a folder that can be read: Permission")


def test_a_path_may_begin_with_the_home_folder(photos, monkeypatch):
    monkeypatch.setenv("HOME", str(photos))
    assert len(as_pictures("~/dog", 4)) == len(as_pictures(["~/dog/0.png"] * 3, 4)) == 3
    assert len(read_class_folders("~", 4).labels) == 5
    monkeypatch.chdir(photos)
    assert at(read_picture(plain(photos / "~1.png").name, 4), 0, 0) == RED


def test_pictures_of_pillow_are_converted_like_files(tmp_path):
    clear = Image.new("RGBA", (4, 4), (255, 0, 0, 51))
    exif = clear.getexif()
    exif[0x0112] = 3
    expected = read_picture(saved(tmp_path / "x.png", clear, exif=exif), 4)
    assert at(expected, 0, 0) == [255, 204, 204]
    assert torch.equal(as_pictures(clear, 4), expected[None])
    with Image.open(tmp_path / "x.png") as image:
        assert torch.equal(as_pictures([image, clear, image], 4), expected.expand(3, -1, -1, -1))


def test_a_picture_of_pillow_that_cannot_be_read_is_refused_by_its_number(tmp_path):
    with Image.open(plain(tmp_path / "x.png")) as closed:
        pass
    refused(as_pictures, [Image.new("L", (2, 2)), closed], 4, match="^1 item.* picture 2 of 2 ")


def test_bytes_and_open_files_are_read_like_paths(photos):
    path = photos / "dog" / "2.png"
    content = path.read_bytes()
    expected = read_picture(path, 4)[None]
    assert at(expected[0], 0, 0) == [2, 0, 0]
    assert torch.equal(as_pictures(content, 4), expected)
    with (
        tempfile.SpooledTemporaryFile() as spooled,
        tempfile.NamedTemporaryFile() as named,
        open(path, "rb") as buffered,
        open(path, "rb", buffering=0) as raw,
    ):
        for file in (io.BytesIO(), spooled, named, buffered, raw):
            if file not in (buffered, raw):
                file.write(content)  # and stay at the end
            assert torch.equal(as_pictures(file, 4), expected)
            assert torch.equal(as_pictures([file, file], 4), expected.expand(2, -1, -1, -1))
            assert not file.closed


def test_a_file_without_a_beginning_is_read_from_where_it_is(photos):
    content = (photos / "dog" / "2.png").read_bytes()
    reader, writer = os.pipe()
    with open(writer, "wb") as file:
        file.write(content)
    with open(reader, "rb") as pipe:
        assert torch.equal(as_pictures(pipe, 4), as_pictures(content, 4))


def test_a_list_may_mix_paths_bytes_files_and_pictures_of_pillow(photos):
    paths = [photos / "dog" / f"{number}.png" for number in range(3)]
    with open(paths[0], "rb") as file, Image.open(paths[1]) as image:
        mixed = [image, str(paths[2]), file, paths[1].read_bytes(), image, file, paths[0]]
        assert as_pictures(mixed, 4)[:, 0, 0, 0].tolist() == [1, 2, 0, 1, 1, 0, 0]


def test_open_files_and_pillow_images_are_used_by_one_thread_at_once(monkeypatch):
    busy, most = [], []

    def use(result):
        busy.append(None)
        time.sleep(0.002)
        most.append(len(busy))
        busy.pop()
        return result

    class File(io.BytesIO):
        def read(self, size=-1):
            return use(super().read(size))

    square = reading._square
    file, image = File(), Image.fromarray(pixels(6, 30, 20, 3))
    image.save(file, "PNG")
    expected = as_pictures(image, 8)[0]
    monkeypatch.setattr(reading, "THREADS", 4)
    monkeypatch.setattr(
        reading,
        "_square",
        lambda given, size: use(square(given, size)) if given is image else square(given, size),
    )
    for picture in as_pictures([image, file] * 20, 8):
        assert torch.equal(picture, expected)
    assert most == [1] * 40


def test_what_cannot_be_read_in_a_mixed_list_is_listed(photos):
    closed = io.BytesIO()
    closed.close()
    sound = photos / "dog" / "1.png"
    with open(photos / "notes.txt") as text:
        bad = [photos / "none.png", b"no picture", closed, text]
        message = refused(as_pictures, [sound, *bad], 4, match="^4 item.*; leave them out$")
        for part in ("none.png' (No such", "picture 3 of 5 (cannot identify", "4 of 5 (I/O"):
            assert part in message
        assert "picture 5 of 5 (it gives str instead of bytes, open it in mode 'rb')" in message


def test_pictures_are_read_with_what_they_came_from(photos):
    content = (photos / "dog" / "1.png").read_bytes()
    given = [content, str(photos / "dog"), b"no picture"]
    images, sources, skipped = read_pictures(given, 4, skip_bad=True)
    assert images[:, 0, 0, 0].tolist() == [1, 0, 1, 2]
    assert sources == [content, *(photos / "dog" / f"{number}.png" for number in range(3))]
    assert [(source, reason[:15]) for source, reason in skipped] == [
        (b"no picture", "cannot identify")
    ]
    refused(read_pictures, given, 4, match=r"1 item.*: picture 5 of 5 .*skip_bad=True$")
    refused(read_pictures, [5], 4, match="^int cannot be read as pictures")


def test_tensors_of_the_right_size_are_taken_as_they_are():
    images = torch.from_numpy(pixels(4, 2, 3, 5, 5))
    assert torch.equal(as_pictures(images, 5), images)
    assert torch.equal(as_pictures(images[0], 5), images[:1])
    floats = images.double() / 255
    assert torch.equal(as_pictures(floats, 5), floats.float())


def test_tensors_are_scaled_as_files_are():
    image = pixels(5, 30, 20, 3)
    images = torch.from_numpy(image).permute(2, 0, 1)
    expected = as_pictures(Image.fromarray(image), 8).float()
    result = as_pictures(images, 8)
    assert result.dtype == torch.uint8
    assert (result.float() - expected).abs().max() <= 1
    assert (result.float() - expected).mean().abs() < 0.1
    floats = as_pictures(images / 255, 8)
    assert floats.dtype == torch.float32
    assert (255 * floats - expected).abs().max() <= 1.5


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.zeros(3, 4, 4, dtype=torch.int64), "torch.int64"),
        (torch.zeros(4, 4), r"shape \(4, 4\)"),
        (torch.zeros(2, 1, 4, 4), r"shape \(2, 1, 4, 4\)"),
        (torch.zeros(0, 3, 4, 4), r"shape \(0, 3, 4, 4\)"),
        (torch.full((3, 4, 4), 255.0), "from 255 to 255"),
        (torch.full((3, 4, 4), -0.5), "from -0.5 to"),
        (torch.full((3, 4, 4), torch.nan), "from nan to nan"),
        ([], "list is empty"),
        (5, "int cannot be read"),
        (None, "NoneType cannot be read"),
        (["x.png", 5, None], "^NoneType, int cannot be read"),
        (["x.png", Image.new("L", (2, 2))], "^1 file.*x.png' .No such file"),
        (b"", "picture 1 of 1 .cannot identify"),
        ([torch.zeros(3, 4, 4)], "Tensor cannot be read"),
        ("none.png", "none.png' .No such file"),
        (["none.png", "nor this.png"], "2 file.*none.png' .No such file.*nor this.png'"),
    ],
)
def test_what_holds_no_picture_is_refused(value, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refused(as_pictures, value, 4, match=message)


def test_a_file_that_asks_for_too_much_memory_is_refused_by_name(tmp_path, monkeypatch):
    Image.new("RGB", (4, 4)).save(tmp_path / "a.png")

    def greedy(self):
        raise MemoryError

    monkeypatch.setattr(Image.Image, "load", greedy)
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", greedy)
    with pytest.raises(UserError, match=r"a\.png.*more memory than there is"):
        read_picture(tmp_path / "a.png", 4)
