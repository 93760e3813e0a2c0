"""Read and verify files of datasets; every failure is a `UserError` of one line."""

import hashlib
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from classgrad.data.table import Dataset
from classgrad.errors import UserError, shown

Source = tuple[Path, bytes]


class Missing(UserError):
    """A file of the dataset does not exist."""


def missing(data: Dataset, path: Path) -> Missing:
    """Return the error for a file or folder that does not exist."""
    what = f"{data.title} is missing: no {shown(path)}"
    return Missing(f"{what}; {data.remedy()}", hint=data.hint)


def damaged(data: Dataset, path: Path, what: str) -> UserError:
    """Return the error for a file that cannot be used."""
    return unusable(data, path, f"{what}; remove it", again=True)


def unusable(data: Dataset, path: Path, what: str, *, again: bool = False) -> UserError:
    """Return the error for a file or folder that is not the dataset's."""
    return UserError(f"{shown(path)}: {what} and {data.remedy(again)}", hint=data.hint)


def read(data: Dataset, path: Path) -> bytes:
    """Return the content of a regular file, if it is no larger than a file of `data` can be."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            raise unusable(data, path, "not a file; move it away")
        if status.st_size > data.largest:
            raise damaged(data, path, f"{status.st_size:,} bytes, more than {data.largest:,}")
        with open(path, "rb", buffering=0) as file:
            return file.read()
    except FileNotFoundError:
        raise missing(data, path) from None
    except OSError as error:
        raise UserError(f"{shown(path)}: cannot be read ({error.strerror})") from None


def file_matches(path: Path, checksum: str) -> bool:
    """Tell whether a file has a checksum written as "algorithm:hex"."""
    algorithm, _, wanted = checksum.partition(":")
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == wanted


def released(paths: Iterable[Path], checksums: Mapping[str, str]) -> bool:
    """Tell whether every file with a known checksum exists, byte for byte as released."""
    by_name = {path.name: path for path in paths}
    return bool(checksums) and all(
        name in by_name and file_matches(by_name[name], checksum)
        for name, checksum in checksums.items()
    )
