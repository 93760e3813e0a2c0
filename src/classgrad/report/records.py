"""Find records of runs, group them by settings, and label them by what differs."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from classgrad.runs.record import FILE_NAME, RunRecord

# Settings that make runs of different methods hard to compare.
BUDGET = ("network", "epochs", "train_per_class", "tasks", "held_out")
OUTPUTS = {".png", ".svg", ".html", ".md", ".csv"}


def without_outputs(paths: Iterable[Path]) -> list[Path]:
    """Leave out pictures, pages and tables, which the shell's runs/* includes."""
    return [path for path in paths if path.is_dir() or path.suffix not in OUTPUTS]


def record_files(paths: Iterable[Path]) -> list[Path]:
    """Return the record files in folders and below them, each once; files are returned as given.

    Pictures, pages and tables are ignored.
    """
    files: dict[Path, Path] = {}  # by resolved path
    for path in without_outputs(paths):
        if path.is_dir():
            files.update((file.resolve(), file) for file in sorted(_files_below(path)))
        else:
            files[path.resolve()] = path
    return list(files.values())


def _files_below(folder: Path) -> Iterator[Path]:
    # Unlike Path.rglob, os.walk ignores folders that a run removes meanwhile.
    for path, folders, files in os.walk(folder):
        if FILE_NAME in files:
            folders.clear()  # those below are the run's own
            yield Path(path, FILE_NAME)


def grouped(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs that differ only in the seed, in the order of their first records."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        key = key_of(record.benchmark, record.method_name, settings_of(record))
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def stream_name(record: RunRecord) -> str:
    """Name the benchmark of a run, and say so if the run was not judged on its test images."""
    held_out = record.benchmark_options.get("held_out") is not None
    return f"{record.benchmark} (held-out)" if held_out else record.benchmark


def stream_options(record: RunRecord) -> dict[str, Any]:
    """Return the options of a run's benchmark; records older than `held_out` have none of it."""
    options = record.benchmark_options
    return {n: v for n, v in options.items() if not (n == "held_out" and v is None)}


def key_of(*values: object) -> str:
    """Return a string that is the same for equal values, whatever the order of keys in dicts.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    True
    """
    return json.dumps(values, sort_keys=True, default=str)


def settings_of(record: RunRecord) -> dict[str, Any]:
    """Return all settings of a run except the seed."""
    parts = (record.method, record.training, record.network_options, stream_options(record))
    merged = {name: value for part in parts for name, value in part.items()}
    return {"network": record.network, **merged}


def label(record: RunRecord, records: Sequence[RunRecord]) -> str:
    """Name a run by its method, and by settings in which it differs from others on the stream.

    These are all settings in which the method's own runs differ, and of other methods' runs what
    makes them hard to compare (`BUDGET`), unless most runs have the same.
    """
    of_stream = [other for other in records if other.benchmark == record.benchmark]
    same_method = [
        settings_of(other) for other in of_stream if other.method_name == record.method_name
    ]
    settings = settings_of(record)
    names = differing(settings, same_method)
    everybody = [settings_of(other) for other in of_stream]
    for name in BUDGET:
        equal = sum(other.get(name) == settings.get(name) for other in everybody)
        if name in settings and name not in names and 2 * equal <= len(everybody) > equal:
            names.append(name)
    return " ".join([record.method_name, *(f"{name}={settings[name]}" for name in names)])


def labels(records: Sequence[RunRecord]) -> list[str]:
    """Name each run; runs of one seed and stream that cannot be told apart are numbered."""
    names: list[str] = []
    counts: dict[str, int] = {}
    for record in records:
        name = label(record, records)
        key = key_of(name, stream_name(record), record.seed)
        counts[key] = counts.get(key, 0) + 1
        names.append(name if counts[key] == 1 else f"{name} ({counts[key]})")
    return names


def differing(settings: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that have another value in some of the others.

    >>> differing({"a": 1, "b": 2}, [{"a": 1, "b": 3}])
    ['b']
    """
    others = list(others)
    return [
        name
        for name, value in settings.items()
        if any(other.get(name) != value for other in others)
    ]


def has_statistics(records: Iterable[RunRecord]) -> bool:
    """Tell whether all accuracies without the task were measured by class statistics, too."""
    return all(record.average_accuracy_task_free_statistics is not None for record in records)


def has_grown(records: Iterable[RunRecord]) -> bool:
    """Tell whether the network of any run has grown or shrunk."""
    known = [record.capacity for record in records if record.capacity is not None]
    return any(round(capacity) != 100 for capacity in known)
