"""Kinds of figures, as plain data: the same for the page, for pictures and for tables of values.

A figure has panels that share their scale, and a table with all that it shows.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

STYLES = 7  # of lines: colours and marks
# The colours of heat maps: from sand to deep blue, ever darker.
SHADES = [(247, 236, 214), (205, 214, 190), (122, 180, 182), (52, 123, 160), (20, 62, 110)]


@dataclass(frozen=True)
class Values:
    """All that a figure shows, in words."""

    head: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Mark:
    """A point, a cell, a dot or a part of a bar: its value, and what is said of it."""

    value: float
    tip: str


def value_at(marks: Sequence[Mark | None], place: int) -> str:
    """Return a value for a table, a dash where there is none."""
    mark = marks[place] if place < len(marks) else None
    return f"{mark.value:.1f}" if mark else "–"


@dataclass(frozen=True)
class Series:
    """One line: a mark, or nothing, for each place along the axis. The style is a number."""

    label: str
    marks: list[Mark | None]
    style: int


@dataclass(frozen=True)
class Panel:
    """A part of a figure."""

    title: str


@dataclass(frozen=True)
class LinePanel(Panel):
    """Lines in one frame, before others that are there for comparison only."""

    series: list[Series]
    others: list[Series]


@dataclass(frozen=True)
class HeatPanel(Panel):
    """A matrix, line by line."""

    cells: list[list[Mark | None]]


@dataclass(frozen=True)
class DotPanel(Panel):
    """Values along one axis, and a few words on them."""

    note: str
    dots: list[Mark]


@dataclass(frozen=True)
class Bar:
    """A bar of one or more parts, and the text at its end."""

    label: str
    parts: list[Mark]
    text: str


@dataclass(frozen=True)
class BarPanel(Panel):
    """Bars below each other, and what their parts are."""

    bars: list[Bar]
    parts: list[str]


@dataclass(frozen=True)
class Figure:
    """What all figures have."""

    kind: str
    title: str
    note: str
    values: Values
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Lines(Figure):
    """Values over tasks."""

    panels: list[LinePanel]
    low: float
    high: float
    count: int  # of places along the axis
    axis: str


@dataclass(frozen=True)
class Heat(Figure):
    """Matrices of accuracies."""

    panels: list[HeatPanel]
    low: float
    high: float

    def colour(self, value: float) -> str:
        """Return the colour of a value."""
        return shade((value - self.low) / (self.high - self.low))


@dataclass(frozen=True)
class Dots(Figure):
    """Distributions."""

    panels: list[DotPanel]
    low: float
    high: float
    axis: str


@dataclass(frozen=True)
class Bars(Figure):
    """Amounts."""

    panels: list[BarPanel]


def swarm(values: Sequence[float], low: float, high: float, columns: int = 50) -> list[float]:
    """Return how far from the middle, at most 1, values are put so as not to cover each other.

    >>> swarm([0.0, 5.0, 5.0], 0, 10)
    [0.0, -0.12, 0.12]
    """
    places = [round((value - low) / (high - low) * columns) for value in values]
    counts, seen = Counter(places), Counter[int]()
    offsets = []
    for place in places:
        step = min(0.24, 2 / counts[place])
        offsets.append(step * (seen[place] - (counts[place] - 1) / 2))
        seen[place] += 1
    return offsets


def step_of(low: float, high: float, most: int = 5) -> float:
    """Return a round distance between at most so many ticks.

    >>> step_of(0, 100), step_of(62, 97), step_of(0.7, 0.95)
    (20.0, 10.0, 0.05)
    """
    length = max(high - low, 1e-9)
    sizes = (m * 10.0**power for power in range(-6, 13) for m in (1, 2, 2.5, 5))
    return round(next((size for size in sizes if length / size <= most), length), 9)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round values between two.

    >>> ticks(62, 97)
    [70.0, 80.0, 90.0]
    """
    step = step_of(low, high, most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 9) for number in range(first, last + 1)]


def round_range(values: list[float], least: float = 1.0) -> tuple[float, float]:
    """Return a round range that holds all values and is not empty.

    >>> round_range([62.3, 97.1])
    (60.0, 100.0)
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < least:
        low, high = low - least / 2, high + least / 2
    step = step_of(low, high)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def shade(share: float) -> str:
    """Return the colour of a share between 0 and 1.

    >>> shade(0), shade(0.5), shade(2)
    ('#f7ecd6', '#7ab4b6', '#143e6e')
    """
    place = min(max(share, 0.0), 1.0) * (len(SHADES) - 1)
    number = min(int(place), len(SHADES) - 2)
    low, high, part = SHADES[number], SHADES[number + 1], place - number
    mixed = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def depth(colour: str) -> str:
    """Say whether a colour is dark, so that white is easier to read on it than black, or light."""
    light = luminance(colour)
    return "light" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "dark"


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG defines it."""
    values = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def short(text: str, most: int) -> str:
    """Return at most so many characters of a text.

    >>> short("cgp similarity=0.7", 8)
    'cgp sim…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"
