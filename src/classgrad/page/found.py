"""Where the records of runs are."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from classgrad.records import FILE_NAME


def record_files(paths: Iterable[Path]) -> list[Path]:
    """Return the records in folders and in folders below them, each once, and files as they are.

    Pictures are passed over: the shell's runs/* names them too.
    """
    files: dict[Path, Path] = {}  # by where it really is
    for path in paths:
        if path.is_dir():
            files.update((file.resolve(), file) for file in sorted(_below(path)))
        elif path.suffix != ".png":
            files[path.resolve()] = path
    return list(files.values())


def _below(folder: Path) -> Iterator[Path]:
    # Unlike Path.rglob, this passes over folders that a run removes meanwhile.
    for place, folders, files in os.walk(folder):
        if FILE_NAME in files:
            folders.clear()  # below it is what the run keeps
            yield Path(place, FILE_NAME)
