"""Figures as inline SVG: a drawing for each panel, small enough for the screen of a phone."""

from collections.abc import Callable, Sequence

from markupsafe import Markup, escape

from classgrad.report.page.charts import (
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
    Series,
    depth,
    shade,
    short,
    swarm,
    ticks,
)

Axis = Callable[[float], float]


def drawings(figure: Figure) -> list[Markup]:
    """Return one drawing for each panel of a figure."""
    if isinstance(figure, Lines):
        return [lines(figure, panel) for panel in figure.panels]
    if isinstance(figure, Heat):
        return [heat(figure, panel) for panel in figure.panels]
    if isinstance(figure, Dots):
        return [dots(figure, panel) for panel in figure.panels]
    if isinstance(figure, Bars):
        return [bars(panel) for panel in figure.panels]
    raise TypeError(f"no drawing for {type(figure).__name__}")


def layout(figure: Figure) -> str:
    """Return the CSS class for the width of a figure's panels."""
    if isinstance(figure, Lines) and len(figure.panels) == 1:
        return "one"
    if isinstance(figure, Heat):
        return "narrow" if max(len(panel.cells) for panel in figure.panels) <= 6 else "large"
    return "wide" if isinstance(figure, Bars) else "usual"


def legend(figure: Figure) -> list[tuple[Markup, str]]:
    """Return samples of lines or of parts of bars, with their names."""
    if isinstance(figure, Bars):
        parts = [part for panel in figure.panels for part in enumerate(panel.parts)]
        return [(element("i", "", class_=f"box p{index}"), name) for index, name in parts]
    if isinstance(figure, Lines):
        styles = {line.label: line.style for panel in figure.panels for line in panel.series}
        if len(styles) > 1 and not any(panel.others for panel in figure.panels):
            return [(swatch(style), label) for label, style in styles.items()]
    return []


