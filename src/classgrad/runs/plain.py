"""What identifies the run of a record, by the table of defaults alone.

`runs.spec.identity` asks the classes of settings, which need PyTorch. The table has the names and
the first defaults of all settings, so the classes are needed only to translate former settings.
"""

from collections.abc import Mapping
from typing import Any

from classgrad import defaults

# Settings of earlier versions, whose values the classes translate.
FORMER = {"training": {"compile"}, "method cgp": {"rule"}}


def keys(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the key in the table of each part of a run's values.

    >>> keys({"benchmark": "folder:birds", "method": {"name": "cgp"}, "network": "mlp"})["method"]
    'method cgp'
    """
    return {
        "benchmark_options": f"benchmark {values['benchmark'].partition(':')[0]}",
        "method": f"method {values['method']['name']}",
        "network_options": f"network {values['network']}",
        "training": "training",
    }


def first_identity(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what identifies a run but for its seed, by the defaults of the first version."""
    names = ("benchmark", "network", "recipe")
    result: dict[str, Any] = {name: values[name] for name in names}
    for part, key in keys(values).items():
        first = defaults.of(key, 1)
        given = {name: value for name, value in values[part].items() if name != "name"}
        differing = {n: v for n, v in given.items() if n not in first or first[n] != v}
        if (given and not first) or FORMER.get(key, set()) & differing.keys():
            return _by_classes(values)
        result[part] = differing
    result["method"]["name"] = values["method"]["name"]
    return result


def in_effect(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return all settings of a run by part: those it lacks as they were before they existed."""
    differing = first_identity(values)
    result = {}
    for part, key in keys(values).items():
        first = defaults.of(key, 1) if defaults.knows(key) else _class_defaults(values, part)
        former = FORMER.get(key, set())
        result[part] = {n: v for n, v in first.items() if n not in former} | differing[part]
    return result


def _by_classes(values: Mapping[str, Any]) -> dict[str, Any]:
    from classgrad.runs.spec import identity

    result = identity(values, version=1)
    del result["seed"]
    return result


def _class_defaults(values: Mapping[str, Any], part: str) -> dict[str, Any]:
    from classgrad.runs.spec import settings_types

    return defaults.class_defaults(settings_types(values)[part][1])
