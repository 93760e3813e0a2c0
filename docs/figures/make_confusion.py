"""Draw the picture of docs/without-the-task.md: python docs/figures/make_confusion.py, a second.

It shows the record in results/pretrained: of the test photos of each task, how many are answered
with a class of each task, when the task is not told.
"""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from classgrad.runs.record import RunRecord

FOLDER = Path(__file__).parent
RECORDS = FOLDER.parents[1] / "results" / "pretrained"
FILE = "task-confusion.svg"
PANELS = {"confidence": "By confidence", "statistics": "By statistics"}
DARK = 50  # per cent from which numbers are white
# As in make_guarantee.py: one look on light and dark pages, and the same file every time.
STYLE: dict[Any, Any] = {
    "figure.facecolor": "#fafafa",
    "axes.facecolor": "#fafafa",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "classgrad",
}


def recorded() -> RunRecord:
    """Return the record that is shown."""
    records = map(RunRecord.load, sorted(RECORDS.glob("*/record.json")))
    found = next((one for one in records if PANELS.keys() <= one.task_confusion.keys()), None)
    if found is None:
        raise SystemExit(f"no record in {RECORDS} says which tasks are taken for each other")
    return found


def right_task(record: RunRecord, way: str) -> float:
    """Return how often an answer is of the right task, in per cent; all tasks count alike."""
    shares = [row[number] or 0.0 for number, row in enumerate(record.task_confusion[way])]
    return sum(shares) / len(shares)


def draw(record: RunRecord) -> Figure:
    """Return a matrix for each way to choose a class."""
    figure = Figure(figsize=(7.6, 4.1), layout="compressed")
    panels = figure.subplots(1, len(PANELS), sharey=True)
    for axes, (way, title) in zip(panels, PANELS.items(), strict=True):
        matrix = [[value or 0.0 for value in row] for row in record.task_confusion[way]]
        axes.imshow(matrix, cmap="Blues", vmin=0, vmax=100)
        for row, values in enumerate(matrix):
            for column, value in enumerate(values):
                colour = "white" if value >= DARK else "black"
                axes.text(
                    column, row, f"{value:.0f}", ha="center", va="center", color=colour, size=7
                )
        numbers = range(len(matrix))
        axes.set_xticks(numbers, [str(number + 1) for number in numbers])
        axes.set_yticks(numbers, [str(number + 1) for number in numbers])
        axes.set_title(f"{title}: {right_task(record, way):.0f} % of the right task", size=9)
        axes.set_xlabel("task of the answer")
    panels[0].set_ylabel("task of the photo")
    return figure


def main() -> None:
    """Draw and save the picture."""
    record = recorded()
    with matplotlib.rc_context(STYLE):
        draw(record).savefig(FOLDER / FILE, metadata={"Date": None})


if __name__ == "__main__":
    main()
