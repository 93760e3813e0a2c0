"""Experiments: the runs behind a table or figure of a paper, with the published figures."""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from classgrad import toml_files
from classgrad.errors import UserError
from classgrad.runs.record import RunRecord

if TYPE_CHECKING:
    from classgrad.runs.spec import Plan

Unit = Literal["per cent", "fraction"]


class Published(BaseModel):
    """Published figures of a run: accuracy and capacity in per cent, transfer in its unit."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    accuracy: float
    transfer: float | None = None
    transfer_unit: Unit = "per cent"
    capacity: float | None = None

    @property
    def transfer_percent(self) -> float | None:
        """Backward transfer in per cent."""
        if self.transfer is None or self.transfer_unit == "per cent":
            return self.transfer
        return 100 * self.transfer


class Line(BaseModel):
    """One line of a table: a method with its settings, on the experiment's benchmark.

    `recipes` has values for some recipes only, which override `values`.
    """

    model_config = ConfigDict(extra="forbid")

    label: str
    method: str
    values: dict[str, Any] = Field(default_factory=dict)
    recipes: dict[str, dict[str, Any]] = Field(default_factory=dict)
    paper: Published | None = None
    note: str = ""

    def plan(self, benchmark: str, recipe: str, seed: int) -> "Plan":
        """Return the run of this line, with every value resolved."""
        from classgrad.runs.spec import make_plan  # PyTorch comes with it

        values = {**self.values, **self.recipes.get(recipe, {})}
        return make_plan(benchmark, self.method, recipe=recipe, seed=seed, values=values)


class Experiment(BaseModel):
    """A table or figure: its lines, and the tolerance within which a figure counts as repeated.

    `values` are those of every line that has no others.
    """

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    title: str
    source: str
    benchmark: str
    tolerance: float = Field(gt=0)  # points of accuracy, and of transfer; see `runs.intervals`
    note: str = ""
    values: dict[str, Any] = Field(default_factory=dict)
    lines: list[Line] = Field(min_length=1)

    @model_validator(mode="after")
    def _lines_have_values(self) -> "Experiment":
        for line in self.lines:
            line.values = {**self.values, **line.values}
        return self

    @model_validator(mode="after")
    def _labels_differ(self) -> "Experiment":
        labels = [line.label for line in self.lines]
        repeated = [label for label in labels if labels.count(label) > 1]
        if repeated:
            raise ValueError(f"two lines have the label '{repeated[0]}'")
        return self

    def distinct_lines(self, recipe: str) -> list[Line]:
        """Return the lines that differ in this recipe: of several with one plan, the first.

        Two rows of one run would look like two measurements that agree.
        """
        by_run: dict[str, Line] = {}
        for line in self.lines:
            by_run.setdefault(line.plan(self.benchmark, recipe, 0).folder_name(), line)
        return list(by_run.values())

    def plans(self, recipe: str, seeds: Iterable[int]) -> "dict[str, list[Plan]]":
        """Return the runs of every distinct line by its label, one for each seed."""
        seeds = list(seeds)
        return {
            line.label: [line.plan(self.benchmark, recipe, seed) for seed in seeds]
            for line in self.distinct_lines(recipe)
        }

    def records(self, records: Iterable[RunRecord], recipe: str) -> dict[str, list[RunRecord]]:
        """Return the records of every distinct line by its label, whatever their seeds.

        A line without records has an empty list.
        """
        records = list(records)
        plans = {label: plan for label, [plan] in self.plans(recipe, [0]).items()}
        return {
            label: [
                record
                for record in records
                if replace(plan, seed=record.seed).has_values(record.settings())
            ]
            for label, plan in plans.items()
        }


def names() -> list[str]:
    """List the experiments that come with the package."""
    return toml_files.names(__package__)


def load(name: str) -> Experiment:
    """Return an experiment by name, or from a file whose name ends in .toml.

    >>> load("eta").lines[0].label
    'η = 0.5'
    """
    return toml_files.load(Experiment, __package__, name)


def load_many(name: str) -> list[Experiment]:
    """Return the experiments that a name stands for: `all`, or several separated by commas."""
    given = [word.strip() for word in name.split(",") if word.strip()]
    if not given:
        raise UserError("no experiment is named: give one of " + ", ".join(names()) + ", or all")
    return [load(word) for word in (names() if "all" in given else given)]
