"""Images of one's own, in every format that is read."""

import contextlib
import io
from pathlib import Path

from hypothesis import strategies as st
from PIL import Image

from classgrad import benchmarks
from data import datafiles
from fuzz.binaries import png_files
from fuzz.mutations import mutated
from fuzz.target import Strategy, Target

FORMATS = ("AVIF", "PNG", "JPEG", "GIF", "BMP", "TIFF", "WEBP", "PPM")
HEICS = sorted((Path(__file__).parents[1] / "data" / "heic").glob("*.heic"))
MODES = ("RGB", "P", "L", "RGBA", "LA", "CMYK", "1", "I")
SIZE = 12
SCALED = 8
LARGE = 4 * SCALED + 5  # a JPEG of this size is decoded at a half, its last columns in part


def _make(folder: Path) -> Path:
    for place in ("task/a", "task/b"):
        (folder / place).mkdir(parents=True)
        for number in range(2):
            _picture("RGB").save(folder / place / f"{number}.png")
    return folder / "task/a/0.png"


def _picture(mode: str, size: int = SIZE) -> Image.Image:
    return Image.fromarray(datafiles.pixels(1, size, size, 3)).convert(mode)


def _sound(kind: str, picture: Image.Image, **options: bool) -> bytes:
    file = io.BytesIO()
    exif = picture.getexif()
    exif[0x0112] = 6  # lies on its side
    with contextlib.suppress(OSError, ValueError):  # the format does not have this mode
        picture.save(file, kind, exif=exif, **options)
    return file.getvalue()


def _inputs(sound: bytes) -> Strategy:
    seeds = [_sound(kind, _picture(mode)) for kind in FORMATS for mode in MODES]
    for mode in ("RGB", "L", "CMYK"):
        for progressive in (False, True):
            seeds.append(_sound("JPEG", _picture(mode, LARGE), progressive=progressive))
    seeds += [path.read_bytes() for path in HEICS]
    return st.sampled_from([seed for seed in seeds if seed]).flatmap(mutated) | png_files(SIZE)


def _read(folder: Path) -> None:
    assert benchmarks.folder(folder, image_size=SCALED).input_shape == (3, SCALED, SCALED)


TARGETS = (Target("picture", _make, _read, _inputs),)
