"""The figures of a section: what each of them shows, from its rows."""

from collections.abc import Sequence

from classgrad.report.page.figures import (
    DotPanel,
    Dots,
    Figure,
    Heat,
    HeatPanel,
    LinePanel,
    Lines,
    Mark,
    Series,
    Values,
    rounded,
    value_at,
)
from classgrad.report.page.merging import merged
from classgrad.report.page.summary import Row, Section
from classgrad.report.page.usage import cost, room
from classgrad.report.statistics import Spread, spread

TOGETHER = 7  # lines that can be told apart in one frame
OTHERS = 30  # grey lines in a frame: with all of them a page of many methods is huge


def figures(section: Section) -> list[Figure]:
    """Return what there is to draw, in the order of the page."""
    found = [curve(section), matrices(section), forgetting(section), room(section)]
    return [
        *(figure for figure in found if figure),
        *(figure for row in section.rows if (figure := merged(row))),
        cost(section),
    ]


def curve(section: Section) -> Figure | None:
    """Return the average accuracy after each task: a line for each row."""
    count = len(section.tasks)
    averages = [[row.average(after) for after in range(count)] for row in section.rows]
    known = [one.mean for line in averages for one in line if one]
    if not known:
        return None
    lines = [
        Series(row.label, _marks(row.label, line, section), style)
        for style, (row, line) in enumerate(zip(section.rows, averages, strict=True))
    ]
    return Lines(
        kind="curve",
        title="Average accuracy after each task",
        note=" ".join(["Mean accuracy, %, on the tasks learnt so far.", *_grey(len(lines))]),
        values=Values(
            ["after task", *(row.label for row in section.rows)],
            [
                [f"{after + 1} {name}", *(_text(line[after]) for line in averages)]
                for after, name in enumerate(section.tasks)
            ],
        ),
        panels=_frames(lines),
        low=rounded(known)[0],
        high=min(rounded(known)[1], max(100.0, *known)),
        count=count,
        axis="task learnt",
    )


def _marks(label: str, line: Sequence[Spread | None], section: Section) -> list[Mark | None]:
    return [
        Mark(one.mean, f"{label}, after {name}: {one.text()} %") if one else None
        for name, one in zip(section.tasks, line, strict=True)
    ]


def _frames(lines: list[Series]) -> list[LinePanel]:
    """Put few lines into one frame, and each of many into its own, before all others."""
    if len(lines) <= TOGETHER:
        return [LinePanel("", lines, [])]
    return [
        LinePanel(line.label, [Series(line.label, line.marks, 0)], _others(line, lines))
        for line in lines
    ]


def _others(line: Series, lines: list[Series]) -> list[Series]:
    """Return the lines behind one: all others, or some of them, evenly taken."""
    others = [other for other in lines if other is not line]
    count = min(len(others), OTHERS)
    return [others[place * len(others) // count] for place in range(count)]


def _grey(count: int) -> list[str]:
    if count <= TOGETHER:
        return []
    return [f"Grey: {'the' if count - 1 <= OTHERS else 'some of the'} other methods."]


def matrices(section: Section) -> Figure | None:
    """Return the accuracy on each task after each task: a matrix for each row."""
    panels = []
    for row in section.rows:
        cells = [
            [_cell(section, after, task, row.cell(after, task)) for task in range(after + 1)]
            for after in range(row.learnt)
        ]
        if any(mark for line in cells for mark in line):
            panels.append(HeatPanel(row.label, cells))
    known = [m.value for panel in panels for line in panel.cells for m in line if m]
    if not known:
        return None
    low, high = rounded(known, least=10.0)
    return Heat(
        kind="matrix",
        title="Accuracy on each task after each task",
        note="A line for each task learnt, a column for each task measured; accuracy, %, mean over "
        "seeds. A column that fades downwards is a task that is forgotten.",
        values=Values(
            ["method", "after task", *(str(task + 1) for task in section.places)],
            [
                [
                    panel.title,
                    str(after + 1),
                    *(value_at(line, task) for task in section.places),
                ]
                for panel in panels
                for after, line in enumerate(panel.cells)
            ],
        ),
        panels=panels,
        low=low,
        high=min(high, max(100.0, *known)),
    )


def _cell(section: Section, after: int, task: int, found: Spread | None) -> Mark | None:
    names = section.tasks
    if found is None:
        return None
    return Mark(found.mean, f"after {names[after]}, on {names[task]}: {found.text()} %")


def forgetting(section: Section) -> Figure | None:
    """Return how much accuracy each class lost: a dot for each class."""
    losses = [_losses(row) for row in section.rows]
    classes = list(dict.fromkeys(key for found in losses for key in found))
    known = [one.mean for found in losses for one in found.values()]
    if not known:
        return None
    low, high = rounded([*known, 0.0], least=5.0)
    return Dots(
        kind="forgetting",
        title="Forgetting of each class",
        note="A dot is a class: points of accuracy lost since it was learnt, mean over seeds. Left "
        "of zero it gained. The line is the mean.",
        values=Values(
            ["task", "class", *(row.label for row in section.rows)],
            [[*key, *(_text(found.get(key), True) for found in losses)] for key in classes],
        ),
        panels=[
            DotPanel(row.label, _worst(found), _dots(found))
            for row, found in zip(section.rows, losses, strict=True)
            if found
        ],
        low=low,
        high=high,
        axis="points lost",
    )


def _losses(row: Row) -> dict[tuple[str, str], Spread]:
    """Return the forgetting of each class of each task, mean over the runs that have it."""
    values: dict[tuple[str, str], list[float]] = {}
    for run in row.counted:
        for task in run.classes:
            for name, value in zip(task.classes, task.forgetting, strict=False):
                if value is not None:
                    values.setdefault((task.task, name), []).append(value)
    return {key: found for key, several in values.items() if (found := spread(several))}


def _dots(found: dict[tuple[str, str], Spread]) -> list[Mark]:
    return [
        Mark(one.mean, f"{name} ({task}): {one.text(signed=True)} points lost")
        for (task, name), one in found.items()
    ]


def _worst(found: dict[tuple[str, str], Spread]) -> str:
    task, name = max(found, key=lambda key: found[key].mean)
    worst = found[task, name]
    return f"most: {name} ({task}), {worst.text()}" if worst.mean > 0 else "no class lost anything"


def _text(found: Spread | None, signed: bool = False) -> str:
    return found.text(signed) if found else "–"
