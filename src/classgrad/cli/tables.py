"""Tables of methods, benchmarks, networks, recipes and experiments, and what each entry has.

The classes of the entries say all this, but they need torch, which takes more than a second to
import. So it is also in tables.json; `python tests/list_tables.py` writes it, a test compares it.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from classgrad.errors import unknown

if TYPE_CHECKING:
    from classgrad.runs.recipes import Recipe, Section, Values

PARTS = ("training", "network_options", "benchmark_options")  # of a recipe, besides methods

Entry = dict[str, Any]  # a setting: its description, default and alias; its value in a recipe


def all_tables() -> dict[str, dict[str, str]]:
    """Return each table by its title, with a summary of each entry by name."""
    tables: dict[str, dict[str, str]] = _read()["tables"]
    return tables


def what_it_has(name: str) -> dict[str, dict[str, str]]:
    """Return what each entry with this name has: settings, or the parts of a recipe or experiment.

    >>> list(what_it_has("five-datasets"))
    ['five-datasets', 'experiment five-datasets']
    """
    content, tables = _read(), all_tables()
    found: dict[str, dict[str, str]] = {}
    if name.partition(":")[0] in content["settings"]:
        found[name] = settings_of(name)
    if name in tables["recipes"] or name.endswith(".toml"):
        found[f"recipe {name}"] = parts_of_recipe(name)
    if name in tables["experiments"]:
        found[f"experiment {name}"] = content["experiments"][name]
    if not found:
        known = {*content["settings"], *tables["recipes"], *tables["experiments"]}
        raise unknown("method, benchmark, network, recipe or experiment", name, known)
    return found


def settings_of(name: str) -> dict[str, str]:
    """Return the settings of an entry, or of training, with their descriptions and defaults.

    >>> settings_of("cgp")["similarity (eta)"]
    'cosine above which classes share a group (η); 1: never (default 0.7)'
    """
    return {
        label_of(field, entry): f"{entry['description']} (default {json.dumps(entry['default'])})"
        for field, entry in settings(name).items()
    }


def settings(name: str) -> dict[str, Entry]:
    """Return the settings of an entry, or of training, by name."""
    found: dict[str, dict[str, Entry]] = _read()["settings"]
    return found[name.partition(":")[0]]


def settings_in_recipe(name: str, benchmark: str, recipe: "Recipe") -> dict[str, dict[str, Entry]]:
    """Return the settings of an entry, and a recipe's values of them on a benchmark.

    The values that it has there for other parts of a run come after them.
    """
    tables = all_tables()
    kind, _, path = benchmark.partition(":")
    if kind not in tables["benchmarks"] and not (kind == "folder" and path):
        raise unknown("benchmark", benchmark, tables["benchmarks"])
    networks, methods = tables["networks"], tables["methods"]
    if name not in (benchmark, "training", *methods, *networks):
        raise unknown(
            f"method or network for {benchmark}", name, (benchmark, "training", *methods, *networks)
        )
    network = name if name in networks else recipe.network_for(benchmark)
    if network is not None and network not in networks:
        raise unknown("network", network, networks)
    parts = {"method": name if name in methods else None, "training": "training"}
    parts |= {"network_options": network, "benchmark_options": benchmark}
    found: dict[str, dict[str, Entry]] = {}
    for part, title in sorted(parts.items(), key=lambda pair: pair[1] != name):
        if title is None:
            continue
        given = recipe.values(part, benchmark, name, network=network)
        if part == "benchmark_options" and network is not None:
            given = {**image_size(benchmark, network, recipe), **given}
        entries = {
            label_of(field, entry): with_value(field, entry, given)
            for field, entry in settings(title).items()
        }
        if title != name:
            entries = {label: entry for label, entry in entries.items() if "value" in entry}
        if entries or title == name:
            found[title] = entries
    return found


def image_size(benchmark: str, network: str, recipe: "Recipe") -> dict[str, Any]:
    """Return the size that a benchmark's pictures are scaled to for a network, if it has one."""
    if "image_size" not in settings(benchmark) or "size" not in settings(network):
        return {}
    given = recipe.values("network_options", benchmark, "", network=network)
    return {"image_size": given.get("size", settings(network)["size"]["default"])}


def with_value(field: str, entry: Entry, given: Mapping[str, Any]) -> Entry:
    """Return a setting with the value that is given by its name or alias, if there is one."""
    values = [value for name, value in given.items() if name in (field, entry["alias"])]
    return {**entry, "value": values[-1]} if values else entry  # what is inherited comes first


def parts_of_recipe(name: str) -> dict[str, str]:
    """Return the values of a recipe for all benchmarks, and those that it has for each.

    Values for one method are left out: with them it would take some pages.
    """
    from classgrad.runs import recipes

    loaded = recipes.load(name)
    sections: dict[str, Section] = {"all benchmarks": loaded, **loaded.benchmarks}
    rows = {"description": loaded.description, "inherits": loaded.inherit or ""}
    rows = {name: value for name, value in rows.items() if value}
    for title, section in sections.items():
        rows[title] = as_words(section, {"network": section.network} if section.network else {})
        for name, values in section.networks.items():
            rows[title] += f"; with {name}: {as_words(values)}"
    return rows


def as_words(values: "Values", more: Mapping[str, str] | None = None) -> str:
    """Return values of a recipe in words, only the names of methods that it has values for."""
    named: dict[str, Any] = {**(more or {})}
    for part in PARTS:
        named |= getattr(values, part, {})
    text = ", ".join(f"{name}={as_text(value)}" for name, value in named.items())
    methods = sorted({one.strip() for names in values.methods for one in names.split(",")})
    of_methods = f"values for {', '.join(methods)}" if methods else ""
    return "; ".join(part for part in (text, of_methods) if part)


def label_of(field: str, entry: Entry) -> str:
    """Return the name of a setting with its alias."""
    return f"{field} ({entry['alias']})" if entry["alias"] else field


def as_text(value: Any) -> str:
    """Return a value as `--set` takes it.

    >>> as_text("sgd"), as_text({"fc*": 125}), as_text(1e-5)
    ('sgd', '{"fc*": 125}', '1e-05')
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@cache
def _read() -> dict[str, Any]:
    text = resources.files(__package__).joinpath("tables.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
