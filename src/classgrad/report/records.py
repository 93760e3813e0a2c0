"""Records of runs: where they are, which belong together, and what tells them apart."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from classgrad.runs.record import FILE_NAME, RunRecord

OUTPUTS = {".png", ".svg", ".html", ".md", ".csv"}


def without_outputs(paths: Iterable[Path]) -> list[Path]:
    """Leave out pictures, pages and tables: the shell's runs/* names them too."""
    return [path for path in paths if path.is_dir() or path.suffix not in OUTPUTS]


def record_files(paths: Iterable[Path]) -> list[Path]:
    """Return the records in folders and in folders below them, each once, and files as they are.

    Pictures, pages and tables are passed over.
    """
    files: dict[Path, Path] = {}  # by where it really is
    for path in without_outputs(paths):
        if path.is_dir():
            files.update((file.resolve(), file) for file in sorted(_files_below(path)))
        else:
            files[path.resolve()] = path
    return list(files.values())


def _files_below(folder: Path) -> Iterator[Path]:
    # Unlike Path.rglob, this passes over folders that a run removes meanwhile.
    for place, folders, files in os.walk(folder):
        if FILE_NAME in files:
            folders.clear()  # below it is what the run keeps
            yield Path(place, FILE_NAME)


def grouped(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Put runs that differ in the seed only together, in the order they first appear."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        key = key_of(record.benchmark, record.method_name, settings_of(record))
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def key_of(*values: object) -> str:
    """Return text that is the same for the same values, in whatever order dicts have them.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    True
    """
    return json.dumps(values, sort_keys=True, default=str)


def settings_of(record: RunRecord) -> dict[str, Any]:
    """Return all that was set in a run but the seed."""
    parts = (record.method, record.training, record.network_options, record.benchmark_options)
    merged = {name: value for part in parts for name, value in part.items()}
    return {"network": record.network, **merged}


def label(record: RunRecord, records: Sequence[RunRecord]) -> str:
    """Name a run by its method, and by what differs between runs of the method on the stream."""
    alike = [
        settings_of(other)
        for other in records
        if (other.method_name, other.benchmark) == (record.method_name, record.benchmark)
    ]
    own = settings_of(record)
    differ = [f"{name}={own[name]}" for name in differing(own, alike)]
    return " ".join([record.method_name, *differ])


def differing(own: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of values that some others do not have.

    >>> differing({"a": 1, "b": 2}, [{"a": 1, "b": 3}])
    ['b']
    """
    others = list(others)
    return [name for name in own if any(other.get(name) != own[name] for other in others)]


def has_grown(records: Iterable[RunRecord]) -> bool:
    """Tell whether the network of some run has grown or shrunk."""
    known = [record.capacity for record in records if record.capacity is not None]
    return any(round(capacity) != 100 for capacity in known)
