"""Rows of measured figures, for the table and for the JSON file."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from benchmarks.timing import Timing

# For each unit the scales its values are printed in, from large to small.
SCALES = {
    "s": [(1.0, "s"), (1e-3, "ms"), (1e-6, "µs")],
    "flop/s": [(1e9, "GF/s")],
    "MB": [(1.0, "MB")],
    "images/s": [(1.0, "images/s")],
}


@dataclass(frozen=True)
class Quantity:
    """A measured value in `s`, `flop/s`, `MB` or `images/s`, the best of `repeats`."""

    value: float
    unit: str = "s"
    repeats: int = 1

    @classmethod
    def of(cls, timing: Timing) -> "Quantity":
        """Return a time."""
        return cls(timing.best, "s", timing.repeats)

    @classmethod
    def rate(cls, flops: float, timing: Timing) -> "Quantity":
        """Return a rate, from a number of operations and their time."""
        return cls(flops / timing.best, "flop/s", timing.repeats)

    def __str__(self) -> str:
        scales = SCALES[self.unit]
        scale, label = next((pair for pair in scales if self.value >= pair[0]), scales[-1])
        return f"{readable(self.value / scale)} {label}"


@dataclass(frozen=True)
class Bound:
    """The limit that a figure must reach, and the aim it should reach."""

    limit: float
    at_least: bool = False
    aim: float | None = None
    unit: str = ""

    def reached(self, figure: float) -> bool:
        """Tell whether a figure is within the bound."""
        return figure >= self.limit if self.at_least else figure <= self.limit

    def __str__(self) -> str:
        aim = "" if self.aim is None else f", aim {self.aim:g}"
        return f"{'>=' if self.at_least else '<='} {self.limit:g} {self.unit}".rstrip() + aim


@dataclass(frozen=True)
class Row:
    """A row of the table; without a bound it is for comparison only.

    The bound is on `figure`: the ratio of ours and the reference or, without a reference, ours.
    """

    what: str
    ours: Quantity
    reference: Quantity | None
    figure: float
    bound: Bound | None = None
    note: str = ""
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def slower(cls, what: str, ours: Quantity, reference: Quantity, **rest: Any) -> "Row":
        """Return a row whose figure is how many times as long the reference takes."""
        return cls(what, ours, reference, reference.value / ours.value, **rest)

    @classmethod
    def share(cls, what: str, ours: Quantity, reference: Quantity, **rest: Any) -> "Row":
        """Return a row whose figure is ours as a multiple of the reference."""
        return cls(what, ours, reference, ours.value / reference.value, **rest)

    def as_dict(self) -> dict[str, Any]:
        """Return all of the row, for JSON."""
        return {
            "what": self.what,
            "ours": vars(self.ours),
            "reference": None if self.reference is None else vars(self.reference),
            "figure": self.figure,
            "required": None if self.bound is None else str(self.bound),
            "reached": None if self.bound is None else self.bound.reached(self.figure),
            "note": self.note,
            **self.details,
        }


def table(rows: Sequence[Row], title: str) -> Table:
    """Return the rows as a table for the terminal."""
    result = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    result.add_column("what")
    for heading in ("ours", "reference", "ratio", "required", "reached"):
        result.add_column(heading, justify="right", no_wrap=True)
    for row in rows:
        reached = "-" if row.bound is None else "yes" if row.bound.reached(row.figure) else "no"
        result.add_row(
            row.what,
            str(row.ours),
            "-" if row.reference is None else str(row.reference),
            "-" if row.reference is None else readable(row.figure),
            "-" if row.bound is None else str(row.bound),
            reached,
        )
    return result


def readable(figure: float) -> str:
    """Return a figure with three significant digits, or more from 100.

    >>> readable(1234.6), readable(23.456), readable(1.0489), readable(0.0213)
    ('1,235', '23.5', '1.05', '0.0213')
    """
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.3g}"


def save(path: Path, machine: dict[str, Any], rows: dict[str, list[Row]]) -> None:
    """Write all rows, by measurement, with a description of the machine."""
    measurements = {name: [row.as_dict() for row in lines] for name, lines in rows.items()}
    results = {**machine, "measurements": measurements}
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
