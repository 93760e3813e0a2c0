"""Figures as inline SVG and tables, small enough for the screen of a phone, and readable there."""

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from classgrad.report.page.charts import (
    LEVELS,
    STYLES,
    BarPanel,
    Bars,
    DotPanel,
    Dots,
    Figure,
    Heat,
    HeatPanel,
    LinePanel,
    Lines,
    Mark,
    Panel,
    Series,
    depth,
    shade,
    short,
    swarm,
    ticks,
)
from classgrad.report.page.figures import styles
from classgrad.report.page.summary import Row, Section, track_range

Axis = Callable[[float], float]


@dataclass(frozen=True)
class Size:
    """The size of a drawing of lines, and how their names are written at its right side.

    With no `letters` there is only a number, which the legend explains.
    """

    name: str  # CSS class: for which windows it is
    width: float
    height: float
    right: float
    letters: int = 0  # of a line of a name


SMALL = Size("small", 240, 130, 10)
SIZES = [Size("large", 1080, 275, 280, 33), Size("middle", 680, 300, 190, 22)]
SIZES.append(Size("narrow", 350, 230, 34))
MOST_TEXT = 4  # lines of a name
LINE, TEXT = 15.0, 4.0  # height of a line of text, and from its middle to its baseline


def drawings(figure: Figure, panel: Panel) -> list[Markup]:
    """Return the drawings of a panel: one, or one for each size of windows."""
    if isinstance(figure, Lines) and isinstance(panel, LinePanel):
        return [lines(figure, panel, size) for size in (SIZES if figure.wide else [SMALL])]
    if isinstance(figure, Heat) and isinstance(panel, HeatPanel):
        return [heat(figure, panel)]
    if isinstance(figure, Dots) and isinstance(panel, DotPanel):
        return [dots(figure, panel)]
    if isinstance(panel, BarPanel):
        return [bars(panel)]
    raise TypeError(f"no drawing for {type(panel).__name__}")


def layout(figure: Figure) -> str:
    """Return the CSS class for the width of a figure's panels."""
    if isinstance(figure, Lines):
        return "one" if figure.wide else "usual"
    if isinstance(figure, Heat):
        count = max(len(panel.cells) for panel in figure.panels)
        if count <= 6:
            return "narrow"
        return "third" if count <= 12 and _name_width(figure.tasks) != "long" else "half"
    return "wide" if isinstance(figure, Bars) else "strips"


def legend(figure: Figure) -> list[tuple[Markup, str]]:
    """Return samples of lines or of parts of bars, with their names."""
    if isinstance(figure, Bars):
        parts = [part for panel in figure.panels for part in enumerate(panel.parts)]
        return [(element("i", "", class_=f"box p{index}"), name) for index, name in parts]
    if isinstance(figure, Lines):
        series = {line.label: line for panel in figure.panels for line in panel.series}
        if list(series) == [panel.title for panel in figure.panels]:
            return []  # each panel has the name of its line
        return [(swatch(line), label) for label, line in series.items()]
    return []


