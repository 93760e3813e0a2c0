"""Pictures of whatever kind as squares of colour: (3, size, size) uint8.

A file may be BMP, GIF, JPEG, PNG, PPM, TIFF or WebP, of up to 25 million pixels. It is turned as
the camera says and scaled to the square, whatever its proportions. Grey becomes three equal
colours, 16 bits become the upper 8, and what is transparent shows a white ground. Of an animation,
or of several pages, the first picture is read. Profiles of colour are passed over.
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

# Of all that Pillow reads: EPS is a program that another program would run.
FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
# A camera of 24 megapixels is within it; a file of a few bytes can announce any size.
MOST_PIXELS = 25_000_000

# Each thread holds one picture in full size, which takes up to 300 megabytes.
THREADS = min(4, os.cpu_count() or 1)

SEE_THROUGH = ("RGBA", "LA", "PA")
# By the number that a camera writes: what puts its picture upright.
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
    """What is wrong with a picture, in one line and without its name."""


def from_files(
    files: Sequence[Path], size: int, progress: Progress | None = None
) -> tuple[Tensor, list[int], list[Skipped]]:
    """Read files in several threads.

    Returned are the pictures in the order of their files, the places of these among all files, and
    the files that cannot be read, each with the reason.
    """
    images = torch.empty(len(files), 3, size, size, dtype=torch.uint8)
    kept: list[int] = []
    bad: list[Skipped] = []
    Image.init()  # loads what Pillow needs, which threads should not do at the same time
    # Warnings are seen to around all threads, which share one setting. When the loop is left early,
    # `map` drops the files that were not begun.
    with _without_warnings(), ThreadPoolExecutor(THREADS) as pool:
        for row, found in enumerate(pool.map(lambda file: _attempt(file, size), files)):
            if isinstance(found, str):
                bad.append((files[row], found))
            else:
                images[len(kept)] = found
                kept.append(row)
            if progress is not None:
                progress(row + 1, len(files))
    return images[: len(kept)], kept, bad


def from_file(path: Path, size: int) -> Tensor:
    """Read a picture; it is `Unreadable` if there is none in the file."""
    with _without_warnings():
        found = _attempt(path, size)
    if isinstance(found, str):
        raise Unreadable(found)
    return found


def from_pillow(image: Image.Image, size: int) -> Tensor:
    """Convert a picture of Pillow; it is `Unreadable` if that fails."""
    with _without_warnings(), _failures_told():
        return _square(image, size)


def _attempt(path: Path, size: int) -> Tensor | str:
    """Return the picture in a file, or why there is none."""
    try:
        with _failures_told():
            # Opening a pipe would wait for someone to write to it.
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise Unreadable("it is not a file")
            with Image.open(path, formats=FORMATS) as image:
                return _square(image, size)
    except Unreadable as error:
        return str(error)


def _without_warnings() -> AbstractContextManager[object]:
    """Pass over warnings: they are of what is odd and can be read all the same."""
    return warnings.catch_warnings(action="ignore")


@contextmanager
def _failures_told() -> Iterator[None]:
    try:
        yield
    except Unreadable:
        raise
    except MemoryError:  # pixels are few enough: a length in the file is wrong
        raise Unreadable("it asks for more memory than there is") from None
    except UnidentifiedImageError:
        raise Unreadable("cannot identify it as BMP, GIF, JPEG, PNG, PPM, TIFF or WebP") from None
    except Exception as error:  # a damaged file makes decoders fail in any way
        system = error.strerror if isinstance(error, OSError) else None
        raise Unreadable(shown(system or str(error) or type(error).__name__)) from None


def _square(image: Image.Image, size: int) -> Tensor:
    width, height = image.size
    if width * height > MOST_PIXELS:
        raise Unreadable(f"{width} x {height} pixels are too many, scale it down first")
    scaled = _coloured(_upright(image)).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(scaled)).permute(2, 0, 1).contiguous()


def _upright(image: Image.Image) -> Image.Image:
    """Turn a picture as its camera says.

    Pillow's own function also writes what the camera said anew, which fails for many cameras.
    """
    image.load()  # turns a TIFF, and says no more that it has to be turned
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return image if turn is None else image.transpose(turn)


def _coloured(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _upper_bits(image).convert("RGB")
    if image.mode == "F":
        raise Unreadable("its pixels are fractions, save it with 8 or 16 bits")
    if image.mode not in SEE_THROUGH and "transparency" not in image.info:
        return image.convert("RGB")
    clear = image.convert("RGBA")
    ground = Image.new("RGB", image.size, "white")
    ground.paste(clear, mask=clear)
    return ground


def _upper_bits(image: Image.Image) -> Image.Image:
    """Make 8 bits of 16, where Pillow would cut off all that is brighter than 255."""
    grey = np.asarray(image)
    if grey.min() < 0 or grey.max() >= 2**16:
        raise Unreadable("its pixels take more than 16 bits, save it with 8 or 16")
    return Image.fromarray((grey >> 8).astype(np.uint8))
