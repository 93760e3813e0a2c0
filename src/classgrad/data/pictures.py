"""A user's own pictures: files, folders of classes, Pillow images or tensors.

All become square RGB images, (3, size, size) uint8. A file may be AVIF, BMP, GIF, JPEG, PNG, PPM,
TIFF or WebP, or with the package pillow-heif HEIC (extra `heic`), of up to 51 million pixels, 25
million in AVIF, TIFF and WebP, and 205 million in a JPEG that is not progressive. It is rotated as
its EXIF orientation says and scaled to the square, whatever its proportions. Grey becomes three
equal channels, of 16 bits the upper 8 are kept, and transparent parts become white. Of an animation
or several pages, the first picture is read. Colour profiles are ignored. In every folder, names
that begin with a dot are ignored, and files are sorted by name. A folder stands for all files in it
and in the folders below it, but a class folder must have no folder in it.
"""

import io
import math
import os
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import IO, TypeGuard, overload

import numpy as np
import torch
from PIL import ExifTags, Image, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile
from torch import Tensor
from torch.nn import functional

from classgrad.data.datasets import Unreadable
from classgrad.errors import UserError, shown

# A picture: the path of a file, its content, a file that is open for reading bytes, a Pillow image.
Source = str | Path | bytes | IO[bytes] | Image.Image
Skipped = tuple[Path, str]
Progress = Callable[[int, int], object]

# With Pillow's plugin for each. Not all that Pillow reads: EPS, for example, is a program that
# another program would run.
PLUGINS = {
    "AVIF": "AvifImagePlugin",
    "BMP": "BmpImagePlugin",
    "GIF": "GifImagePlugin",
    "JPEG": "JpegImagePlugin",
    "PNG": "PngImagePlugin",
    "PPM": "PpmImagePlugin",
    "TIFF": "TiffImagePlugin",
    "WEBP": "WebPImagePlugin",
}
HEIC = "HEIF"  # as Pillow calls it
HEIC_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1")
HEIC_PACKAGE = "pillow_heif"  # not pi_heif: damaged files crash its 1.4
# Enough for a telephone of 50 megapixels (8192 x 6144); without a limit, a file of a few bytes can
# declare any size. A picture takes 4 to 8 bytes for a pixel, a HEIC up to 10, so 510 megabytes.
MAX_PIXELS = 51_000_000
# Up to here several pictures are decoded at once, larger ones one at a time. Formats whose decoders
# take up to 16 bytes for a pixel have to stay below, and so has a JPEG decoded in full size.
MAX_PIXELS_AT_ONCE = 25_000_000
LESS_PIXELS = ("AVIF", "JPEG", "MPO", "TIFF", "WEBP")
# Enough for a telephone of 200 megapixels (16384 x 12288): such a JPEG takes 25 megabytes if it is
# decoded at an eighth. That is not so if it has several scans, like all progressive ones: libjpeg
# then keeps every coefficient, whatever the scale. With 3 to 8 bytes for a pixel, the same picture
# took 588 and 1164 megabytes, and one of `MAX_PIXELS` takes up to 400.
MAX_PIXELS_OF_ONE_SCAN = 205_000_000

# Each thread holds one picture, which takes up to 400 megabytes if it is decoded in full size. An
# AVIF that is made to do harm can take more: libavif decodes it in the size that its AV1 data give,
# up to 268 million pixels of about 4 bytes, and then scales it to the size that the file declares.
THREADS = min(4, os.cpu_count() or 1)
ONE_LARGE = Lock()
STRIP = 2**20  # pixels that are converted at a time

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
# Those that make rows of columns, and those that begin with the last row or column.
SIDEWAYS = (
    Image.Transpose.TRANSPOSE,
    Image.Transpose.ROTATE_270,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)
BACKWARDS = (
    Image.Transpose.ROTATE_180,
    Image.Transpose.FLIP_TOP_BOTTOM,
    Image.Transpose.TRANSVERSE,
    Image.Transpose.ROTATE_90,
)


def _read(
    sources: Sequence[Source], size: int, progress: Progress | None = None
) -> tuple[Tensor, list[int], dict[int, str]]:
    """Read pictures in several threads.

    Return those that can be read, in their order, the indices of these among all, and for each
    other index the reason.
    """
    images = torch.empty(len(sources), 3, size, size, dtype=torch.uint8)
    kept: list[int] = []
    bad: dict[int, str] = {}
    lock = Lock()

    def attempt(source: Source) -> Tensor | str:
        return _attempt(source, size, lock)

    formats()  # now, as threads should not import at the same time
    # Warnings are off around all threads, as the filter is global. If an error ends the loop early,
    # `map` cancels the files that were not begun, provided that no name refers to it.
    with _without_warnings(), ThreadPoolExecutor(THREADS) as pool:
        for index, result in enumerate(pool.map(attempt, sources)):
            if isinstance(result, str):
                bad[index] = result
            else:
                images[len(kept)] = result
                kept.append(index)
            if progress is not None:
                progress(index + 1, len(sources))
    return images[: len(kept)], kept, bad


