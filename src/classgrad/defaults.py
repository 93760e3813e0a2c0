"""What a run, a learner or a guard is known by: the settings that differ from the defaults.

`defaults.json` has the defaults of every version, by part: "training", "method cgp", "network mlp",
"benchmark split-digits". A version holds what changed since the one before. What is written to disk
says by which version it was made; nothing in it has to be known to a later one but its names, which
`Settings.renamed` and `Settings.removed` translate. So a setting that is added, renamed or removed,
and a default that changes, leave what users have on disk as it is:

- the same command finds the run it found before, as it gives the same settings;
- that run goes on with the values it was begun with, whatever the defaults are today.

A setting that came later stands, in what was made before, for what was done then: its first
default, or the value under "before" in the table where that is another.
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
    """Return what changed in each version, by part, and values under "before"."""
    text = resources.files("classgrad").joinpath("defaults.json").read_text(encoding="utf-8")
    content = json.loads(text)
    return {int(number): parts for number, parts in content["versions"].items()}, content["before"]


def newest() -> int:
    """Return the version of the defaults of today."""
    return max(tables()[0])


def check(version: object) -> int:
    """Return a version that a file gives, or refuse one that only a newer classgrad knows."""
    if type(version) is not int or version < 1:
        raise UserError(f"version {version!r} of the defaults is none: the file is damaged")
    if version > newest():
        raise UserError(
            f"it was made with version {version} of the defaults, newer than {newest()}: update "
            "classgrad"
        )
    return version


def of(part: str, version: int | None = None) -> Part:
    """Return the values of a part's settings that were not given, by the names of that version.

    >>> of("training", 1)["batch_size"]
    64
    """
    version = newest() if version is None else version
    versions, before = tables()
    values: Part = {}
    for number, parts in sorted(versions.items()):
        for name, value in parts.get(part, {}).items():
            if number <= version:
                values[name] = value
            elif name not in values:
                values[name] = before.get(part, {}).get(name, value)
    return values


def _current(part: str, kind: type[Settings], version: int) -> Part:
    """Return the defaults of a version by the names of today; of a user's own kind, today's."""
    known = kind.brought_up_to_date(split_lost(kind, of(part, version))[0])
    own = {
        name: plain(field.get_default(call_default_factory=True, validated_data={}))
        for name, field in kind.model_fields.items()
    }
    return {**own, **known}


def given(
    part: str, kind: type[Settings], values: Mapping[str, Any], version: int | None = None
) -> Part:
    """Return the settings of a part that differ from the defaults of the version they are of."""
    version = newest() if version is None else version
    usual = _current(part, kind, version)
    kept, lost = split_lost(kind, plain(values))
    current = kind.brought_up_to_date(kept)
    return {**lost, **{n: v for n, v in current.items() if n not in usual or usual[n] != v}}


def split_lost(kind: type[Settings], values: Mapping[str, Any]) -> tuple[Part, Part]:
    """Return the values that today's settings can express, and those that they cannot."""
    kept, lost = dict(values), {}
    for name in kind.removed.keys() & values.keys():
        try:
            kind.removed[name](values[name])
        except UserError:
            lost[name] = kept.pop(name)
    return kept, lost


def restored(part: str, kind: type[S], values: Mapping[str, Any], version: int) -> S:
    """Return settings as they were when a version wrote their values."""
    fields = kind.model_fields
    usual = {n: v for n, v in _current(part, kind, version).items() if n in fields}
    return kind(**{**usual, **kind.brought_up_to_date(values)})


def first_form(part: str, kind: type[Settings], differing: Mapping[str, Any]) -> Part:
    """Return all settings of the first version, with those that differ; newer ones if they do.

    This is what folders of runs are named by, so that the names of the first version stay.
    """
    first = tables()[0][1].get(part, {})
    names = {kind.field_of(name): name for name in first}
    return {**first, **{names.get(name, name): value for name, value in differing.items()}}


def plain(value: Any) -> Any:
    """Return a value as JSON would give it back."""
    if isinstance(value, Mapping):
        return {str(name): plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value
