"""Which records belong together, and what tells runs of one method apart."""

import json
from collections.abc import Sequence
from typing import Any

from classgrad.runs.record import RunRecord


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
    differ = [name for name in own if any(other.get(name) != own[name] for other in alike)]
    return " ".join([record.method_name, *(f"{name}={own[name]}" for name in differ)])
