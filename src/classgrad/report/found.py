"""Where the records of runs are."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from classgrad.runs.record import FILE_NAME

OUTPUTS = {".png", ".svg", ".html", ".md", ".csv"}


def runs_among(paths: Iterable[Path]) -> list[Path]:
    """Leave out pictures, pages and tables: the shell's runs/* names them too."""
    return [path for path in paths if path.is_dir() or path.suffix not in OUTPUTS]


def record_files(paths: Iterable[Path]) -> list[Path]:
    """Return the records in folders and in folders below them, each once, and files as they are.

    Pictures, pages and tables are passed over.
    """
    files: dict[Path, Path] = {}  # by where it really is
    for path in runs_among(paths):
        if path.is_dir():
            files.update((file.resolve(), file) for file in sorted(_below(path)))
        else:
            files[path.resolve()] = path
    return list(files.values())


def _below(folder: Path) -> Iterator[Path]:
    # Unlike Path.rglob, this passes over folders that a run removes meanwhile.
    for place, folders, files in os.walk(folder):
        if FILE_NAME in files:
            folders.clear()  # below it is what the run keeps
            yield Path(place, FILE_NAME)
