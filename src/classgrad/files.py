"""Durable, atomic writes: a file is complete on disk under its name, or not there at all.

The order of syncing is always the same: the content, then the name, then the folder that holds the
name. A power cut in between leaves what was there before.
"""

import errno
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterable
from pathlib import Path


def write_new(path: Path, pieces: Iterable[bytes | memoryview]) -> None:
    """Write a file that does not exist yet, and make its content durable."""
    with open(path, "xb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "words.txt"
    ...     write_atomic(file, lambda part: part.write_text("whole"))
    ...     file.read_text()
    'whole'
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{uuid.uuid4().hex}.part")
    try:
        with open(part, "xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        write(part)
        part.chmod(mode)  # that of the user's umask: some writers make files private to the owner
        put_in_place(part, path)
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file, atomically."""
    write_atomic(path, lambda part: part.write_text(text, encoding="utf-8"))


def put_in_place(part: Path, path: Path) -> None:
    """Give a finished file its final name, durably; replace any file of that name."""
    sync_file(part)
    os.replace(part, path)
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, and make their names durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_folder(folder.parent)


def free_bytes(folder: Path) -> int:
    """Return how many bytes can be written to a folder, which need not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def sync_file(path: Path) -> None:
    """Make the content of a file durable."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network filesystems cannot sync folders; they keep names durable themselves.
        if error.errno not in (errno.EINVAL, errno.EBADF, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)
