"""What exactly a run does: every value resolved and checked before anything starts."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from classgrad import benchmarks, defaults, methods, networks
from classgrad.benchmarks.folder import FolderOptions
from classgrad.errors import UserError, unknown
from classgrad.methods.base import Method
from classgrad.networks.network import preserved_rng
from classgrad.networks.options import HeadSettings
from classgrad.runs import recipes
from classgrad.settings import Settings
from classgrad.tasks import TaskStream
from classgrad.training.config import Training


class NoOptions(Settings):
    """What can be set on a stream that was made already: nothing."""

    kind = "benchmark option"


@dataclass(frozen=True)
class Plan:
    """A run, fully described.

    It is known by its identity: the settings that differ from the defaults (`classgrad.defaults`).
    `defaults` is the version of those; that of today, but for a run that an earlier one has begun.
    A network of a user's own is known by its class and a digest of its weights.
    """

    benchmark: str
    benchmark_options: dict[str, Any]
    method: Method
    network: str
    network_options: HeadSettings
    recipe: str
    training: Training
    seed: int
    defaults: int = field(default_factory=defaults.newest)
    trunk: nn.Module | None = field(default=None, compare=False, repr=False)  # a user's own

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
        """Return the plan that `as_dict` describes, with settings as they were when it was written.

        A method that is not in the table has to be given.
        """
        version = defaults.check(values.get("defaults", 1))
        kinds = kinds_of(values, method)
        if kinds["method"][1] is Settings:
            raise unknown("method", values["method"]["name"], methods.METHODS)
        if kinds["network_options"][1] is Settings:
            raise unknown("network", values["network"], networks.NETWORKS)

        def settings(part: str) -> Any:
            key, kind = kinds[part]
            given = {name: value for name, value in values[part].items() if name != "name"}
            return defaults.restored(key, kind, given, version)

        made = kinds["benchmark_options"][1] is Settings
        return cls(
            benchmark=values["benchmark"],
            benchmark_options=dict(values["benchmark_options"])
            if made
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
        """Return what this run is known by."""
        return identity(self.as_dict(), type(self.method))

    def describes(self, values: Mapping[str, Any]) -> bool:
        """Tell whether values, as a record has them, are of this run.

        They are if the same settings were given, whatever the defaults were then, and also if all
        values are the same, whichever of them were given.
        """
        if not values or values["method"]["name"] != self.method.name:
            return False
        kind = type(self.method)
        return identity(values, kind) == self.identity() or (
            identity(values, kind, version=1) == identity(self.as_dict(), kind, version=1)
        )

    def folder_name(self) -> str:
        """Return a name that differs between runs that differ in any value.

        It is a digest of the settings that the first version had, and of newer ones that differ
        from what was done then, so that a name stays when there are more settings.
        """
        kind = type(self.method)
        own = identity(self.as_dict(), kind, version=1)
        for part, (key, settings) in kinds_of(own, kind).items():
            own[part] = defaults.first_form(key, settings, own[part])
        text = json.dumps(own, sort_keys=True)
        return self.folder_prefix() + hashlib.sha256(text.encode()).hexdigest()[:8]

    def folder_prefix(self) -> str:
        """Return what the names of all runs with this benchmark, method and seed begin with."""
        title = re.sub(r"[^\w.-]+", "-", self.benchmark.partition(":")[0])
        return f"{title}-{self.method.name}-seed{self.seed}-"


def kinds_of(
    values: Mapping[str, Any], method: type[Method] | None = None
) -> dict[str, tuple[str, type[Settings]]]:
    """Return for each part of a plan's values its key in the defaults, and its settings.

    Those of a stream that was made already, or of what is no longer in the tables, are any.
    """
    name, network = values["method"]["name"], values["network"]
    title = values["benchmark"].partition(":")[0]
    stream: type[Settings] = FolderOptions if title == "folder" else Settings
    if title in benchmarks.BENCHMARKS:
        stream = benchmarks.BENCHMARKS[title].Options
    trunk, table_method = networks.NETWORKS.get(network), methods.METHODS.get(name)
    own: type[Settings] = HeadSettings if network.startswith(networks.OWN) else Settings
    return {
        "benchmark_options": (f"benchmark {title}", stream),
        "method": (f"method {name}", method or table_method or Settings),
        "network_options": (f"network {network}", trunk.Options if trunk else own),
        "training": ("training", Training),
    }


def identity(
    values: Mapping[str, Any], method: type[Method] | None = None, *, version: int | None = None
) -> dict[str, Any]:
    """Return what tells a run from others: of all values, those that differ from the defaults.

    These are the defaults it was made with, or those of a version.
    """
    names = ("benchmark", "network", "recipe", "seed")
    own: dict[str, Any] = {name: values[name] for name in names}
    version = values.get("defaults", 1) if version is None else version
    for part, (key, kind) in kinds_of(values, method).items():
        rest = {name: value for name, value in values[part].items() if name != "name"}
        own[part] = defaults.given(key, kind, rest, version)
    own["method"]["name"] = values["method"]["name"]
    return own


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
    """Resolve names and values: the recipe's first, then those given one by one.

    Each name in `values` belongs to the method, the training, the network or the benchmark. Of a
    method and of `training` that are given as objects, the recipe fills in what they leave to their
    defaults. A stream that was made already keeps its own options. A network of your own is a trunk
    from inputs to (n, embedding), or what makes one.

    >>> make_plan(values={"eta": 0.9, "epochs": 2}).training.epochs
    2
    """
    if isinstance(benchmark, str):
        title = benchmark
        stream_options: type[Settings] = benchmarks.find(benchmark).Options
        made = None
    else:
        title, stream_options, made = benchmark.name, NoOptions, benchmark.options
    kind = methods.kind(method) if isinstance(method, str) else type(method)
    book = recipes.load(recipe)
    usual = book.network_for(title)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number from 0 on (got {seed!r})")
    trunk = own_trunk(network, seed) if network and not isinstance(network, str) else None
    name = network if isinstance(network, str) else usual
    if trunk is not None:
        name, options = networks.own_name(trunk), HeadSettings
    elif name is None:
        raise UserError(f"recipe '{recipe}' names no network for '{title}': give one")
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
    filled = {part: book.values(part, title, kind.name) for part in parts}
    if name != usual:  # options and values by layer name were meant for another network
        filled["network_options"] = {}
        plain = {n: v for n, v in filled["method"].items() if not isinstance(v, dict)}
        filled["method"] = plain
    if isinstance(method, Method):
        filled["method"] = {**kind.by_name(filled["method"]), **method.given()}
    if training is not None:
        filled["training"] = {**Training.by_name(filled["training"]), **training.given()}
    if not isinstance(benchmark, str):
        filled["benchmark_options"] = {}
    whose = f"{kind.name} on {title} with {name}"
    filled = assigned(parts, filled, values or {}, whose)
    return Plan(
        benchmark=title,
        benchmark_options=made or stream_options(**filled["benchmark_options"]).model_dump(),
        method=kind(**filled["method"]),
        network=name,
        network_options=options(**filled["network_options"]),
        recipe=book.name,
        training=Training(**filled["training"]),
        seed=seed,
        trunk=trunk,
    )


def own_trunk(network: nn.Module | Callable[[], nn.Module], seed: int) -> nn.Module:
    """Return a trunk of a user's own, or what a function makes, with weights by the seed."""
    if isinstance(network, nn.Module):
        return network
    with preserved_rng():
        torch.manual_seed(seed)
        trunk = network()
    if not isinstance(trunk, nn.Module):
        raise UserError(
            f"the network makes a {type(trunk).__name__}: it has to make a module of PyTorch"
        )
    return trunk


def assigned(
    parts: Mapping[str, type[Settings]],
    filled: Mapping[str, dict[str, Any]],
    values: Mapping[str, Any],
    whose: str,
) -> dict[str, dict[str, Any]]:
    """Return what is filled in for each part, with given values in the part that has the name."""
    found = dict(filled)
    given: dict[str, str] = {}
    for name, value in values.items():
        owner = next((part for part, settings in parts.items() if settings.accepts(name)), None)
        if owner is None:
            known = [name for settings in parts.values() for name in settings.names()]
            raise unknown(f"setting for {whose}", name, known)
        settings = parts[owner]
        word = settings.field_of(name)
        if given.setdefault(word, name) != name:
            raise UserError(f"'{given[word]}' and '{name}' are the same setting: give one of them")
        kept = {n: v for n, v in found[owner].items() if settings.field_of(n) != word}
        found[owner] = {**kept, name: value}
    return found
