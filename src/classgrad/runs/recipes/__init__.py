"""Recipes: settings of training, networks and methods for each benchmark, as TOML files."""

from functools import cache
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from classgrad import toml_files


class Section(BaseModel):
    """Values for one benchmark, or for all. A method's `training` goes before the general one.

    A key of `methods` can name several with commas; where a method is named twice, the later
    values go before the earlier ones.
    """

    model_config = ConfigDict(extra="forbid")

    network: str | None = None
    training: dict[str, Any] = Field(default_factory=dict)
    network_options: dict[str, Any] = Field(default_factory=dict)
    benchmark_options: dict[str, Any] = Field(default_factory=dict)
    methods: dict[str, dict[str, Any]] = Field(default_factory=dict)

    @field_validator("methods")
    @classmethod
    def _training_is_a_table(cls, methods: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, values in methods.items():
            if not isinstance(values.get("training", {}), dict):
                raise ValueError(f"training of '{name}' must be a table")
        return methods

    def of_method(self, method: str) -> dict[str, Any]:
        """Return the values for one method."""
        found: dict[str, Any] = {}
        for names, values in self.methods.items():
            if method in (name.strip() for name in names.split(",")):
                training = {**found.get("training", {}), **values.get("training", {})}
                found |= values
                if training:
                    found["training"] = training
        return found


class Recipe(Section):
    """A named set of values; those of a benchmark go before those for all."""

    name: str
    description: str
    benchmarks: dict[str, Section] = Field(default_factory=dict)

    def values(self, part: str, benchmark: str, method: str) -> dict[str, Any]:
        """Return the values of `training`, `network_options`, `benchmark_options` or `method`."""
        merged: dict[str, Any] = {}
        own = self._section(benchmark)
        for section in (self, own):
            of_method = section.of_method(method)
            of_training = of_method.pop("training", {})
            if part == "method":
                merged.update(of_method)
            else:
                merged.update(getattr(section, part))
            if part == "training":
                merged.update(of_training)
        return merged

    def network_for(self, benchmark: str) -> str | None:
        """Return the network for a benchmark."""
        return self._section(benchmark).network or self.network

    def _section(self, benchmark: str) -> Section:
        """Return the section of a benchmark; folder:PATH goes by `folder`."""
        return self.benchmarks.get(benchmark.partition(":")[0], Section())


def names() -> list[str]:
    """List the recipes that come with the package."""
    return toml_files.names(__name__)


def load(name: str) -> Recipe:
    """Return a recipe by name, or from a file whose name ends in .toml.

    >>> load("fast").network_for("permuted-digits")
    'mlp'
    """
    return toml_files.load(Recipe, __name__, name) if name.endswith(".toml") else _packaged(name)


@cache  # a page of results looks up a recipe hundreds of times
def _packaged(name: str) -> Recipe:
    return toml_files.load(Recipe, __name__, name)
