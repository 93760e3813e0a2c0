"""Decode pictures to square RGB images: (3, size, size) uint8.

A file may be BMP, GIF, JPEG, PNG, PPM, TIFF or WebP, of up to 25 million pixels. It is rotated as
its EXIF orientation says and scaled to the square, whatever its proportions. Grey becomes three
equal channels, of 16 bits the upper 8 are kept, and transparent parts become white. Of an animation
or several pages, the first picture is read. Colour profiles are ignored.
"""

import os
import stat
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from classgrad.errors import shown

Skipped = tuple[Path, str]
Progress = Callable[[int, int], object]

# Not all that Pillow reads: EPS, for example, is a program that another program would run.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# Enough for a camera of 24 megapixels; without a limit, a file of a few bytes can declare any size.
MAX_PIXELS = 25_000_000

# Each thread holds one picture in full size, which takes up to 300 megabytes.
THREADS = min(4, os.cpu_count() or 1)

ALPHA_MODES = ("RGBA", "LA", "PA")
# By EXIF orientation: the operation that puts a picture upright.
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class Unreadable(ValueError):
    """A picture cannot be decoded; the message is one line, without the name of the file."""


def from_files(
    files: Sequence[Path], size: int, progress: Progress | None = None
) -> tuple[Tensor, list[int], list[Skipped]]:
    """Read files in several threads.

    Return the pictures in the order of their files, the indices of these among all files, and the
    files that cannot be read, each with the reason.
    """
    images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    kept: list[int] = []
    bad: list[Skipped] = []
    Image.init()  # loads Pillow's plugins, which threads should not do at the same time
    # Warnings are off around all threads, as the filter is global. If an error ends the loop early,
    # `map` cancels the files that were not begun.
    with _without_warnings(), ThreadPoolExecutor(THREADS) as pool:
        for index, result in enumerate(pool.map(lambda file: _attempt(file, size), files)):
            if isinstance(result, str):
                bad.append((files[index], result))
            else:
                images[len(kept)] = result
                kept.append(index)
            if progress is not None:
                progress(index + 1, len(files))
    return images[: len(kept)], kept, bad


def from_file(path: Path, size: int) -> Tensor:
    """Read a picture; raise `Unreadable` if that fails."""
    with _without_warnings():
        result = _attempt(path, size)
    if isinstance(result, str):
        raise Unreadable(result)
    return result


def from_pillow(image: Image.Image, size: int) -> Tensor:
    """Convert a Pillow image; raise `Unreadable` if that fails."""
    with _without_warnings(), _as_unreadable():
        return _square(image, size)


def _attempt(path: Path, size: int) -> Tensor | str:
    """Return the picture in a file, or the reason why it cannot be read."""
    try:
        with _as_unreadable():
            # Opening a pipe would wait for someone to write to it.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise Unreadable("it is not a file")
            with Image.open(path, formats=FORMATS) as image:
                return _square(image, size)
    except Unreadable as error:
        return str(error)


def _without_warnings() -> AbstractContextManager[object]:
    """Ignore warnings: they are about oddities of files that can be read anyway."""
    return warnings.catch_warnings(action="ignore")


@contextmanager
def _as_unreadable() -> Iterator[None]:
    """Turn every error into an `Unreadable` with a reason."""
    try:
        yield
    except Unreadable:
        raise
    except MemoryError:  # the number of pixels is limited, so a length in the file is wrong
        raise Unreadable("it asks for more memory than there is") from None
    except UnidentifiedImageError:
        raise Unreadable("cannot identify it as BMP, GIF, JPEG, PNG, PPM, TIFF or WebP") from None
    except Exception as error:  # a damaged file makes decoders fail in any way
        reason = error.strerror if isinstance(error, OSError) else None
        raise Unreadable(shown(reason or str(error) or type(error).__name__)) from None


def _square(image: Image.Image, size: int) -> Tensor:
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Unreadable(f"{width} x {height} pixels are too many, scale it down first")
    scaled = _rgb(_upright(image)).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(scaled)).permute(2, 0, 1).contiguous()


def _upright(image: Image.Image) -> Image.Image:
    """Rotate or flip a picture as its EXIF orientation says.

    Pillow's `exif_transpose` also rewrites the EXIF data, which fails for those of many cameras.
    """
    image.load()  # this rotates a TIFF already, and removes its orientation
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _upper_bits(image).convert("RGB")
    if image.mode == "F":
        raise Unreadable("its pixels are floats, save it with 8 or 16 bits")
    if image.mode not in ALPHA_MODES and "transparency" not in image.info:
        return image.convert("RGB")
    transparent = image.convert("RGBA")
    background = Image.new("RGB", image.size, "white")
    background.paste(transparent, mask=transparent)
    return background


def _upper_bits(image: Image.Image) -> Image.Image:
    """Reduce 16 bits to the upper 8; Pillow would clip all values above 255."""
    grey = np.asarray(image)
    if grey.min() < 0 or grey.max() >= 2**16:
        raise Unreadable("its pixels take more than 16 bits, save it with 8 or 16")
    return Image.fromarray((grey >> 8).astype(np.uint8))
