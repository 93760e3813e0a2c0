"""The figures of docs/scaling.md, drawn from what was measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Found = dict[str, Any]

WITH, WITHOUT, THIRD = "#2f6fa7", "#c2692b", "#6b7280"
# One look on light and dark pages: an almost white box. Text stays text, and the file is the same
# every time it is drawn.
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


def draw(found: Found, folder: Path) -> list[Path]:
    """Draw all figures into a folder; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, plot in CHARTS.items():
        path = folder / f"scaling-{name}.svg"
        with matplotlib.rc_context(STYLE):
            figure = Figure(figsize=(8, 3.2), layout="constrained")
            left, right = figure.subplots(1, 2)
            plot(found, left, right)
            for axis in (left, right):
                axis.legend(frameon=False)
            note = f"drawn from benchmarks/scaling.json of {found['date']}"
            figure.savefig(path, metadata={"Date": None, "Description": note})
        paths.append(path)
    return paths


def of_classes(found: Found, left: Axes, right: Axes) -> None:
    """Step time, and time to add a class and rank, against the number of classes."""
    rows = found["classes"]
    counts = column(rows, "classes")
    left.plot(counts, column(rows, "step_seconds", 1e3), "o-", color=WITH, label="with projection")
    left.plot(counts, column(rows, "bare_seconds", 1e3), "--", color=WITHOUT, label="without")
    label(left, "classes learnt", "step, ms", log_x=True)
    left.set_ylim(bottom=0)
    right.plot(counts, column(rows, "rank"), "o-", color=WITH, label="rank")
    right.plot(counts, column(rows, "add_seconds", 1e3), "s-", color=THIRD, label="adding, ms")
    label(right, "classes learnt", "rank; time to add a class, ms", log_x=True)
    right.set_ylim(bottom=0)


def of_widths(found: Found, left: Axes, right: Axes) -> None:
    """Step time, and time to add a class, against the width of a layer."""
    for share, marker, color in ((8, "s-", THIRD), (2, "o-", WITH)):
        rows = [row for row in found["widths"] if row["rank"] * share == row["width"]]
        widths = column(rows, "width")
        name = f"rank d/{share}"
        left.plot(widths, column(rows, "step_seconds", 1e3), marker, color=color, label=name)
        right.plot(widths, column(rows, "add_seconds", 1e3), marker, color=color, label=name)
    left.plot(
        widths, column(rows, "bare_seconds", 1e3), "--", color=WITHOUT, label="without projection"
    )
    label(left, "width d", "step, ms", log_x=True, log_y=True)
    label(right, "width d", "time to add a class, ms", log_x=True, log_y=True)


def of_batches(found: Found, left: Axes, right: Axes) -> None:
    """Images per second, and the ratio of steps, against the batch size."""
    rows = found["batches"]
    sizes = column(rows, "batch")
    speed = "images_per_second"
    left.plot(sizes, column(rows, f"step_{speed}"), "o-", color=WITH, label="with projection")
    left.plot(sizes, column(rows, f"bare_{speed}"), "s--", color=WITHOUT, label="without")
    label(left, "batch size", "images per second", log_x=True)
    left.set_ylim(bottom=0)
    ratios = [row["step_seconds"] / row["bare_seconds"] for row in rows]
    right.plot(sizes, ratios, "o-", color=WITH, label="step with / without projection")
    right.axhline(1, color=THIRD, linewidth=0.8)
    label(right, "batch size", "ratio", log_x=True)


def of_clusters(found: Found, left: Axes, right: Axes) -> None:
    """What projection adds in large networks against the images per rank, by counting."""
    rows = found["paper"]["cluster"]
    images = column(rows, "images")
    for axis, suffix, where in (
        (left, "_share", "projection as fast as training"),
        (right, "_tf32_share", "training in bfloat16, projection in TF32"),
    ):
        for name, title, color in (
            ("vit_b16", "ViT-B/16", WITH),
            ("resnet50", "ResNet-50", WITHOUT),
        ):
            shares = column(rows, name + suffix, 100)
            axis.plot(images, shares, "o-", color=color, label=title)
        label(axis, "images per rank", "projection, % of the rest", log_x=True, log_y=True)
        axis.set_title(where, fontsize=9)


def column(rows: list[Found], key: str, scale: float = 1) -> list[float]:
    """Return one value of every row."""
    return [scale * row[key] for row in rows]


def label(axis: Axes, x: str, y: str, log_x: bool = False, log_y: bool = False) -> None:
    """Name the axes; with `log` their steps are factors."""
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    if log_x:
        axis.set_xscale("log")
    if log_y:
        axis.set_yscale("log")


CHARTS: dict[str, Callable[[Found, Axes, Axes], None]] = {
    "classes": of_classes,
    "widths": of_widths,
    "batches": of_batches,
    "clusters": of_clusters,
}
