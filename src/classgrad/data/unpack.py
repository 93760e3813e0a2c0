"""Unpack released archives: only the expected members, under names from our own table."""

import gzip
import os
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from classgrad.data.notmnist import EMPTY, FOLDERS, select_test_files
from classgrad.data.table import Dataset, Download
from classgrad.files import write_new

# Bytes. The released archives unpack to less than 190 MB.
MAX_UNPACKED = 512 * 2**20
LETTER_FILE = re.compile(r"([A-J])/([A-Za-z0-9+=_-]{1,200}\.png)")


class Unsound(ValueError):
    """The archive is not that of the release."""


class _Capped:
    """A file that returns a limited number of bytes, as a guard against decompression bombs."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self.file = file
        self.left = most

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
        if size > self.left:
            raise Unsound(f"it unpacks to more than {MAX_UNPACKED:,} bytes")
        # Requested bytes count even past the end: a member can declare any size, and tarfile would
        # keep requesting it.
        self.left -= size
        return self.file.read(size)


def unpack(data: Dataset, download: Download, archive: Path, stage: Path) -> None:
    """Write the members of `archive` to their places under the folder `stage`.

    The names written come from our own table, never from the archive: a member with another name
    is ignored, and one that is not a regular file is refused.
    """
    if download.unpack == "letters":
        _letters(data, download, archive, stage)
    else:
        _members(data, download, archive, stage)


def _members(data: Dataset, download: Download, archive: Path, stage: Path) -> None:
    wanted = {
        f"{download.place}/{name}": stage / download.place / name for name in download.members
    }
    (stage / download.place).mkdir(parents=True)
    for name, content in _contents(archive, wanted.__contains__, data.largest):
        write_new(wanted.pop(name), [content])
    if wanted:
        raise Unsound(f"it does not hold {next(iter(wanted))}")


def _letters(data: Dataset, download: Download, archive: Path, stage: Path) -> None:
    """Sort the files of each letter into training and test set."""
    files: dict[str, dict[str, bytes]] = {}
    folder = download.name.removesuffix(".tar.gz")
    for name, content in _contents(
        archive, lambda name: name.startswith(f"{folder}/"), data.largest
    ):
        match = LETTER_FILE.fullmatch(name.removeprefix(f"{folder}/"))
        if match and match[0] not in EMPTY:
            files.setdefault(match[1], {})[match[2]] = content
    for letter, contents in files.items():
        test = select_test_files(letter, contents)
        for split, part in FOLDERS.items():
            place = stage / download.place / part / letter
            place.mkdir(parents=True)
            for name, content in contents.items():
                if (name in test) == (split == "test"):
                    (place / name).write_bytes(content)
    if hasattr(os, "sync"):
        # Once for all files: syncing thousands of them one by one takes too long.
        os.sync()


def _contents(
    archive: Path, wanted: Callable[[str], bool], largest: int
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted members."""
    try:
        with (
            open(archive, "rb") as packed,
            gzip.GzipFile(fileobj=packed) as file,
            tarfile.open(fileobj=_Capped(file, MAX_UNPACKED), mode="r|") as tar,  # type: ignore[call-overload]
        ):
            for member in tar:
                name = str(PurePosixPath(member.name))
                if not wanted(name) or member.isdir():
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size > largest:
                    raise Unsound(f"{name} in it is not a regular file of that size")
                content = tar.extractfile(member)
                yield name, content.read() if content else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        if isinstance(error, Unsound):
            raise
        raise Unsound(f"it cannot be unpacked: {error}") from None