@cache
def formats() -> tuple[str, ...]:
    """Return the formats that can be read, after importing what reads them."""
    for plugin in PLUGINS.values():
        import_module(f"PIL.{plugin}")
    if find_spec(HEIC_PACKAGE) is None:
        return tuple(PLUGINS)
    few = {"decode_threads": 1, "thumbnails": False, "depth_images": False, "aux_images": False}
    import_module(HEIC_PACKAGE).register_heif_opener(**few)
    return (*PLUGINS, HEIC)


def _attempt(source: Source, size: int, lock: Lock) -> Tensor | str:
    """Return a picture, or the reason why it cannot be read.

    The lock is for open files and Pillow images: a list may have the same one several times, and
    two threads must not use it at once.
    """
    try:
        with _as_unreadable():
            if isinstance(source, Image.Image):
                with lock:
                    return _square(source, size)
            with _opened(source, lock) as file:
                return _decode(file, size)
    except Unreadable as error:
        return str(error)


@contextmanager
def _opened(source: str | Path | bytes | IO[bytes], lock: Lock) -> Iterator[IO[bytes]]:
    """Open a file that can be read from any place."""
    if isinstance(source, str | Path):
        # Opening a pipe would wait for someone to write to it.
        if not stat.S_ISREG(os.stat(source).st_mode):
            raise Unreadable("it is not a file")
        with open(source, "rb") as file:
            yield file
    elif isinstance(source, bytes):
        yield io.BytesIO(source)
    else:
        with lock:
            content = _content(source)
        yield io.BytesIO(content)


def _content(file: IO[bytes]) -> bytes:
    with suppress(AttributeError, OSError):  # in a pipe there is no way back
        file.seek(0)
    content = file.read()
    if not isinstance(content, bytes):
        kind = type(content).__name__
        raise Unreadable(f"it gives {kind} instead of bytes, open it in mode 'rb'")
    return content


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
        heic = " HEIC," if HEIC in formats() else ""
        raise Unreadable(
            f"cannot identify it as AVIF, BMP, GIF,{heic} JPEG, PNG, PPM, TIFF or WebP"
        ) from None
    except Exception as error:  # a damaged file makes decoders fail in any way
        reason = error.strerror if isinstance(error, OSError) else None
        raise Unreadable(shown(reason or str(error) or type(error).__name__)) from None


def _decode(file: IO[bytes], size: int) -> Tensor:
    one_scan = _has_one_scan(file)
    file.seek(0)
    if one_scan is None:
        try:
            image = Image.open(file, formats=formats())
        except UnidentifiedImageError:
            if HEIC not in formats() and _is_heic(file):
                raise Unreadable("it is HEIC: pip install 'classgrad[heic]'") from None
            raise
        with image:
            return _square(image, size)
    with JpegImageFile(file) as jpeg:  # not Image.open, whose own limit is 179 million pixels
        return _square_of_jpeg(jpeg, size, one_scan)


def _is_heic(file: IO[bytes]) -> bool:
    file.seek(0)
    start = file.read(12)
    return start[4:8] == b"ftyp" and start[8:] in HEIC_BRANDS


# Segments of a JPEG: the frame if it is baseline, extended or progressive, the first scan, and what
# else may come before that (Huffman and quantisation tables, restart interval, remarks).
PROGRESSIVE = 0xC2
FRAMES = (0xC0, 0xC1, PROGRESSIVE)
SCAN = 0xDA
OTHERS = (0xC4, 0xDB, 0xDD, 0xFE, *range(0xE0, 0xF0))


def _has_one_scan(file: IO[bytes]) -> bool | None:
    """Return whether a JPEG has one scan, or None for what cannot be decoded at a smaller scale.

    None is for other formats and kinds of JPEG, such as lossless ones, and for bytes that libjpeg
    would pass over: any other answer is thus about the same segments that libjpeg finds.
    """
    if file.read(2) != b"\xff\xd8":
        return None
    frame, components = 0, 0
    while True:
        start = file.read(4)
        if len(start) < 4 or start[0] != 0xFF:
            return None
        marker, length = start[1], int.from_bytes(start[2:]) - 2
        content = file.read(max(length, 0))
        if marker in FRAMES and len(content) >= 6:
            frame, components = marker, content[5]
        elif marker == SCAN and content and frame:
            return frame != PROGRESSIVE and content[0] == components
        elif marker not in OTHERS:
            return None


