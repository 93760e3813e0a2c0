"""The figures of docs/scaling.md, drawn from the measured results."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Results = dict[str, Any]

WITH, WITHOUT, THIRD = "#2f6fa7", "#c2692b", "#6b7280"
# An almost white background for light and dark pages. Text stays text, and drawing the same results
# again gives the same file.
STYLE: dict[Any, Any] = {
    "figure.facecolor": "#fafafa",
    "axes.facecolor": "#fafafa",
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "classgrad",
}


def draw(results: Results, folder: Path) -> list[Path]:
    """Draw all figures into a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, plot in CHARTS.items():
        path = folder / f"scaling-{name}.svg"
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(8, 3.2), layout="constrained")
            left, right = figure.subplots(1, 2)
            plot(results, left, right)
            for axis in (left, right):
                axis.legend(frameon=False)
            note = f"drawn from benchmarks/scaling.json of {results['date']}"
            figure.savefig(path, metadata={"Date": None, "Description": note})
        paths.append(path)
    return paths


def of_classes(results: Results, left: Axes, right: Axes) -> None:
    """Times, and memory, against the number of classes."""
    rows = results["classes"]
    counts = column(rows, "classes")
    left.plot(counts, column(rows, "add_seconds", 1e3), "s-", color=THIRD, label="adding a class")
    left.plot(counts, column(rows, "step_seconds", 1e3), "o-", color=WITH, label="step")
    left.plot(
        counts, column(rows, "bare_seconds", 1e3), "--", color=WITHOUT, label="without projection"
    )
    right.plot(counts, column(rows, "basis_bytes", 1e-6), "s-", color=THIRD, label="basis kept")
    right.plot(counts, column(rows, "side_bytes", 1e-6), "o-", color=WITH, label="used in steps")
    for axis, unit in ((left, "ms"), (right, "MB")):
        name_axes(axis, "classes learnt", unit, counts)
        axis.set_ylim(bottom=0)


def of_widths(results: Results, left: Axes, right: Axes) -> None:
    """Step time, and time to add a class, against the width of a layer."""
    for share, marker, color in ((8, "s-", THIRD), (2, "o-", WITH)):
        rows = [row for row in results["widths"] if row["rank"] * share == row["width"]]
        widths = column(rows, "width")
        name = f"rank d/{share}"
        left.plot(widths, column(rows, "step_seconds", 1e3), marker, color=color, label=name)
        right.plot(widths, column(rows, "add_seconds", 1e3), marker, color=color, label=name)
    left.plot(
        widths, column(rows, "bare_seconds", 1e3), "--", color=WITHOUT, label="without projection"
    )
    for axis, what in ((left, "step, ms"), (right, "adding a class, ms")):
        name_axes(axis, "width d", what, widths)
        axis.set_yscale("log")


def of_batches(results: Results, left: Axes, right: Axes) -> None:
    """Images per second, and the ratio of steps, against the batch size."""
    rows = results["batches"]
    sizes = column(rows, "batch")
    speed = "images_per_second"
    left.plot(sizes, column(rows, f"step_{speed}"), "o-", color=WITH, label="with projection")
    left.plot(sizes, column(rows, f"bare_{speed}"), "s--", color=WITHOUT, label="without")
    left.set_ylim(bottom=0)
    ratios = [row["step_seconds"] / row["bare_seconds"] for row in rows]
    right.plot(sizes, ratios, "o-", color=WITH, label="step with / without projection")
    right.axhline(1, color=THIRD, linewidth=0.8)
    name_axes(left, "batch size", "images per second", sizes)
    name_axes(right, "batch size", "ratio", sizes)


def of_clusters(results: Results, left: Axes, right: Axes) -> None:
    """The counted cost of projection in large networks, against the images per process."""
    rows = results["paper"]["cluster"]
    images = column(rows, "images")
    for axis, key, title in ((left, "vit_b16", "ViT-B/16"), (right, "resnet50", "ResNet-50")):
        for precision, marker, color, name in (
            ("_float32", "s-", THIRD, "float32 beside bfloat16"),
            ("_tf32", "s-", WITHOUT, "TF32 beside bfloat16"),
            ("", "o-", WITH, "one rate"),
        ):
            shares = column(rows, f"{key}{precision}_share", 100)
            axis.plot(images, shares, marker, color=color, label=name)
        name_axes(axis, "images per rank", "% of forward and backward", images)
        axis.set_yscale("log")
        axis.set_title(title, fontsize=9)


def column(rows: list[Results], key: str, scale: float = 1) -> list[float]:
    """Return one value of every row."""
    return [scale * row[key] for row in rows]


def name_axes(axis: Axes, x: str, y: str, ticks: list[float]) -> None:
    """Label the axes, with a logarithmic x axis that has ticks at the measured values."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.set_xscale("log")
    axis.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
    axis.set_xticks([], minor=True)


CHARTS: dict[str, Callable[[Results, Axes, Axes], None]] = {
    "classes": of_classes,
    "widths": of_widths,
    "batches": of_batches,
    "clusters": of_clusters,
}
