"""Versioned defaults: a run, a learner or a guard is identified by the settings that differ.

`defaults.json` has the defaults of every version, by part: "training", "method cgp", "network mlp",
"benchmark split-digits". Each version lists only what changed since the one before. Files on disk
say with which version they were made. Later versions need to know only the names of their settings,
and `Settings.renamed` and `Settings.removed` translate those. So files stay valid when a setting is
added, renamed or removed, or when a default changes:

- the same command finds the run it found before, because it gives the same settings;
- that run resumes with the values it was started with, whatever the defaults are now.

For files made before a setting existed, the setting has its first default, or the value under
"before" in the table where the earlier behaviour was a different one.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any, TypeVar

from classgrad.errors import UserError
from classgrad.settings import Settings

S = TypeVar("S", bound=Settings)
Part = dict[str, Any]  # values by the name of their setting


@cache
def tables() -> tuple[dict[int, dict[str, Part]], dict[str, Part]]:
    """Return what changed in each version, by part, and the values under "before"."""
    text = resources.files("classgrad").joinpath("defaults.json").read_text(encoding="utf-8")
    content = json.loads(text)
    return {int(number): parts for number, parts in content["versions"].items()}, content["before"]


def newest_version() -> int:
    """Return the version of the current defaults."""
    return max(tables()[0])


def check_version(version: object) -> int:
    """Return the version that a file gives; refuse one that only a newer classgrad knows."""
    if type(version) is not int or version < 1:
        raise UserError(f"{version!r} is not a version of the defaults: the file is damaged")
    newest = newest_version()
    if version > newest:
        raise UserError(
            f"it was made with version {version} of the defaults, newer than {newest}: update "
            "classgrad"
        )
    return version


def of(part: str, version: int | None = None) -> Part:
    """Return the defaults of a part in a version, by the names that the settings had then.

    >>> of("training", 1)["batch_size"]
    64
    """
    version = newest_version() if version is None else version
    versions, before = tables()
    values: Part = {}
    for number, parts in sorted(versions.items()):
        for name, value in parts.get(part, {}).items():
            if number <= version:
                values[name] = value
            elif name not in values:
                values[name] = before.get(part, {}).get(name, value)
    return values


def knows(part: str) -> bool:
    """Tell whether the table has a part: a method can be there and have no settings."""
    return any(part in parts for parts in tables()[0].values())


def _by_current_names(part: str, kind: type[Settings], version: int) -> Part:
    """Return the defaults of a version by current names.

    Settings that the table does not have, such as those of a user's own class, have the defaults of
    the class.
    """
    in_table = kind.migrate(split_unsupported(kind, of(part, version))[0])
    return {**class_defaults(kind), **in_table}


def class_defaults(kind: type[Settings]) -> Part:
    """Return the defaults of a settings class."""
    return {
        name: as_json(field.get_default(call_default_factory=True, validated_data={}))
        for name, field in kind.model_fields.items()
    }


def non_default(
    part: str, kind: type[Settings], values: Mapping[str, Any], version: int | None = None
) -> Part:
    """Return the settings of a part that differ from the defaults of the version they are of."""
    version = newest_version() if version is None else version
    default_values = _by_current_names(part, kind, version)
    supported, unsupported = split_unsupported(kind, as_json(values))
    current = kind.migrate(supported)
    differing = {
        name: value
        for name, value in current.items()
        if name not in default_values or default_values[name] != value
    }
    return {**unsupported, **differing}


def split_unsupported(kind: type[Settings], values: Mapping[str, Any]) -> tuple[Part, Part]:
    """Return the values that current settings can express, and those that they cannot."""
    supported, unsupported = dict(values), {}
    for name in kind.removed.keys() & values.keys():
        try:
            kind.removed[name](values[name])
        except UserError:
            unsupported[name] = supported.pop(name)
    return supported, unsupported


def restore(part: str, kind: type[S], values: Mapping[str, Any], version: int) -> S:
    """Return settings as they were when a version wrote their values."""
    today = class_defaults(kind)
    then = {n: v for n, v in _by_current_names(part, kind, version).items() if n in today}
    then |= kind.migrate(values)
    # What is today's default too is left to it: 3 in a file would become 3.0 in a float field.
    return kind(**{n: v for n, v in then.items() if n not in today or as_json(v) != today[n]})


def in_first_version(part: str, kind: type[Settings], differing: Mapping[str, Any]) -> Part:
    """Return all settings of the first version, with those that differ; newer ones if they do.

    Folders of runs are named by this, so that names from the first version stay the same.
    """
    first = tables()[0][1].get(part, {})
    names = {kind.field_of(name): name for name in first}
    return {**first, **{names.get(name, name): value for name, value in differing.items()}}


def as_json(value: Any) -> Any:
    """Return a value as it comes back from JSON: mappings as dicts, tuples as lists."""
    if isinstance(value, Mapping):
        return {str(name): as_json(item) for name, item in value.items()}
    return [as_json(item) for item in value] if isinstance(value, list | tuple) else value