def _square_of_jpeg(image: JpegImageFile, size: int, one_scan: bool) -> Tensor:
    """Decode a large JPEG at a half, a quarter or an eighth, which is many times faster.

    What is decoded has at least twice the size in both directions, so that scaling still averages.
    """
    whole = image.size
    if one_scan:
        _refuse_larger(whole, MAX_PIXELS_OF_ONE_SCAN, "JPEG")
    else:
        _refuse_larger(whole, MAX_PIXELS, "progressive JPEG")
    drafted = image.draft(None, (2 * size, 2 * size))
    _refuse_larger(whole, MAX_PIXELS_AT_ONCE, "JPEG of these proportions", math.prod(image.size))
    if drafted is None or image.size == whole:
        return _square(image, size)
    # The last column and row may be partly outside of the picture; `box` is what is inside. They
    # are the last ones until the picture is turned.
    _, box = drafted
    with nullcontext() if one_scan else _in_turn(whole):
        return _tensor(_upright(_rgb(image).resize((size, size), Image.Resampling.BILINEAR, box)))


def _square(image: Image.Image, size: int) -> Tensor:
    kind = image.format or "picture"
    most = MAX_PIXELS_AT_ONCE if kind in LESS_PIXELS else MAX_PIXELS
    _refuse_larger(image.size, most, "HEIC" if kind == HEIC else kind)
    with _in_turn(image.size):
        upright = _upright(image)
        # Some versions of Pillow scale the width first, and then have this many.
        pixels = size * upright.height
        _refuse_larger(image.size, MAX_PIXELS, "picture of these proportions", pixels)
        return _tensor(upright.resize((size, size), Image.Resampling.BILINEAR))


def _in_turn(size: tuple[int, int]) -> AbstractContextManager[object]:
    """Let no other thread decode a large picture at the same time."""
    return ONE_LARGE if math.prod(size) > MAX_PIXELS_AT_ONCE else nullcontext()


def _refuse_larger(size: tuple[int, int], most: int, kind: str, pixels: int | None = None) -> None:
    """Refuse a picture of this kind that has more pixels, or that so many would be made of."""
    width, height = size
    if (width * height if pixels is None else pixels) > most:
        raise Unreadable(
            f"{width} x {height} pixels are too many for a {kind}: {most // 10**6} million can be "
            "decoded; scale it down first"
        )


