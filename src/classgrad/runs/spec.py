"""What exactly a run does: every value resolved and checked before anything starts."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from classgrad import benchmarks, methods, networks
from classgrad.errors import UserError, unknown
from classgrad.methods.base import Method
from classgrad.networks.options import NetworkSettings
from classgrad.runs import recipes
from classgrad.settings import Settings
from classgrad.tasks import TaskStream
from classgrad.training.config import Training


class NoOptions(Settings):
    """What can be set on a stream that was made already: nothing."""

    kind = "benchmark option"


@dataclass(frozen=True)
class Plan:
    """A run, fully described."""

    benchmark: str
    benchmark_options: dict[str, Any]
    method: Method
    network: str
    network_options: NetworkSettings
    recipe: str
    training: Training
    seed: int

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
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Plan":
        """Return the plan that `as_dict` describes; its benchmark must be in the table."""
        method = dict(values["method"])
        stream_options = benchmarks.find(values["benchmark"]).Options
        return cls(
            benchmark=values["benchmark"],
            benchmark_options=stream_options(**values["benchmark_options"]).model_dump(),
            method=methods.kind(method.pop("name"))(**method),
            network=values["network"],
            network_options=networks.options(values["network"], **values["network_options"]),
            recipe=values["recipe"],
            training=Training(**values["training"]),
            seed=values["seed"],
        )

    def folder_name(self) -> str:
        """Return a name that differs between runs that differ in any value."""
        text = json.dumps(self.as_dict(), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        title = re.sub(r"[^\w.-]+", "-", self.benchmark.partition(":")[0])
        return f"{title}-{self.method.name}-seed{self.seed}-{digest}"


def make_plan(
    benchmark: str | TaskStream = "permuted-digits",
    method: str | Method = "cgp",
    *,
    network: str | None = None,
    recipe: str = "fast",
    seed: int = 1,
    values: Mapping[str, Any] | None = None,
) -> Plan:
    """Resolve names and values: the recipe's first, then those given one by one.

    Each given name belongs to the method, the training, the network or the benchmark. A stream or a
    method that was made already keeps its own options.

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
    network = network or usual
    if network is None:
        raise UserError(f"recipe '{recipe}' names no network for '{title}': give one")
    if network not in networks.NETWORKS:
        raise unknown("network", network, networks.NETWORKS)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UserError(f"seed must be a whole number from 0 on (got {seed!r})")
    parts: dict[str, type[Settings]] = {
        "method": kind,
        "training": Training,
        "network_options": networks.NETWORKS[network].Options,
        "benchmark_options": stream_options,
    }
    filled = {part: book.values(part, title, kind.name) for part in parts}
    if network != usual:  # options and values by layer name were meant for another network
        filled["network_options"] = {}
        plain = {n: v for n, v in filled["method"].items() if not isinstance(v, dict)}
        filled["method"] = plain
    if isinstance(method, Method):
        filled["method"] = method.model_dump()
    if not isinstance(benchmark, str):
        filled["benchmark_options"] = {}
    whose = f"{kind.name} on {title} with {network}"
    filled = assigned(parts, filled, values or {}, whose)
    return Plan(
        benchmark=title,
        benchmark_options=made or stream_options(**filled["benchmark_options"]).model_dump(),
        method=kind(**filled["method"]),
        network=network,
        network_options=networks.options(network, **filled["network_options"]),
        recipe=book.name,
        training=Training(**filled["training"]),
        seed=seed,
    )


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
        word = settings.letters.get(name, name)
        if given.setdefault(word, name) != name:
            raise UserError(f"'{given[word]}' and '{name}' are the same setting: give one of them")
        kept = {n: v for n, v in found[owner].items() if settings.letters.get(n, n) != word}
        found[owner] = {**kept, name: value}
    return found