def lines(figure: Lines, panel: LinePanel) -> Markup:
    """Draw lines over tasks; in a figure of a single panel, with their names at their ends."""
    named = len(figure.panels) == 1
    width, height = (360.0, 215.0) if named else (240.0, 140.0)
    left, right, top, bottom = 34.0, 88.0 if named else 10.0, 10.0, 34.0

    def x_of(task: float) -> float:
        return left + (width - left - right) * (task + 0.5) / max(figure.count, 1)

    def y_of(value: float) -> float:
        share = (value - figure.low) / (figure.high - figure.low)
        return top + (height - top - bottom) * (1 - share)

    parts = []
    for tick in ticks(figure.low, figure.high, 5 if named else 4):
        y = y_of(tick)
        parts.append(element("path", class_="rule", d=f"M{left:g} {y:.1f}H{width - right:g}"))
        parts.append(text(left - 5, y + 4, f"{tick:g}", "end"))
    every = -(-figure.count // (10 if named else 6))
    parts += [
        text(x_of(task), height - bottom + 14, str(task + 1), "middle")
        for task in range(0, figure.count, every)
    ]
    parts.append(text((left + width - right) / 2, height - 3, figure.axis, "middle"))
    for series in panel.others:
        parts.append(element("path", class_="other", d=_path(series, x_of, y_of)))
    for series in panel.series:
        parts.append(element("path", class_=_class("line", series), d=_path(series, x_of, y_of)))
        for task, mark in enumerate(series.marks):
            if mark:
                symbol = _symbol(series.style, x_of(task), y_of(mark.value))
                parts.append(with_tip("path", mark, class_=_class("mark", series), d=symbol))
    if named:
        parts += _names_at_ends(panel.series, y_of, width - right + 6, height - bottom)
    ends = [f"{line.label} {_last(line):.1f}" for line in panel.series if any(line.marks)]
    title = f"{figure.title}, {panel.title}" if panel.title else figure.title
    description = f"{title}. At the end, %: {', '.join(ends) or 'nothing measured'}."
    return picture(width, height, description, parts)


def _names_at_ends(series: Sequence[Series], y_of: Axis, x: float, lowest: float) -> list[Markup]:
    """Return the names of lines beside their last marks, moved apart where they would overlap."""
    ends = [(y_of(_last(line)), line) for line in series if any(line.marks)]
    ends.sort(key=lambda end: end[0])
    gap = 12.5
    heights: list[float] = []
    for y, _ in ends:
        heights.append(max(y, heights[-1] + gap) if heights else y)
    for i in reversed(range(len(heights))):
        limit = heights[i + 1] - gap if i + 1 < len(heights) else lowest
        heights[i] = min(heights[i], limit)
    return [
        text(x, y + 4, brief(line.label, 14), "start", "name")
        for y, (_, line) in zip(heights, ends, strict=True)
    ]


def _last(series: Series) -> float:
    return [mark.value for mark in series.marks if mark][-1]


def _path(series: Series, x_of: Axis, y_of: Axis) -> str:
    """Return the path through the marks, with a gap where one is missing."""
    path, drawing = "", False
    for task, mark in enumerate(series.marks):
        if mark:
            path += f"{'L' if drawing else 'M'}{x_of(task):.1f} {y_of(mark.value):.1f}"
        drawing = mark is not None
    return path


def _class(kind: str, series: Series) -> str:
    return f"{kind} s{series.style % STYLES} d{series.style % STYLES}"


def _symbol(style: int, x: float, y: float) -> str:
    """Return the symbol of a style as a path: circle, square, triangle, diamond, ..."""
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
    return symbols[(style + style // STYLES) % STYLES]


def swatch(style: int) -> Markup:
    """Draw the sample of a line for the legend."""
    sample = Series("", [], style)
    line = element("path", class_=_class("line", sample), d="M1 7H29")
    mark = element("path", class_=_class("mark", sample), d=_symbol(style, 15, 7))
    return element("svg", line, mark, viewBox="0 0 30 14", class_="swatch", aria_hidden="true")


def heat(figure: Heat, panel: HeatPanel) -> Markup:
    """Draw a matrix, with values in its cells where there is space."""
    count = max(len(each.cells) for each in figure.panels)
    width = 300.0 if count > 6 else 200.0
    left, top, bottom = 22.0, 2.0, 16.0
    side = min((width - left - 2) / count, 40.0)
    parts = []
    for i, line in enumerate(panel.cells):
        y = top + i * side
        parts.append(text(left - 5, y + side / 2 + 4, str(i + 1), "end"))
        parts.append(text(left + (i + 0.5) * side, top + count * side + 13, str(i + 1), "middle"))
        for j, mark in enumerate(line):
            if mark:
                x, colour = left + j * side, figure.colour(mark.value)
                cell = [element("rect", x=x, y=y, width=side - 1, height=side - 1, fill=colour)]
                if count <= 12:
                    middle = {"x": x + side / 2 - 0.5, "y": y + side / 2 + 3.5}
                    value = f"{mark.value:.0f}"
                    cell.append(element("text", value, **middle, class_=f"on-{depth(colour)}"))
                parts.append(with_tip("g", mark, *cell))
    known = [mark.value for line in panel.cells for mark in line if mark]
    description = f"{figure.title}, {panel.title}: from {min(known):.1f} to {max(known):.1f} %."
    return picture(width, top + count * side + bottom, description, parts)


def scale(figure: Heat) -> Markup:
    """Draw the colours of a heat map, from the lowest value to the highest."""
    parts = [
        element("rect", x=40 + 5.0 * i, y=2, width=5.2, height=10, fill=shade(i / 23))
        for i in range(24)
    ]
    ends = [
        text(35, 11, f"{figure.low:g} %", "end"),
        text(165, 11, f"{figure.high:g} %", "start"),
    ]
    return element("svg", *parts, *ends, viewBox="0 0 210 15", class_="scale", aria_hidden="true")


def dots(figure: Dots, panel: DotPanel) -> Markup:
    """Draw values along an axis; dots that would overlap are moved apart."""
    width, height, left, right, middle = 280.0, 70.0, 12.0, 12.0, 28.0

    def x_of(value: float) -> float:
        return left + (width - left - right) * (value - figure.low) / (figure.high - figure.low)

    parts = []
    for tick in ticks(figure.low, figure.high, 4):
        kind = "zero" if tick == 0 else "rule"
        parts.append(element("path", class_=kind, d=f"M{x_of(tick):.1f} 4V52"))
        parts.append(text(x_of(tick), 65, f"{tick:g}".replace("-", "−"), "middle"))
    offsets = swarm([dot.value for dot in panel.dots], figure.low, figure.high)
    for dot, offset in zip(panel.dots, offsets, strict=True):
        y = middle + 22 * offset
        parts.append(with_tip("circle", dot, class_="dot", cx=x_of(dot.value), cy=y, r=2.6))
    if panel.dots:
        mean = sum(dot.value for dot in panel.dots) / len(panel.dots)
        parts.append(element("path", class_="mean", d=f"M{x_of(mean):.1f} 2V54"))
    return picture(width, height, f"{figure.title}, {panel.title}: {panel.note}.", parts)


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
        parts.append(element("rect", class_="track", x=0, y=y + 16, width=width, height=7))
        for index, (part, value) in enumerate(zip(bar.parts, values, strict=True)):
            length = width * value / longest
            if length > 0:
                box = {"x": x, "y": y + 16, "width": length, "height": 7}
                parts.append(with_tip("rect", part, class_=f"part p{index}", **box))
            x += length
    amounts = ", ".join(f"{bar.label} {bar.text}" for bar in panel.bars)
    return picture(width, step * len(panel.bars), f"{panel.title}: {amounts}.", parts)


def picture(width: float, height: float, description: str, parts: Sequence[Markup]) -> Markup:
    """Return a drawing that fills the available width, with a description for screen readers."""
    box = f"0 0 {width:g} {height:g}"
    return element("svg", *parts, viewBox=box, role="img", aria_label=description)


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


def brief(label: str, most: int) -> str:
    """Shorten a label that is too long: leave out the names of settings, then its end.

    >>> brief("cgp similarity=0.7 contrast=0.1", 14), brief("gpm", 14)
    ('cgp 0.7 0.1', 'gpm')
    """
    words = label.split() if len(label) > most else [label]
    return short(" ".join(word.rpartition("=")[2] or word for word in words), most)
