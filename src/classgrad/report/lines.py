"""Lines of experiments, as reports need them: names and a paper's figures; budgets of runs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from classgrad.runs.plain import first_identity
from classgrad.runs.record import RunRecord

ALL = "all data"


@dataclass(frozen=True)
class Budget:
    """How long a run trains on each task, and on how much data."""

    epochs: int | None = None
    data: str = ""  # "all data", "200 per class"; empty if its stream has no such option
    stops_early: bool = False  # `epochs` is the most it can be

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "Budget":
        """Return the budget of a plan or a record, from its settings.

        >>> Budget.of({"training": {"epochs": 3}, "benchmark_options": {"train_per_class": 9}}).text
        '3 epochs, 9 per class'
        """
        training, options = values["training"], values["benchmark_options"]
        epochs, count = training.get("epochs"), options.get("train_per_class")
        data = ALL if "train_per_class" in options else ""
        return cls(
            epochs=epochs if isinstance(epochs, int) else None,
            data=data if count is None else f"{count} per class",
            stops_early=training.get("schedule") == "plateau",
        )

    @property
    def length(self) -> str:
        """How many epochs each task is trained for."""
        if self.epochs is None:
            return ""
        most = "up to " if self.stops_early else ""
        return f"{most}{self.epochs} epoch{'' if self.epochs == 1 else 's'}"

    @property
    def text(self) -> str:
        """Epochs and data."""
        return ", ".join(part for part in (self.length, self.data) if part)

    def less_than(self, paper: "Budget") -> str:
        """Say how it differs from a paper's, such as "12 of up to 200 epochs"; "" if it does not.

        >>> Budget(12, "9 per class").less_than(Budget(200, "all data", True))
        '12 of up to 200 epochs, less data'
        """
        parts = []
        if (self.epochs, self.stops_early) != (paper.epochs, paper.stops_early):
            parts.append(f"{self.epochs} of {paper.length}")
        if self.data != paper.data:
            parts.append("less data" if paper.data == ALL else "other data")
        return ", ".join(parts)


@dataclass(frozen=True)
class ExperimentLine:
    """A line of an experiment, for one recipe; a paper's figures in per cent, if there are any."""

    identity: Mapping[str, Any]  # of its runs with any seed, as `first_identity` has it
    experiment: str
    label: str
    source: str
    tolerance: float  # within which a figure counts as repeated
    paper_budget: Budget
    accuracy: float | None = None
    transfer: float | None = None

    @property
    def benchmark(self) -> str:
        """The benchmark of its runs."""
        return str(self.identity["benchmark"])

    @property
    def method(self) -> str:
        """Name of the method of its runs."""
        return str(self.identity["method"]["name"])


def lines_of(record: RunRecord, lines: Iterable[ExperimentLine]) -> list[ExperimentLine]:
    """Return the lines that a run is of."""
    near = [
        line
        for line in lines
        if line.benchmark == record.benchmark and line.identity["recipe"] == record.recipe
    ]
    identity = first_identity(record.settings()) if near else None
    return [line for line in near if line.identity == identity]
