"""Types of figures, as plain data that the page, picture files and tables of values are made of.

A figure has panels that share their scale, and a table of all its values.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

STYLES = 10  # of lines: colours
LEVELS = 16  # of the colours of heat maps on the page
# The colours of heat maps, from light to dark: sand to deep blue.
SHADES = [(247, 236, 214), (205, 214, 190), (122, 180, 182), (52, 123, 160), (20, 62, 110)]


@dataclass(frozen=True)
class Values:
    """A table of all values of a figure."""

    head: list[str]
    lines: list[list[str]]


@dataclass(frozen=True)
class Mark:
    """A point, a cell, a dot or a part of a bar: its value and its tooltip."""

    value: float
    tip: str


def value_at(marks: Sequence[Mark | None], index: int) -> str:
    """Return a value for a table, or a dash where there is none."""
    mark = marks[index] if index < len(marks) else None
    return f"{mark.value:.1f}" if mark else "–"


@dataclass(frozen=True, kw_only=True)
class Series:
    """A line: a mark or None for each position along the axis, and the number of its style.

    A `bound` is what other lines are measured by. If it has its last mark only, it is a level line.
    """

    label: str
    marks: list[Mark | None]
    style: int = 0
    bound: bool = False

    @property
    def last(self) -> Mark | None:
        """The last mark there is."""
        return next((mark for mark in reversed(self.marks) if mark), None)

    @property
    def level(self) -> bool:
        """Tell whether there is only one mark, at the end."""
        return self.bound and bool(self.marks[-1:] and self.marks[-1] and not any(self.marks[:-1]))


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One of the drawings of a figure."""

    title: str


@dataclass(frozen=True, kw_only=True)
class LinePanel(Panel):
    """Lines in one frame, in front of grey others for comparison."""

    series: list[Series]
    others: list[Series]


@dataclass(frozen=True, kw_only=True)
class HeatPanel(Panel):
    """A matrix, row by row."""

    cells: list[list[Mark | None]]


@dataclass(frozen=True, kw_only=True)
class DotPanel(Panel):
    """Values along one axis, and a note on them."""

    note: str
    dots: list[Mark]


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A bar of one or more parts, and the text at its end."""

    label: str
    parts: list[Mark]
    text: str


@dataclass(frozen=True, kw_only=True)
class BarPanel(Panel):
    """Bars below each other, and the names of their parts."""

    bars: list[Bar]
    parts: list[str]


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What all types of figures have in common.

    The page shows the first `visible` panels and folds the others, or shows all for None. It folds
    a figure that is `aside` with others of its kind.
    """

    kind: str
    title: str
    note: str
    values: Values
    panels: Sequence[Panel]
    visible: int | None = None
    aside: bool = False

    @property
    def heading(self) -> str:
        """What figures of its kind show, for a heading of several."""
        return self.title.partition(":")[0].lower()

    @property
    def hidden(self) -> Sequence[Panel]:
        """The panels that the page folds."""
        return [] if self.visible is None else self.panels[self.visible :]


@dataclass(frozen=True, kw_only=True)
class Lines(Figure):
    """Values over tasks; `wide` figures have one panel with the names of lines at their ends.

    A task has `step` positions along the axis. If they are several, the last is free, and points
    are not marked.
    """

    panels: list[LinePanel]
    low: float
    high: float
    count: int  # of positions along the axis
    axis: str
    wide: bool = False
    step: int = 1

    @property
    def places(self) -> list[float]:
        """The middle of each task along the axis."""
        middle = max(self.step - 2, 0) / 2
        return [start + middle for start in range(0, self.count, self.step)]


@dataclass(frozen=True, kw_only=True)
class Heat(Figure):
    """Matrices of accuracies, with the names of their rows and columns."""

    panels: list[HeatPanel]
    low: float
    high: float
    tasks: list[str]

    def share(self, value: float) -> float:
        """Return where a value is between the lowest and the highest."""
        return (value - self.low) / (self.high - self.low)

    def colour(self, value: float) -> str:
        """Return the colour of a value."""
        return shade(self.share(value))

    def level(self, value: float) -> int:
        """Return the number of a value's colour on the page."""
        return min(max(round(self.share(value) * (LEVELS - 1)), 0), LEVELS - 1)


@dataclass(frozen=True, kw_only=True)
class Dots(Figure):
    """Distributions."""

    panels: list[DotPanel]
    low: float
    high: float
    axis: str


@dataclass(frozen=True, kw_only=True)
class Bars(Figure):
    """Amounts."""

    panels: list[BarPanel]


def swarm(values: Sequence[float], low: float, high: float, columns: int = 50) -> list[float]:
    """Return offsets of dots from the middle line, at most 1, so that they do not overlap.

    >>> swarm([0.0, 5.0, 5.0], 0, 10)
    [0.0, -0.12, 0.12]
    """
    bins = [round((value - low) / (high - low) * columns) for value in values]
    counts, seen = Counter(bins), Counter[int]()
    offsets = []
    for bin_ in bins:
        step = min(0.24, 2 / counts[bin_])
        offsets.append(step * (seen[bin_] - (counts[bin_] - 1) / 2))
        seen[bin_] += 1
    return offsets


def step_of(low: float, high: float, most: int = 5) -> float:
    """Return a round distance between ticks, of which there are at most about `most`.

    >>> step_of(0, 100), step_of(62, 97), step_of(0.7, 0.95)
    (20.0, 10.0, 0.05)
    """
    length = max(high - low, 1e-9)
    sizes = (m * 10.0**power for power in range(-6, 13) for m in (1, 2, 2.5, 5))
    return round(next((size for size in sizes if length / size <= most), length), 9)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Return round values for ticks between two values.

    >>> ticks(62, 97)
    [70.0, 80.0, 90.0]
    """
    step = step_of(low, high, most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(number * step, 9) for number in range(first, last + 1)]


def round_range(values: list[float], least: float = 1.0) -> tuple[float, float]:
    """Return a round range that contains all values and is not empty.

    >>> round_range([62.3, 97.1])
    (60.0, 100.0)
    """
    low, high = min(values, default=0.0), max(values, default=1.0)
    if high - low < least:
        low, high = low - least / 2, high + least / 2
    step = step_of(low, high)
    return math.floor(low / step) * step, math.ceil(high / step) * step


def tick_range(low: float, high: float) -> tuple[float, float]:
    """Return a range that contains another, and begins and ends with a tick.

    >>> tick_range(-10, 50)
    (-20.0, 60.0)
    """
    while True:
        step = step_of(low, high)
        wider = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
        if step_of(*wider) == step:
            return wider
        low, high = wider


def shade(share: float) -> str:
    """Return the colour of a share between 0 and 1.

    >>> shade(0), shade(0.5), shade(2)
    ('#f7ecd6', '#7ab4b6', '#143e6e')
    """
    position = min(max(share, 0.0), 1.0) * (len(SHADES) - 1)
    index = min(int(position), len(SHADES) - 2)
    low, high, part = SHADES[index], SHADES[index + 1], position - index
    mixed = (round(a + (b - a) * part) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{value:02x}" for value in mixed)


def depth(colour: str) -> str:
    """Return "dark" if white text is easier to read on a colour than black, else "light"."""
    light = luminance(colour)
    return "light" if (light + 0.05) / 0.05 >= 1.05 / (light + 0.05) else "dark"


def luminance(colour: str) -> float:
    """Return the relative luminance of #rrggbb, as WCAG defines it."""
    values = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def short(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters.

    >>> short("cgp similarity=0.7", 8)
    'cgp sim…'
    """
    return text if len(text) <= most else text[: most - 1] + "…"
