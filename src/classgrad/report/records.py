"""Find records of runs, and group them by stream and by settings."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from classgrad.runs.plain import in_effect
from classgrad.runs.record import FILE_NAME, RunRecord

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


def streams(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs by their stream, which is a benchmark with its options."""
    groups: dict[str, list[RunRecord]] = {}
    for record in records:
        groups.setdefault(stream_key(record), []).append(record)
    return list(groups.values())


def stream_key(record: RunRecord) -> str:
    """Return what is the same for runs on one stream."""
    return key_of(record.benchmark, stream_options(record))


def stream_titles(records: Sequence[RunRecord]) -> list[str]:
    """Name streams, each by one of its runs: the benchmark, and the options that differ."""
    titles = []
    for record in records:
        options = stream_options(record)
        others = [stream_options(r) for r in records if r.benchmark == record.benchmark]
        pairs = [f"{name}={value_text(options[name])}" for name in differing(options, others)]
        titles.append(", ".join([stream_name(record), *pairs]))
    return titles


def stream_name(record: RunRecord) -> str:
    """Name the benchmark of a run, and say so if the run was not judged on its test images."""
    held_out = record.benchmark_options.get("held_out") is not None
    return f"{record.benchmark} (held-out)" if held_out else record.benchmark


def stream_options(record: RunRecord) -> dict[str, Any]:
    """Return the options of a run's benchmark; records older than `held_out` have none of it."""
    options = record.benchmark_options
    return {n: v for n, v in options.items() if not (n == "held_out" and v is None)}


def grouped(records: Sequence[RunRecord]) -> list[list[RunRecord]]:
    """Group runs that differ only in the seed, in the order of their first records."""
    groups: dict[str, list[RunRecord]] = {}
    for record, settings in zip(records, settings_of_all(records), strict=True):
        key = key_of(record.benchmark, record.method_name, settings)
        groups.setdefault(key, []).append(record)
    return list(groups.values())


def one_per_seed(records: Sequence[RunRecord]) -> list[RunRecord]:
    """Return one run for each seed, a complete one if there is any, in the order of seeds."""
    runs: dict[int, RunRecord] = {}
    for record in records:
        if record.seed not in runs or (record.complete and not runs[record.seed].complete):
            runs[record.seed] = record
    return [runs[seed] for seed in sorted(runs)]


def key_of(*values: object) -> str:
    """Return a string that is the same for equal values, whatever the order of keys in dicts.

    >>> key_of({"a": 1, "b": 2}) == key_of({"b": 2, "a": 1})
    True
    """
    return json.dumps(values, sort_keys=True, default=str)


def settings_of_all(records: Sequence[RunRecord]) -> list[dict[str, Any]]:
    """Return all settings of each run except the seed.

    Versions of classgrad have different settings. Where records of one kind do not have the same,
    they are completed: with those that were in effect when they were made, by present names.
    """
    plain = [_settings(record) for record in records]
    names: dict[tuple[str, ...], set[frozenset[str]]] = {}
    for record, settings in zip(records, plain, strict=True):
        kind = record.benchmark, record.network, record.method_name
        names.setdefault(kind, set()).add(frozenset(settings))
    if all(len(different) == 1 for different in names.values()):
        return plain
    return [_in_effect(record) for record in records]


def _settings(record: RunRecord) -> dict[str, Any]:
    parts = (record.method, record.training, record.network_options, stream_options(record))
    merged = {name: value for part in parts for name, value in part.items()}
    return {"network": record.network, **merged}


def _in_effect(record: RunRecord) -> dict[str, Any]:
    merged = {n: v for part in in_effect(record.settings()).values() for n, v in part.items()}
    return {"network": record.network, **merged}


UNSET = object()  # the value of a setting that a run does not have
LONGEST = 16  # characters of a value in a name


def value_text(value: Any) -> str:
    """Return the value of a setting for a name, shortened if it is long.

    >>> value_text(None), value_text(False), value_text(1e-05), value_text("a" * 9 + "b" * 9)
    ('none', 'false', '1e-05', 'aaaaaaa…bbbbbbb')
    >>> value_text({"conv1": 24, "conv2": 100, "fc*": 125})
    '24–125'
    """
    if value is UNSET:
        return "unset"
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        numbers = list(value.values())
        if not numbers or not all(isinstance(number, int | float) for number in numbers):
            return f"{len(value)} values"
        low, high = min(numbers), max(numbers)
        return value_text(low) if low == high else f"{value_text(low)}–{value_text(high)}"
    text = ",".join(map(value_text, value)) if isinstance(value, list | tuple) else str(value)
    half = (LONGEST - 1) // 2
    return text if len(text) <= LONGEST else f"{text[:half]}…{text[-half:]}"


def differing(settings: Mapping[str, Any], others: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of settings that have another value in some of the others, or none there.

    >>> differing({"a": 1, "b": 2, "c": None}, [{"a": 1, "b": 3}])
    ['b', 'c']
    """
    others = list(others)
    return [
        name
        for name, value in settings.items()
        if any(name not in other or other[name] != value for other in others)
    ]


def has_statistics(records: Iterable[RunRecord]) -> bool:
    """Tell whether all accuracies without the task were measured by class statistics, too."""
    return all(record.average_accuracy_task_free_statistics is not None for record in records)


def has_grown(records: Iterable[RunRecord]) -> bool:
    """Tell whether the network of any run has grown or shrunk, by more than small parts of it."""
    known = [record.capacity for record in records if record.capacity is not None]
    return any(abs(capacity - 100) >= 5 for capacity in known)