def _tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _upright(image: Image.Image) -> Image.Image:
    """Rotate or flip a picture as its EXIF orientation says, and convert it to RGB.

    It is done in strips, so that a large picture is not held more than twice. Pillow's
    `exif_transpose` also rewrites the EXIF data, which fails for those of many cameras.
    """
    image.load()  # this rotates a TIFF already, and removes its orientation
    turn = TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    width, height = image.size[::-1] if turn in SIDEWAYS else image.size
    rows = max(STRIP // width, 1)
    if rows >= height or (turn is None and _is_rgb(image)):
        return _turned(_rgb(image), turn)
    result = Image.new("RGB", (width, height))
    for top in range(0, height, rows):
        first, last = top, min(top + rows, height)
        if turn in BACKWARDS:
            first, last = height - last, height - first
        box = (first, 0, last, width) if turn in SIDEWAYS else (0, first, width, last)
        result.paste(_turned(_rgb(image.crop(box)), turn), (0, top))
    return result


def _turned(image: Image.Image, turn: Image.Transpose | None) -> Image.Image:
    return image if turn is None else image.transpose(turn)


def _is_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and "transparency" not in image.info


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        return _upper_bits(image).convert("RGB")
    if image.mode == "F":
        raise Unreadable("its pixels are floats, save it with 8 or 16 bits")
    if _is_rgb(image):
        return image
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


MAX_LISTED = 5  # unreadable files that a message names


@dataclass(frozen=True, eq=False)
class Pictures:
    """Pictures of several classes, sorted by class and then by name.

    `images` is uint8 (n, 3, size, size); `labels` is int64 (n,) and indexes `class_names`, the
    sorted names of the folders; `skipped` has the files left out, each with the reason.
    """

    images: Tensor
    labels: Tensor
    class_names: tuple[str, ...]
    skipped: list[Skipped]


def read_picture(path: str | Path, size: int) -> Tensor:
    """Read the picture in a file: (3, size, size) uint8."""
    file = _path(path)
    with _without_warnings():
        result = _attempt(file, size, Lock())
    if isinstance(result, str):
        raise unreadable(file, result)
    return result


def read_class_folders(
    path: str | Path, size: int, skip_bad: bool = False, progress: Progress | None = None
) -> Pictures:
    """Read PATH/class/picture; every file in a class folder has to be a picture.

    With `skip_bad`, files that cannot be read are left out and listed. Folders inside a class
    folder are refused: they may be the classes, if the given folder is one level too high.
    `progress` is called with the number of files done and of all files, in the calling thread.
    """
    folders = _class_folders(_path(path))
    by_folder = [picture_files(folder) for folder in folders]
    files = [file for files in by_folder for file in files]
    images, kept, bad = _read(files, size, progress)
    if bad and not skip_bad:
        raise _skippable(files, bad)
    lengths = torch.tensor([len(files) for files in by_folder])
    labels = torch.arange(len(folders)).repeat_interleave(lengths)[torch.tensor(kept).long()]
    for label, folder in enumerate(folders):
        if not (labels == label).any():
            inside = {index: bad[index] for index in bad if files[index].parent == folder}
            raise UserError(
                f"no picture is left in class folder '{shown(folder)}': {_listed(files, inside)}"
            )
    skipped = [(files[index], reason) for index, reason in bad.items()]
    return Pictures(images, labels, tuple(folder.name for folder in folders), skipped)


def as_pictures(value: object, size: int) -> Tensor:
    """Return pictures as a tensor (n, 3, size, size).

    `value` is the path of a folder, of which all files below it are read; a picture, as the path or
    content of a file, a file that is open for reading bytes, or a Pillow image; a list of such
    pictures; or a tensor (3, H, W) or (n, 3, H, W) of uint8 or of floats from 0 to 1. Open files
    are read from their beginning and stay open. The result is uint8, or float if a tensor of floats
    is given.
    """
    if isinstance(value, Tensor):
        return _from_tensor(value, size)
    if isinstance(value, str | Path) and os.path.isdir(_path(value)):
        value = files_below(_path(value))
    given = list(value) if isinstance(value, list | tuple) else [value]
    sources = _sources(given)
    images, _, bad = _read(sources, size)
    if bad:
        raise UserError(f"{_listed(sources, bad)}; leave them out")
    return images


@overload
def read_pictures(
    given: Sequence[str | Path],
    size: int,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, list[Path], list[Skipped]]: ...


@overload
def read_pictures(
    given: Sequence[Source],
    size: int,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, Sequence[Source], Sequence[tuple[Source, str]]]: ...


def read_pictures(
    given: Sequence[Source],
    size: int,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, Sequence[Source], Sequence[tuple[Source, str]]]:
    """Read pictures as `as_pictures` takes them, and all files below folders.

    Return the pictures, from what each was read, and what was left out with `skip_bad`, each with
    the reason; what was given as a path, or is in a folder, is a `Path` there. `progress` is as in
    `read_class_folders`.
    """
    images, sources, bad = try_pictures(given, size, progress)
    if bad and not skip_bad:
        raise _skippable(sources, bad)
    if not len(images):
        raise none_readable(sources, bad)
    skipped = [(sources[index], reason) for index, reason in bad.items()]
    return images, [source for i, source in enumerate(sources) if i not in bad], skipped


def try_pictures(
    given: Sequence[object], size: int, progress: Progress | None = None
) -> tuple[Tensor, list[Source], dict[int, str]]:
    """Read pictures as `read_pictures` does, whether all can be read or not.

    Return those that can be read, what was given or is in folders, and by its index the reason for
    each of these that cannot be read.
    """
    sources: list[Source] = []
    for source in _sources(given):
        if isinstance(source, Path) and os.path.isdir(source):
            sources += files_below(source)
        else:
            sources.append(source)
    images, _, bad = _read(sources, size, progress)
    return images, sources, bad


def picture_files(folder: Path) -> list[Path]:
    """Return the sorted files of a class folder, and refuse folders in it."""
    folders, files = _inside(folder)
    if folders:
        raise UserError(
            f"'{shown(folders[0])}' is a folder among pictures: move what it holds to "
            f"'{shown(folder)}', or move it away"
        )
    if not files:
        raise _empty(folder)
    return files


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and in the folders below it, sorted by their paths.

    Links are followed, but no folder is entered twice.
    """
    files: list[Path] = []
    entered: set[str] = set()
    pending = [folder]
    while pending:
        path = pending.pop()
        if path != folder and not os.path.isdir(path):
            files.append(path)
        elif (place := os.path.realpath(path)) not in entered:
            entered.add(place)
            folders, others = _inside(path)
            pending += sorted([*folders, *others], reverse=True)
    if not files:
        raise _empty(folder)
    return files


def _empty(folder: Path) -> UserError:
    return UserError(f"'{shown(folder)}' holds no picture: put some in it, or leave it out")


def none_readable(sources: Sequence[Source], bad: Mapping[int, str]) -> UserError:
    """Return the error for pictures of which none can be read."""
    return UserError(f"no picture is left: {_listed(sources, bad)}")


def unreadable(path: Path, reason: str) -> UserError:
    """Return the error for a file that cannot be read."""
    return UserError(f"'{shown(path)}' is not an image that can be read: {reason}")


def _path(given: str | Path) -> Path:
    # Unlike Path.expanduser, os.path.expanduser leaves a name like "~1.png" as it is.
    return Path(os.path.expanduser(given))


def _class_folders(path: Path) -> list[Path]:
    folders, files = _inside(path)
    known = formats()
    by_suffix = Image.registered_extensions()
    pictures = [file for file in files if by_suffix.get(file.suffix.lower()) in known]
    if pictures:
        raise UserError(
            f"'{shown(pictures[0])}' is in no class folder: put each picture into a folder of "
            f"'{shown(path)}' that has the name of its class"
        )
    if not folders:
        raise UserError(f"'{shown(path)}' holds no folder: there must be one for each class")
    return folders


def _inside(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted folders and files in a folder, without hidden ones."""
    try:
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"'{shown(folder)}' is not a folder that can be read: {reason}") from None
    folders = [path for path in paths if os.path.isdir(path)]
    return folders, [path for path in paths if not os.path.isdir(path)]


