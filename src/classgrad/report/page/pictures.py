"""Figures of a report, and accuracy matrices of runs, as PNG and SVG files."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from classgrad.files import write_atomic
from classgrad.report.page.charts import (
    SHADES,
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
    Values,
    depth,
    short,
    swarm,
)
from classgrad.report.page.figures import figures, heat_range
from classgrad.report.page.summary import Section
from classgrad.report.text import Move, number
from classgrad.runs.record import RunRecord

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

COLOURS = ["#0b66b0", "#c04a00", "#00795a", "#a23a7d", "#8a6100", "#5a52b5", "#4b5563"]
COLOURS += ["#0e7490", "#b91c1c", "#3f6212"]
BOUND = "0.45"  # grey
MARKERS = "os^DvPXph*"
DASHES = ["-", "--", ":", "-."]
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keeps text searchable and editable
    "svg.hashsalt": "classgrad",  # makes files of the same runs identical
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def draw(sections: Sequence[Section], folder: Path, progress: Move | None = None) -> list[Path]:
    """Draw every figure of every section into a folder; return the files.

    `progress` is called with the share done, and the kind of the next figure.
    """
    folder.mkdir(exist_ok=True)
    named = [
        (f"{section.number}-{number}-{figure.kind}", figure)
        for section in sections
        for number, figure in enumerate(figures(section), 1)
    ]
    files = []
    for index, (name, figure) in enumerate(named):
        if progress:
            progress(index / len(named), figure.kind)
        files += [folder / f"{name}.png", folder / f"{name}.svg"]
        _save(figure, files[-2:])
    return files


def draw_matrices(records: Sequence[RunRecord], path: Path) -> Path:
    """Draw the accuracy matrices of runs side by side into an image file; return its path."""
    panels = [
        HeatPanel(
            title=f"{record.method_name}   ACC {number(record.average_accuracy)}"
            f"   BWT {number(record.backward_transfer, signed=True)}",
            cells=[
                [None if v is None else Mark(v, "") for v in row] for row in record.accuracy_matrix
            ],
        )
        for record in records
    ]
    low, high = heat_range(panels)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure = Heat(
        kind="matrix",
        title="",
        note="",
        values=Values([], []),
        panels=panels,
        low=low,
        high=high,
        tasks=max((record.tasks for record in records), key=len, default=[]),
    )
    _save(figure, [path])
    return path


def _save(figure: Figure, files: Sequence[Path]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    with pyplot.rc_context(STYLE), warnings.catch_warnings():
        # Names may contain characters that the font lacks, or be too long for the layout.
        warnings.simplefilter("ignore", UserWarning)
        canvas = _canvas(figure)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # the layout is the same for all files
        for file in files:
            _write(canvas, file)
        pyplot.close(canvas)


def _write(canvas: "Canvas", file: Path) -> None:
    kind = file.suffix[1:]
    metadata = {"Date": None} if kind == "svg" else {}
    write_atomic(file, lambda part: canvas.savefig(part, format=kind, dpi=150, metadata=metadata))


def _canvas(figure: Figure) -> "Canvas":
    from matplotlib import pyplot

    panels = figure.panels
    columns = min(len(panels), {Bars: 2, Heat: 5}.get(type(figure), 4))
    rows = -(-len(panels) // columns)
    width, height = _size(figure)
    canvas, axes = pyplot.subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows + 0.5),
        squeeze=False,
        layout="constrained",
    )
    for unused in axes.flat[len(panels) :]:
        unused.set_axis_off()
    for axis, panel in zip(axes.flat, panels, strict=False):
        _panel(figure, axis, panel)
        axis.set_title(_plain(panel.title), fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
    if isinstance(figure, Heat):
        for row in axes:
            row[0].set_ylabel("after learning task", fontsize=8)
        bar = canvas.colorbar(axes.flat[0].images[0], ax=axes, shrink=0.8, aspect=20 * rows)
        bar.set_label("accuracy, %", fontsize=8)
        bar.ax.tick_params(labelsize=8)
    if figure.title:
        canvas.suptitle(_plain(figure.title), fontsize=11)
    return canvas


def _size(figure: Figure) -> tuple[float, float]:
    if isinstance(figure, Bars):
        return 5.0, 1.0 + 0.25 * len(figure.panels[0].bars)
    if isinstance(figure, Lines):
        return (9.0, 4.0) if figure.wide else (3.2, 2.4)
    return (3.2, 3.0) if isinstance(figure, Heat) else (3.2, 1.6)


def _panel(figure: Figure, axis: Any, panel: Any) -> None:
    if isinstance(figure, Lines):
        _lines(figure, axis, panel)
    elif isinstance(figure, Heat):
        _heat(figure, axis, panel)
    elif isinstance(figure, Dots):
        _dots(figure, axis, panel)
    else:
        _bars(axis, panel)


def _lines(figure: Lines, axis: Any, panel: LinePanel) -> None:
    for series in panel.others:
        axis.plot(*_points(series.marks), color="0.85", linewidth=0.8)
    for series in panel.series:
        style = series.style % STYLES
        if series.level and series.last:
            axis.axhline(series.last.value, color=BOUND, linestyle=":", linewidth=1)
        axis.plot(
            *_points(series.marks),
            color=BOUND if series.bound else COLOURS[style],
            marker="" if figure.step > 1 else "_" if series.bound else MARKERS[style],
            linestyle=":" if series.bound else DASHES[style % len(DASHES)],
            markersize=4,
            label=_plain(series.label),
        )
    axis.set_xlim(0.5, figure.count + 0.5)
    if figure.step > 1:
        every = -(-len(figure.places) // 10)
        tasks = range(0, len(figure.places), every)
        axis.set_xticks([figure.places[t] + 1 for t in tasks], [str(t + 1) for t in tasks])
    axis.set_ylim(figure.low, figure.high)
    axis.set_xlabel(figure.axis, fontsize=8)
    axis.grid(axis="y", color="0.9")
    if figure.wide:
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5), frameon=False)
    elif len(panel.series) > 1:
        axis.legend(fontsize=7, loc="best")


def _points(marks: Sequence[Mark | None]) -> tuple[list[int], list[float]]:
    values = [float("nan") if mark is None else mark.value for mark in marks]
    return list(range(1, len(marks) + 1)), values


def _heat(figure: Heat, axis: Any, panel: HeatPanel) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    count = len(panel.cells)
    values = [
        [float("nan") if mark is None else mark.value for mark in line]
        + [float("nan")] * (count - len(line))
        for line in panel.cells
    ]
    colours = LinearSegmentedColormap.from_list("sand", [[v / 255 for v in c] for c in SHADES])
    axis.imshow(values, vmin=figure.low, vmax=figure.high, cmap=colours)
    axis.spines[:].set_visible(False)
    ticks = range(0, count, -(-count // 10))
    axis.set_xticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set_yticks(ticks, [str(tick + 1) for tick in ticks])
    axis.set_xlabel("task measured", fontsize=8)
    for i, line in enumerate(panel.cells):
        for j, mark in enumerate(line):
            if mark is not None and count <= 12:
                colour = "white" if depth(figure.colour(mark.value)) == "dark" else "black"
                value = f"{mark.value:.0f}"
                axis.text(j, i, value, ha="center", va="center", fontsize=7, color=colour)


def _dots(figure: Dots, axis: Any, panel: DotPanel) -> None:
    values = [dot.value for dot in panel.dots]
    axis.scatter(values, swarm(values, figure.low, figure.high), s=9, alpha=0.6, color=COLOURS[0])
    axis.set_xlim(figure.low, figure.high)
    axis.set_ylim(-1.2, 1.2)
    axis.set_yticks([])
    axis.set_xlabel(figure.axis, fontsize=8)


def _bars(axis: Any, panel: BarPanel) -> None:
    names = [short(_plain(bar.label), 30) for bar in panel.bars]
    positions = range(len(names))
    starts = [0.0] * len(names)
    for part in range(max(len(bar.parts) for bar in panel.bars)):
        lengths = [max(bar.parts[part].value, 0.0) for bar in panel.bars]
        face = [COLOURS[0], "black", "white"][part]
        label = panel.parts[part] if panel.parts else None
        axis.barh(positions, lengths, left=starts, color=face, edgecolor=COLOURS[0], label=label)
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
    for position, bar in zip(positions, panel.bars, strict=True):
        axis.text(starts[position], position, f" {bar.text}", va="center", fontsize=7)
    axis.set_yticks(positions, names)
    axis.invert_yaxis()
    axis.set_xlim(0, 1.3 * max(max(starts), 1e-9))
    axis.set_xticks([])
    axis.tick_params(length=0)
    if panel.parts:
        axis.legend(fontsize=7)


def _plain(text: str) -> str:
    """Escape text that matplotlib would take for mathematics."""
    return text.replace("$", r"\$")
