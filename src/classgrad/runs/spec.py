"""Plans of runs: every value resolved and checked before anything starts, and their identity."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from classgrad import benchmarks, defaults, methods, networks
from classgrad.benchmarks.folder import FolderOptions
from classgrad.errors import UserError, unknown
from classgrad.methods import own
from classgrad.methods.base import Method, checked_method
from classgrad.networks.network import preserved_rng
from classgrad.networks.trunk import HeadSettings, WeightSettings
from classgrad.networks.weights import with_digest
from classgrad.runs import recipes
from classgrad.settings import Settings
from classgrad.tasks import TaskStream
from classgrad.training.config import Training


class NoOptions(Settings):
    """No options, for a stream that a user has made already."""

    kind = "benchmark option"


@dataclass(frozen=True)
class Plan:
    """A run, fully described.

    Its identity is made of the settings that differ from the defaults (`classgrad.defaults`).
    `defaults` is their version: the newest, except for a run that was started with an earlier one.
    A network of a user's own is identified by its class and a digest of its weights.
    """

    benchmark: str
    benchmark_options: dict[str, Any]
    method: Method
    network: str
    network_options: HeadSettings
    recipe: str
    training: Training
    seed: int
    defaults: int = field(default_factory=defaults.newest_version)
    trunk: nn.Module | None = field(default=None, compare=False, repr=False)  # a user's own
    # The file that the digest in `network_options` stands for.
    weights: Path | None = field(default=None, compare=False, repr=False)
    # The `recipe` and the `values` that `make_plan` was called with.
    given: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def as_dict(self) -> dict[str, Any]:
        """Return every value, as the record has them."""
        return {
            "benchmark": self.benchmark,
            "benchmark_options": self.benchmark_options,
            "method": {"name": self.method.name, **self.method.model_dump()},
            "network": self.network,
            "network_options": self.network_options.model_dump(),
            "recipe": self.recipe,
            "training": self.training.model_dump(),
            "seed": self.seed,
            "defaults": self.defaults,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], method: type[Method] | None = None) -> "Plan":
        """Return the plan that `as_dict` describes, with the defaults of when it was written.

        The class of a method that is not in the table has to be given.
        """
        version = defaults.check_version(values.get("defaults", 1))
        kinds = settings_types(values, method)
        if kinds["method"][1] is Settings:
            raise unknown("method", values["method"]["name"], methods.METHODS)
        if kinds["network_options"][1] is Settings:
            raise unknown("network", values["network"], networks.NETWORKS)

        def settings(part: str) -> Any:
            key, kind = kinds[part]
            given = {name: value for name, value in values[part].items() if name != "name"}
            return defaults.restore(key, kind, given, version)

        user_stream = kinds["benchmark_options"][1] is Settings
        return cls(
            benchmark=values["benchmark"],
            benchmark_options=dict(values["benchmark_options"])
            if user_stream
            else settings("benchmark_options").model_dump(),
            method=settings("method"),
            network=values["network"],
            network_options=settings("network_options"),
            recipe=values["recipe"],
            training=settings("training"),
            seed=values["seed"],
            defaults=version,
        )

    def identity(self) -> dict[str, Any]:
        """Return what identifies this run."""
        return identity(self.as_dict(), type(self.method))

    def describes(self, values: Mapping[str, Any]) -> bool:
        """Tell whether values, as a record has them, are those of this run.

        They are if the same settings were given, whatever the defaults were then. They also are if
        all values are the same, whichever of them were given.
        """
        if not values or values["method"]["name"] != self.method.name:
            return False
        same_given = identity(values, type(self.method)) == self.identity()
        return same_given or self.has_values(values)

    def has_values(self, values: Mapping[str, Any]) -> bool:
        """Tell whether values, as a record has them, all are those of this plan.

        Unlike `describes`, this excludes runs that were started with other defaults.
        """
        if not values or values["method"]["name"] != self.method.name:
            return False
        ours, theirs = (
            identity(part, type(self.method), version=1) for part in (self.as_dict(), values)
        )
        return ours == theirs

    def folder_name(self) -> str:
        """Return a name that differs between runs that differ in any value.

        It ends in a digest of the settings of the first version, and of newer ones that differ from
        what was done then, so that names stay the same when settings are added.
        """
        kind = type(self.method)
        values = identity(self.as_dict(), kind, version=1)
        for part, (key, settings) in settings_types(values, kind).items():
            values[part] = defaults.in_first_version(key, settings, values[part])
        text = json.dumps(values, sort_keys=True)
        return self.folder_prefix() + hashlib.sha256(text.encode()).hexdigest()[:8]

    def folder_prefix(self) -> str:
        """Return the common prefix of all runs with this benchmark, method and seed."""
        title = re.sub(r"[^\w.-]+", "-", self.benchmark.partition(":")[0])
        return f"{title}-{self.method.name}-seed{self.seed}-"


def settings_types(
    values: Mapping[str, Any], method: type[Method] | None = None
) -> dict[str, tuple[str, type[Settings]]]:
    """Return, for each part of a plan's values, its key in the defaults and its settings class.

    The class is `Settings` for a user's own stream, and for names that are not in the tables.
    """
    name, network = values["method"]["name"], values["network"]
    title = values["benchmark"].partition(":")[0]
    stream: type[Settings] = FolderOptions if title == "folder" else Settings
    if title in benchmarks.BENCHMARKS:
        stream = benchmarks.BENCHMARKS[title].Options
    trunk, table_method = networks.NETWORKS.get(network), methods.METHODS.get(name)
    no_table: type[Settings] = HeadSettings if network.startswith(networks.OWN) else Settings
    return {
        "benchmark_options": (f"benchmark {title}", stream),
        "method": (f"method {name}", method or table_method or Settings),
        "network_options": (f"network {network}", trunk.Options if trunk else no_table),
        "training": ("training", Training),
    }


def identity(
    values: Mapping[str, Any], method: type[Method] | None = None, *, version: int | None = None
) -> dict[str, Any]:
    """Return what identifies a run: the values that differ from the defaults.

    These are the defaults of `version`, or of the version that the run was made with.
    """
    names = ("benchmark", "network", "recipe", "seed")
    result: dict[str, Any] = {name: values[name] for name in names}
    version = values.get("defaults", 1) if version is None else version
    for part, (key, kind) in settings_types(values, method).items():
        settings = {name: value for name, value in values[part].items() if name != "name"}
        result[part] = defaults.non_default(key, kind, settings, version)
    result["method"]["name"] = values["method"]["name"]
    return result


def make_plan(
    benchmark: str | TaskStream = "permuted-digits",
    method: str | Method = "cgp",
    *,
    network: str | nn.Module | Callable[[], nn.Module] | None = None,
    training: Training | None = None,
    recipe: str = "fast",
    seed: int = 1,
    values: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve names and values: those of the recipe, overridden by those that are given.

    Each name in `values` belongs to the method, the training, the network or the benchmark. Where a
    method or `training` is given as an object, the recipe fills in what that leaves to its
    defaults. A stream of your own keeps its options. A network of your own is a trunk from inputs
    to (n, embedding), or a function that makes one.

    >>> make_plan(values={"eta": 0.9, "epochs": 2}).training.epochs
    2
    """
    refuse_other_types(benchmark, training, recipe)
    if isinstance(benchmark, str):
        title = benchmark
        stream_options: type[Settings] = benchmarks.find(benchmark).Options
        user_options = None
    else:
        title, stream_options, user_options = benchmark.name, NoOptions, benchmark.options
    kind = own.find(method) if isinstance(method, str) else type(checked_method(method))
    loaded_recipe = recipes.load(recipe)
    recipe_network = loaded_recipe.network_for(title)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number from 0 on (got {seed!r})")
    trunk = own_trunk(network, seed) if network and not isinstance(network, str) else None
    name = network if isinstance(network, str) else recipe_network
    options: type[HeadSettings] = HeadSettings
    if trunk is not None:
        name = networks.own_name(trunk)
    elif name is None:
        raise UserError(
            f"recipe '{recipe}' names no network for '{title}': give one, or let the recipe "
            "inherit one"
        )
    elif name not in networks.NETWORKS:
        raise unknown("network", name, networks.NETWORKS)
    else:
        options = networks.NETWORKS[name].Options
    parts: dict[str, type[Settings]] = {
        "method": kind,
        "training": Training,
        "network_options": options,
        "benchmark_options": stream_options,
    }
    filled = {
        part: loaded_recipe.values(part, title, kind.name, settings, name)
        for part, settings in parts.items()
    }
    if isinstance(method, Method):
        filled["method"] = kind.combined(kind.by_name(filled["method"]), method.given())
    if training is not None:
        filled["training"] = {**Training.by_name(filled["training"]), **training.given()}
    if not isinstance(benchmark, str):
        filled["benchmark_options"] = {}
    context = f"{kind.name} on {title} with {name}"
    filled = assign_values(parts, filled, values or {}, context)
    file = None
    if issubclass(options, WeightSettings):
        filled["network_options"], file = with_digest(options, filled["network_options"])
    network_options = options(**filled["network_options"])
    if stream_options.accepts("image_size") and hasattr(network_options, "size"):
        # Pictures are best scaled once, to what the network needs.
        filled["benchmark_options"].setdefault("image_size", network_options.size)
    return Plan(
        benchmark=title,
        benchmark_options=user_options
        or stream_options(**filled["benchmark_options"]).model_dump(),
        method=kind(**filled["method"]),
        network=name,
        network_options=network_options,
        recipe=loaded_recipe.name,
        training=Training(**filled["training"]),
        seed=seed,
        trunk=trunk,
        weights=file,
        given={"recipe": recipe, "values": dict(values or {})},
    )


