"""Details of each run on a page: the command that repeats it, its settings, notes on its data."""

import json
import shlex
from typing import Any

from classgrad.errors import UserError
from classgrad.report.text import duration
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import Plan, make_plan

PARTS = ("method", "training", "network_options", "benchmark_options")


def details(run: RunRecord) -> list[tuple[str, str]]:
    """Return the details of a run, each with a title."""
    device = f"{run.device}, {run.processes} processes" if run.processes > 1 else run.device
    pairs = [
        ("command", command_of(run) or ""),
        ("recipe, network", f"{run.recipe}, {run.network}, {run.parameters:,} parameters"),
        *((part.replace("_", " "), _settings(getattr(run, part))) for part in PARTS),
        ("data", "; ".join(run.data_notes)),
        ("device", device),
        ("time", duration(run.seconds.total)),
        ("versions", ", ".join(f"{name} {number}" for name, number in run.versions.items())),
    ]
    return [(name, text) for name, text in pairs if text]


def progress_of(run: RunRecord) -> str:
    """Return how many tasks an incomplete run has learnt."""
    return f"incomplete: {len(run.accuracy_matrix)} of {len(run.tasks)} tasks"


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} = {json.dumps(value)}" for name, value in values.items())


def command_of(record: RunRecord) -> str | None:
    """Return the command that repeats a run, or None if there is none.

    There is none for streams, methods and recipes of the user's own.
    """
    try:
        saved, default = Plan.from_dict(record.settings()).as_dict(), _plan(record, {}).as_dict()
        values = {
            name: value
            for part in PARTS
            for name, value in saved[part].items()
            if value != default[part].get(name)
        }
        plan = _plan(record, values)
    except UserError:
        return None
    if {**saved, "defaults": plan.defaults} != plan.as_dict():
        return None
    words = ["classgrad", "run", record.benchmark, "--method", record.method_name]
    words += ["--network", record.network, "--recipe", record.recipe, "--seed", str(record.seed)]
    for name, value in values.items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def _plan(record: RunRecord, values: dict[str, Any]) -> Plan:
    return make_plan(
        record.benchmark,
        record.method_name,
        network=record.network,
        recipe=record.recipe,
        seed=record.seed,
        values=values,
    )
