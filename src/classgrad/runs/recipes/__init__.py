"""Recipes: settings of training, networks and methods for each benchmark, as TOML files."""

import os
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, field_validator

from classgrad import toml_files
from classgrad.errors import UserError, shown
from classgrad.settings import Settings


class Values(BaseModel):
    """Values for training, a network and methods. A method's `training` goes before the general.

    A key of `methods` can name several with commas; where a method is named twice, the later
    values go before the earlier ones.
    """

    model_config = ConfigDict(extra="forbid")

    training: dict[str, Any] = Field(default_factory=dict)
    network_options: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("methods")
    @classmethod
    def _training_is_a_table(cls, methods: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, values in methods.items():
            if not isinstance(values.get("training", {}), dict):
                raise ValueError(f"training of '{name}' must be a table")
        return methods

    def of_part(self, part: str, method: str) -> dict[str, Any]:
        """Return the values of a part of a run with a method; {} of a part that is not here."""
        of_method = self._of_method(method)
        of_training = of_method.pop("training", {})
        if part == "method":
            return of_method
        own: dict[str, Any] = getattr(self, part, {})
        return {**own, **of_training} if part == "training" else own

    def _of_method(self, method: str) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for names, values in self.methods.items():
            if method in (name.strip() for name in names.split(",")):
                training = {**found.get("training", {}), **values.get("training", {})}
                found |= values
                if training:
                    found["training"] = training
        return found


class Section(Values):
    """Values for one benchmark, or for all, with their network.

    The options of the network here, and values by layer name, do not hold with another network.
    `networks` has values for certain networks, by their names, which go before all others.
    """

    network: str | None = None
    benchmark_options: dict[str, Any] = Field(default_factory=dict)
    networks: dict[str, Values] = Field(default_factory=dict)


class Recipe(Section):
    """A named set of values; those of a benchmark go before those for all.

    Whatever it says goes before all that it inherits, even before values for one benchmark or
    method.
    """

    name: str
    description: str = ""
    inherit: str | None = None
    benchmarks: dict[str, Section] = Field(default_factory=dict)

    _parent: "Recipe | None" = PrivateAttr(default=None)

    def values(
        self,
        part: str,
        benchmark: str,
        method: str,
        kind: type[Settings] = Settings,
        network: str | None = None,
    ) -> dict[str, Any]:
        """Return the values of `training`, `network_options`, `benchmark_options` or `method`.

        `kind`, the class of the part, tells which names are of one setting. `network` is the one
        that is used, by default that of the recipe.
        """
        sections = (self, self._section(benchmark))
        usual = self.network_for(benchmark)
        chosen = usual if network is None else network
        merged: dict[str, Any] = {}
        for section in sections:
            merged |= section.of_part(part, method)
        if chosen != usual:
            merged = for_any_network(part, merged)
        for section in sections:
            if chosen in section.networks:
                merged |= section.networks[chosen].of_part(part, method)
        if self._parent is None:
            return merged
        inherited = self._parent.values(part, benchmark, method, kind, chosen)
        fields = {kind.field_of(name) for name in merged}
        kept = {name: v for name, v in inherited.items() if kind.field_of(name) not in fields}
        return {**kept, **merged}

    def network_for(self, benchmark: str) -> str | None:
        """Return the network for a benchmark."""
        own = self._section(benchmark).network or self.network
        return own or (self._parent.network_for(benchmark) if self._parent else None)

    def _section(self, benchmark: str) -> Section:
        """Return the section of a benchmark; folder:PATH goes by `folder`."""
        return self.benchmarks.get(benchmark.partition(":")[0], Section())


def for_any_network(part: str, values: dict[str, Any]) -> dict[str, Any]:
    """Return values of a part without those for a certain network: its options, and by layer name.

    >>> for_any_network("method", {"energy": 0.9, "samples": {"conv1": 24}})
    {'energy': 0.9}
    """
    if part == "network_options":
        return {}
    if part == "method":
        return {name: value for name, value in values.items() if not isinstance(value, dict)}
    return values


def names() -> list[str]:
    """List the recipes that come with the package."""
    return toml_files.names(__name__)


def load(name: str) -> Recipe:
    """Return a recipe by name, or from a file whose name ends in .toml.

    A file that it inherits is named from its own folder.

    >>> load("fast").network_for("permuted-digits")
    'mlp'
    """
    return _load(name, ())


def _load(name: str, heirs: tuple[Path, ...]) -> Recipe:
    """Return a recipe, which those in `heirs` inherit."""
    if not name.endswith(".toml"):
        return _packaged(name)
    recipe = toml_files.load(Recipe, __name__, name)
    if recipe.inherit is not None:
        path = Path(os.path.abspath(name))
        if path in heirs:
            raise UserError(f"recipe '{shown(name)}' inherits itself: let it inherit another")
        parent = recipe.inherit
        if parent.endswith(".toml"):
            parent = os.path.normpath(path.parent / parent)
        recipe._parent = _load(parent, (*heirs, path))
    return recipe


@cache  # a page of results looks up a recipe hundreds of times
def _packaged(name: str) -> Recipe:
    return toml_files.load(Recipe, __name__, name)