def refuse_other_types(benchmark: object, training: object, recipe: object) -> None:
    """Refuse arguments of a plan that are nothing it could be made of."""
    for name, given, kinds, wanted in (
        ("benchmark", benchmark, (str, TaskStream), "a name or a TaskStream"),
        ("training", training, (Training, type(None)), "an object such as Training(epochs=3)"),
        ("recipe", recipe, (str,), "a name, or the path of a .toml file as a str"),
    ):
        if not isinstance(given, kinds):
            raise UserError(f"{name} takes {wanted} (got a {type(given).__name__})")


def own_trunk(network: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a user's own trunk, or call the function that makes it, with weights by the seed."""
    if isinstance(network, nn.Module):
        return network
    with preserved_rng():
        torch.manual_seed(seed)
        trunk = network()
    if not isinstance(trunk, nn.Module):
        raise UserError(
            f"the network function returns a {type(trunk).__name__}: let it return a torch module"
        )
    return trunk


def assign_values(
    parts: Mapping[str, type[Settings]],
    filled: Mapping[str, dict[str, Any]],
    values: Mapping[str, Any],
    context: str,
) -> dict[str, dict[str, Any]]:
    """Return the values of each part, with given ones in the first part that has the name.

    `context` says in an error what the settings are for.
    """
    result = dict(filled)
    given: dict[str, str] = {}
    for name, value in values.items():
        owner = next((part for part, settings in parts.items() if settings.accepts(name)), None)
        if owner is None:
            known = [name for settings in parts.values() for name in settings.names()]
            raise unknown(f"setting for {context}", name, known)
        settings = parts[owner]
        field_name = settings.field_of(name)
        if given.setdefault(field_name, name) != name:
            raise UserError(
                f"'{given[field_name]}' and '{name}' are the same setting: give one of them"
            )
        replaced = (
            {field_name} if value is None else {field_name, *settings.excluded_by(field_name)}
        )
        both = sorted(replaced & given.keys() - {field_name})
        if both:
            raise UserError(f"'{name}' and '{given[both[0]]}' exclude each other: give one of them")
        others = {n: v for n, v in result[owner].items() if settings.field_of(n) not in replaced}
        result[owner] = {**others, name: value}
    return result