def _sources(given: Sequence[object]) -> list[Source]:
    """Return pictures with paths as `Path`, and refuse what is none."""
    if not given:
        raise UserError("no picture is given: the list is empty")
    sources = [item for item in given if _is_source(item)]
    if len(sources) < len(given):
        kinds = ", ".join(sorted({type(item).__name__ for item in given if not _is_source(item)}))
        raise UserError(
            f"{kinds} cannot be read as pictures: give the path of a file or a folder, the bytes "
            "of a file or a file open for reading them, a Pillow image, a list of these, or a "
            "tensor (n, 3, H, W)"
        )
    return [_path(item) if isinstance(item, str | Path) else item for item in sources]


def _is_source(item: object) -> TypeGuard[Source]:
    # Not every open file is an io.IOBase: temporary ones and those of archives need not be.
    return isinstance(item, str | Path | bytes | Image.Image) or callable(
        getattr(item, "read", None)
    )


def _skippable(sources: Sequence[Source], bad: Mapping[int, str]) -> UserError:
    advice = "remove them, or leave them out with skip_bad=True"
    return UserError(f"{_listed(sources, bad)}; {advice}", hint="skip_bad")


def _listed(sources: Sequence[Source], bad: Mapping[int, str]) -> str:
    kind = "file(s)" if all(isinstance(sources[index], Path) for index in bad) else "item(s)"
    first = list(bad)[:MAX_LISTED]
    listed = ", ".join(f"{_name(sources, index)} ({bad[index]})" for index in first)
    more = f" and {len(bad) - MAX_LISTED:,} more" if len(bad) > MAX_LISTED else ""
    return f"{len(bad):,} {kind} cannot be read as pictures: {listed}{more}"


def _name(sources: Sequence[Source], index: int) -> str:
    source = sources[index]
    if isinstance(source, Path):
        return f"'{shown(source)}'"
    return f"picture {index + 1} of {len(sources)}"


def _from_tensor(images: Tensor, size: int) -> Tensor:
    is_uint8 = images.dtype == torch.uint8
    batch = images[None] if images.dim() == 3 else images
    known_dtype = is_uint8 or images.is_floating_point()
    if not known_dtype or batch.dim() != 4 or batch.shape[1] != 3 or not batch.numel():
        raise UserError(
            f"a tensor of {images.dtype} and shape {tuple(images.shape)} is not a picture: "
            "give uint8, or floats from 0 to 1, of shape (3, H, W) or (n, 3, H, W)"
        )
    if not is_uint8 and not ((batch >= 0) & (batch <= 1)).all():
        low, high = batch.min().item(), batch.max().item()
        raise UserError(
            f"pictures with values from {low:g} to {high:g}: scale floats to the range from 0 to 1"
        )
    if batch.shape[2:] != (size, size):
        batch = functional.interpolate(
            batch.float(), (size, size), mode="bilinear", antialias=True, align_corners=False
        )
    return batch.round().to(torch.uint8) if is_uint8 else batch.float()
