"""Draw docs/figures/forgetting.svg from results/paper: `python -m benchmarks.forgetting`.

A point is a class: how much of the energy of its unseen images the layer's protected directions
held when it was learnt, and how far its accuracy has moved by the end. The premise of CGP is that
bases of pooled classes hold little of some of them, and that these are forgotten.
"""

from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from benchmarks.charts import STYLE
from classgrad.experiments import spec as experiments
from classgrad.runs.record import RunRecord

ROOT = Path(__file__).parent.parent
RECORDS = ROOT / "results" / "paper"
OUT = ROOT / "docs" / "figures" / "forgetting.svg"
LINES = ("GPM", "CGP", "CGP + BR, released")  # of the experiment `components`
LAYER = "fc2"
COLOURS = ("#2f6fa7", "#c2692b", "#3d8361")


class Points(NamedTuple):
    """Classes of all tasks but the last, which nothing was learnt after: per cent, and points."""

    held: list[float]
    moved: list[float]


def points(record: RunRecord) -> Points:
    """Return the classes of a run."""
    [layer] = [one for one in record.held if one.layer == LAYER]
    held, moved = [], []
    before, after = (
        [value for task in record.classes for value in getattr(task, when)]
        for when in ("learnt", "final")
    )
    earlier = len(before) - len(record.classes[-1].classes)
    for share, then, now in zip(layer.learnt_test[:earlier], before, after, strict=False):
        if share is not None and then is not None and now is not None:
            held.append(100 * share)
            moved.append(now - then)
    return Points(held, moved)


def correlation(of: Points) -> float:
    """Return the correlation of energy held and change of accuracy."""
    return float(np.corrcoef(of.held, of.moved)[0, 1])


def runs() -> dict[str, RunRecord]:
    """Return the first complete run of each line."""
    records = [RunRecord.load(path) for path in sorted(RECORDS.glob("*/record.json"))]
    found = experiments.load("components").records(records, "fast")
    ended = {label: [r for r in found[label] if r.complete and r.held] for label in LINES}
    return {label: min(rs, key=lambda r: r.seed) for label, rs in ended.items() if rs}


def draw() -> Figure:
    """Return the figure, a panel for each line."""
    found = {label: points(record) for label, record in runs().items()}
    figure = Figure(figsize=(8.0, 2.9), layout="constrained")
    axes = figure.subplots(1, len(found), sharex=True, sharey=True, squeeze=False)[0]
    for axis, (label, of), colour in zip(axes, found.items(), COLOURS, strict=False):
        axis.axhline(0, color="#9ca3af", linewidth=0.8)
        axis.scatter(of.held, of.moved, s=14, color=colour, alpha=0.7, linewidths=0)
        axis.set_title(f"{label} (correlation {correlation(of):+.2f})", fontsize=9)
        axis.set_xlabel(f"energy held at {LAYER}, unseen images, %")
    axes[0].set_ylabel("accuracy, end less when learnt")
    return figure


if __name__ == "__main__":
    with matplotlib.rc_context(STYLE):
        draw().savefig(OUT, metadata={"Date": None})