def lines(figure: Lines, panel: LinePanel, size: Size) -> Markup:
    """Draw lines over tasks; in a wide figure, with their names at their ends."""
    labels = _labels(panel.series, size, figure.low) if figure.wide else []
    longest = max((len(text) for label in labels for text in label.texts), default=0)
    left, top, bottom = 34.0, 12.0, 36.0
    needed = sum(label.height for label in labels)
    width, height = size.width, max(size.height, needed + top + bottom)
    right = width - (min(size.right, 7.4 * longest + 40) if size.letters else size.right)

    def x_of(task: float) -> float:
        share = task / (figure.count - 1) if figure.count > 1 else 0.5
        return left + 10 + (right - left - 20) * share

    def y_of(value: float) -> float:
        share = (value - figure.low) / (figure.high - figure.low)
        return top + (height - top - bottom) * (1 - share)

    parts, inside = [], []
    for tick in ticks(figure.low, figure.high, 5 if figure.wide else 4):
        y = y_of(tick)
        parts.append(element("path", class_="rule", d=f"M{left:g} {y:.1f}H{right:g}"))
        parts.append(text(left - 5, y + TEXT, f"{tick:g}", "end"))
    most = max(2, int((right - left) / 30))
    every = -(-len(figure.places) // most)
    parts += [
        text(x_of(place), height - bottom + 15, str(task + 1), "middle")
        for task, place in enumerate(figure.places)
        if task % every == 0
    ]
    parts.append(text((left + right) / 2, height - 4, figure.axis, "middle"))
    for series in panel.others:
        last = series.last
        tip = Mark(0.0, f"{series.label}: {last.value:.1f} % at the end" if last else series.label)
        inside.append(with_tip("path", tip, class_="other", d=_path(series, x_of, y_of)))
    for series in panel.series:
        path = _path(series, x_of, y_of)
        if series.level and series.last:
            path = f"M{left:g} {y_of(series.last.value):.1f}H{x_of(figure.count - 1):.1f}"
        inside.append(element("path", class_=_class("line", series), d=path))
        for task, mark in enumerate(series.marks):
            if mark and figure.low <= mark.value <= figure.high:
                symbol = _symbol(series, x_of(task), y_of(mark.value))
                kind = "mark" if figure.step == 1 else "mark unmarked"
                inside.append(with_tip("path", mark, class_=_class(kind, series), d=symbol))
    frame = {"x": left, "y": top - 6, "width": right - left, "height": height - top - bottom + 12}
    box = " ".join(f"{value:g}" for value in frame.values())
    parts.append(element("svg", *inside, **frame, viewBox=box, class_="frame"))
    parts += _names_at_ends(labels, y_of, (x_of(figure.count - 1), right, height - bottom))
    ends = [f"{line.label} {line.last.value:.1f}" for line in panel.series if line.last]
    title = f"{figure.title}, {panel.title}" if panel.title else figure.title
    description = f"{title}. At the end, %: {', '.join(ends) or 'nothing measured'}."
    return picture(width, height, description, parts, size.name)


@dataclass(frozen=True)
class Label:
    """The name of a line on one or more lines of text, and its last value."""

    series: Series
    texts: list[str]
    value: float

    @property
    def height(self) -> float:
        """How much space it needs."""
        return LINE * len(self.texts) + 1


def _labels(series: Sequence[Series], size: Size, low: float) -> list[Label]:
    """Return the names of lines, from the highest end to the lowest."""
    result = []
    for number, line in enumerate(series, 1):
        if not line.last:
            continue
        value = line.last.value
        texts = [str(number)]
        if size.letters:
            below = " ↓" if value < low else ""
            texts = textwrap.wrap(f"{value:.1f}{below} {line.label}", size.letters)
            texts = [*texts[:MOST_TEXT], *["…"] * (len(texts) > MOST_TEXT)]
        result.append(Label(line, texts, value))
    return sorted(result, key=lambda label: -label.value)


def _names_at_ends(
    labels: Sequence[Label], y_of: Axis, place: tuple[float, float, float]
) -> list[Markup]:
    """Return names beside the ends of lines, moved apart where they would overlap."""
    end, right, lowest = place
    middles: list[float] = []
    free = 0.0  # above it all space is taken
    for label in labels:
        middle = max(min(y_of(label.value), lowest), free + label.height / 2)
        middles.append(middle)
        free = middle + label.height / 2
    limit = lowest
    for index in reversed(range(len(middles))):
        half = labels[index].height / 2
        middles[index] = min(middles[index], limit - half)
        limit = middles[index] - half
    parts = []
    for label, middle in zip(labels, middles, strict=True):
        y = min(y_of(label.value), lowest + 4)
        start = right + 20
        leader = f"M{end + 6:.1f} {y:.1f}L{start - 4:.1f} {middle:.1f}"
        parts.append(element("path", class_=_class("leader", label.series), d=leader))
        first = middle - LINE * (len(label.texts) - 1) / 2 + TEXT
        parts += [
            text(start, first + LINE * index, line, "start", _class("name", label.series))
            for index, line in enumerate(label.texts)
        ]
    return parts


def _path(series: Series, x_of: Axis, y_of: Axis) -> str:
    """Return the path through the marks, with a gap where one is missing."""
    path, drawing = "", False
    for task, mark in enumerate(series.marks):
        if mark:
            path += f"{'L' if drawing else 'M'}{x_of(task):.1f} {y_of(mark.value):.1f}"
        drawing = mark is not None
    return path


def _class(kind: str, series: Series) -> str:
    return f"{kind} bound" if series.bound else f"{kind} s{series.style % STYLES}"


def _symbol(series: Series, x: float, y: float) -> str:
    """Return the symbol of a line as a path: circle, square, triangle, diamond, ..."""
    r = 3.4
    symbols = [
        f"M{x - r:.1f} {y:.1f}a{r} {r} 0 1 0 {2 * r} 0a{r} {r} 0 1 0 {-2 * r} 0",
        f"M{x - 3:.1f} {y - 3:.1f}h6v6h-6z",
        f"M{x:.1f} {y - 4:.1f}l3.8 7h-7.6z",
        f"M{x:.1f} {y - 4.4:.1f}l4.4 4.4l-4.4 4.4l-4.4 -4.4z",
        f"M{x:.1f} {y + 4:.1f}l3.8 -7h-7.6z",
        f"M{x - 4:.1f} {y - 1.3:.1f}h2.7v-2.7h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7z",
        f"M{x - 4.4:.1f} {y - 1.8:.1f}h8.8v3.6h-8.8z",
    ]
    return symbols[-1] if series.bound else symbols[series.style % (len(symbols) - 1)]


def swatch(series: Series) -> Markup:
    """Draw the sample of a line for the legend."""
    line = element("path", class_=_class("line", series), d="M1 7H29")
    mark = element("path", class_=_class("mark", series), d=_symbol(series, 15, 7))
    return element("svg", line, mark, viewBox="0 0 30 14", class_="swatch", aria_hidden="true")


def sample(section: Section, row: Row) -> Markup:
    """Draw the sample of a row's line, which is the same in all figures; nothing if it has none."""
    known = styles(section)
    if row.label not in known:
        return Markup("")
    style = known[row.label]
    return swatch(Series(label=row.label, marks=[], style=style or 0, bound=style is None))


def heat(figure: Heat, panel: HeatPanel) -> Markup:
    """Return a matrix as a table whose cells have the colours of their values."""
    count = len(panel.cells)
    names = [name.replace("_", " ") for name in figure.tasks]
    names += [f"task {task + 1}" for task in range(len(names), count)]
    head = [element("td", "")] + [
        element("th", str(task + 1), scope="col", title=names[task]) for task in range(count)
    ]
    rows = [element("tr", *head)]
    for task, line in enumerate(panel.cells):
        number = element("b", str(task + 1))
        name = element("span", names[task])
        cells = [element("th", number, name, scope="row", title=names[task])]
        for mark in line:
            if mark is None:
                cells.append(element("td", ""))
                continue
            level = figure.level(mark.value)
            figures, text_class = f"{mark.value:.0f}", depth(shade(level / (LEVELS - 1)))
            kind = f"h{level} on-{text_class}{' long' if len(figures) > 2 else ''}"
            cells.append(element("td", figures, class_=kind, data_tip=mark.tip))
        cells += [element("td", "")] * (count - len(line))
        rows.append(element("tr", *cells))
    known = [mark.value for line in panel.cells for mark in line if mark]
    description = f"{figure.title}, {panel.title}: from {min(known):.1f} to {max(known):.1f} %"
    return element(
        "table",
        element("thead", rows[0]),
        element("tbody", *rows[1:]),
        class_=f"heat{' many' if count > 12 else ''} names-{_name_width(names)}",
        aria_label=description,
        data_marks="",
    )


def _name_width(names: Sequence[str]) -> str:
    """Return the CSS class for the column of the longest name."""
    longest = max(map(len, names), default=0)
    return "short" if longest <= 9 else "usual" if longest <= 16 else "long"


def scale(figure: Heat) -> Markup:
    """Draw the colours of a heat map, from the lowest value to the highest."""
    parts = [
        element("rect", x=44 + 7.5 * i, y=2, width=7.7, height=10, fill=shade(i / (LEVELS - 1)))
        for i in range(LEVELS)
    ]
    ends = [
        text(38, 12, f"{figure.low:g} %", "end"),
        text(170, 12, f"{figure.high:g} %", "start"),
    ]
    return element("svg", *parts, *ends, viewBox="0 0 215 15", class_="scale", aria_hidden="true")


def dots(figure: Dots, panel: DotPanel) -> Markup:
    """Draw values along an axis; dots that would overlap are moved apart.

    The drawing is stretched to the width there is. Dots are lines without length, whose round ends
    keep their size.
    """
    x_of = _stretched(figure.low, figure.high)
    parts = []
    for tick in ticks(figure.low, figure.high):
        kind = "zero" if tick == 0 else "rule"
        parts.append(element("path", class_=kind, d=f"M{x_of(tick):.1f} 0V40"))
    offsets = swarm([dot.value for dot in panel.dots], figure.low, figure.high, 120)
    for dot, offset in zip(panel.dots, offsets, strict=True):
        path = f"M{x_of(dot.value):.1f} {20 + 16 * offset:.1f}h.1"
        parts.append(with_tip("path", dot, class_="dot", d=path))
    if panel.dots:
        mean = sum(dot.value for dot in panel.dots) / len(panel.dots)
        parts.append(element("path", class_="mean", d=f"M{x_of(mean):.1f} 3V37"))
    title = f"{figure.title}, {panel.title}: {panel.note}."
    return picture(1000, 40, title, parts, "strip", stretched=True)


def dots_axis(figure: Dots) -> list[str]:
    """Return the values at the ticks of an axis of dots, from one end to the other."""
    return [f"{tick:g}".replace("-", "−") for tick in ticks(figure.low, figure.high)]


def _stretched(low: float, high: float) -> Axis:
    """Return where values are in a drawing 1000 wide, with space for dots at both ends."""
    return lambda value: 8 + 984 * (value - low) / (high - low)


def track(section: Section, row: Row) -> Markup:
    """Draw the accuracy of a row: when learnt, at the end, and the paper's."""
    low, high = track_range(section)
    x_of = _stretched(low, high)
    learnt, end = row.when_learnt, row.accuracy
    parts = [element("path", class_="rule", d="M0 12H1000")]
    tips = []
    if end and learnt:
        change = f"M{x_of(learnt.mean):.1f} 12H{x_of(end.mean):.1f}"
        kind = "lost" if end.mean < learnt.mean else "gained"
        parts.append(element("path", class_=f"change {kind}", d=change))
    if row.papers and row.papers[0].line.accuracy is not None:
        published = row.papers[0].line.accuracy
        parts.append(element("path", class_="published", d=f"M{x_of(published):.1f} 1V23"))
        tips.append(f"paper {published:.1f} %")
    if learnt:
        place = f"M{x_of(learnt.mean):.1f} 12h.1"
        parts += [element("path", class_=f"then {part}", d=place) for part in ("out", "in")]
        tips.insert(0, f"when learnt {learnt.text()} %")
    if end:
        parts.append(element("path", class_="now", d=f"M{x_of(end.mean):.1f} 12h.1"))
        tips.insert(1 if learnt else 0, f"at the end {end.text()} %")
    tip = Mark(0.0, f"{row.label}: {', '.join(tips)}")
    area = with_tip("rect", tip, class_="area", x=0, y=0, width=1000, height=24)
    return element(
        "svg",
        *parts,
        area,
        viewBox="0 0 1000 24",
        preserveAspectRatio="none",
        class_="track",
        aria_hidden="true",
    )


def graphic(section: Section, row: Row, name: str, value: float | None) -> Markup:
    """Draw a value of the table of best lines, in columns that have a drawing."""
    values = {
        "task unknown": lambda one: one.task_free.accuracy.mean if one.task_free else 0.0,
        "time": lambda one: one.seconds,
        "memory": lambda one: one.memory,
    }
    if value is None or name not in {*values, "free rank"}:
        return Markup("")
    most = 100.0 if name == "free rank" else max(values[name](one) for one in section.best)
    return share_bar(value, most)


def share_bar(value: float, most: float) -> Markup:
    """Draw a bar for a value in a table."""
    width = max(0.0, min(100.0, 100 * value / most)) if most > 0 else 0.0
    parts = [
        element("rect", class_=kind, x=0, y=0, width=length, height=4)
        for kind, length in (("all", 100.0), ("part", width))
    ]
    return element(
        "svg",
        *parts,
        viewBox="0 0 100 4",
        preserveAspectRatio="none",
        class_="bar",
        aria_hidden="true",
    )


def bars(panel: BarPanel) -> Markup:
    """Draw bars below each other, each below its name and its amount."""
    width, step = 320.0, 28.0
    lengths = [[max(part.value, 0.0) for part in bar.parts] for bar in panel.bars]
    longest = max((sum(values) for values in lengths), default=0.0) or 1.0
    parts = []
    for number, (bar, values) in enumerate(zip(panel.bars, lengths, strict=True)):
        y, x = number * step, 0.0
        parts.append(text(0, y + 11, short(bar.label, 40), "start", "name"))
        parts.append(text(width, y + 11, bar.text, "end"))
        parts.append(element("rect", class_="whole", x=0, y=y + 16, width=width, height=7))
        for index, (part, value) in enumerate(zip(bar.parts, values, strict=True)):
            length = width * value / longest
            if length > 0:
                box = {"x": x, "y": y + 16, "width": length, "height": 7}
                parts.append(with_tip("rect", part, class_=f"part p{index}", **box))
            x += length
    amounts = ", ".join(f"{bar.label} {bar.text}" for bar in panel.bars)
    return picture(width, step * len(panel.bars), f"{panel.title}: {amounts}.", parts)


def picture(
    width: float,
    height: float,
    description: str,
    parts: Sequence[Markup],
    class_: str | None = None,
    *,
    stretched: bool = False,
) -> Markup:
    """Return a drawing that fills the available width, with a description for screen readers."""
    return element(
        "svg",
        *parts,
        viewBox=f"0 0 {width:g} {height:g}",
        preserveAspectRatio="none" if stretched else None,
        role="img",
        aria_label=description,
        class_=class_,
        data_marks="",
    )


def with_tip(name: str, mark: Mark, *children: str, **attributes: object) -> Markup:
    """Return an element with a tooltip: shown by the script, or as a title without scripts."""
    return element(name, element("title", mark.tip), *children, data_tip=mark.tip, **attributes)


def text(x: float, y: float, content: str, anchor: str, class_: str | None = None) -> Markup:
    """Return text that starts, ends or has its middle at a point, as `anchor` says."""
    return element("text", content, x=float(x), y=float(y), text_anchor=anchor, class_=class_)


def element(name: str, /, *children: str, **attributes: object) -> Markup:
    """Return an element; `class_` and `data_tip` are written as class and data-tip, None is not.

    Children and attributes that are not markup are escaped.

    >>> element("p", "a < b", element("b", "c"), class_="note", title=None)
    Markup('<p class="note">a &lt; b<b>c</b></p>')
    """
    pairs = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_plain(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    if not children:
        return Markup(f"<{name}{pairs}/>")
    return Markup(f"<{name}{pairs}>{Markup().join(children)}</{name}>")


def _plain(value: object) -> str:
    """Return a coordinate with at most one decimal, and any other value as it is."""
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
