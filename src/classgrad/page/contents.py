"""The figures of a section: what each of them shows, from its rows."""

from collections.abc import Sequence

from classgrad.page.figures import (
    Bar,
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
    Values,
    rounded,
)
from classgrad.page.merging import merged
from classgrad.page.summary import Row, Section, Spread, spread
from classgrad.page.words import duration
from classgrad.report import size

TOGETHER = 7  # lines that can be told apart in one frame


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
        note="Mean accuracy, %, on the tasks learnt so far."
        + ("" if len(lines) <= TOGETHER else " Grey: the other methods."),
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
        LinePanel(line.label, [Series(line.label, line.marks, 0)], [o for o in lines if o != line])
        for line in lines
    ]


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
            ["method", "after task", *(str(task + 1) for task in range(len(section.tasks)))],
            [
                [panel.title, str(after + 1), *(_value(line, task) for task in _places(section))]
                for panel in panels
                for after, line in enumerate(panel.cells)
            ],
        ),
        panels=panels,
        low=low,
        high=min(high, max(100.0, *known)),
    )


def _places(section: Section) -> range:
    return range(len(section.tasks))


def _value(line: Sequence[Mark | None], place: int) -> str:
    mark = line[place] if place < len(line) else None
    return f"{mark.value:.1f}" if mark else "–"


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
        digits=1,
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


def room(section: Section) -> Figure | None:
    """Return the share of each layer's directions that is free: a frame for each layer."""
    shares = {row.label: _shares(row, section) for row in section.rows}
    layers = list(dict.fromkeys(name for found in shares.values() for name in found))
    if not layers or not section.tasks:
        return None
    styles = {label: place for place, label in enumerate(k for k, v in shares.items() if v)}
    return Lines(
        kind="room",
        title="Room left in each layer",
        note="Directions of a layer, or its units, that are not protected, %, after each task.",
        values=Values(
            ["layer", "method", *(str(task + 1) for task in _places(section))],
            [
                [name, label, *(_value(shares[label][name], task) for task in _places(section))]
                for name in layers
                for label in styles
                if name in shares[label]
            ],
        ),
        panels=[
            LinePanel(
                name,
                [
                    Series(label, shares[label][name], style)
                    for label, style in styles.items()
                    if name in shares[label]
                ],
                [],
            )
            for name in layers
        ],
        low=0.0,
        high=100.0,
        count=len(section.tasks),
        axis="task learnt",
    )


def _shares(row: Row, section: Section) -> dict[str, list[Mark | None]]:
    """Return for each layer that every run has the room left after each task."""
    layers = [{layer.name: layer for layer in run.layers} for run in row.counted]
    found: dict[str, list[Mark | None]] = {}
    for name in (name for name in layers[0] if all(name in run for run in layers)):
        marks: list[Mark | None] = []
        for place, task in enumerate(section.tasks):
            several = [run[name] for run in layers if place < len(run[name].ranks)]
            left = spread(100 * (1 - one.ranks[place] / one.dimension) for one in several)
            if left is None or len(several) < len(layers):
                marks.append(None)
                continue
            taken = sum(one.ranks[place] for one in several) / len(several)
            of = f"{taken:.0f} of {several[0].dimension} taken"
            tip = f"{row.label}, {name}, after {task}: {left.text()} % left, {of}"
            marks.append(Mark(left.mean, tip))
        found[name] = marks
    return found


def cost(section: Section) -> Figure:
    """Return time by phase and memory: a bar for each row."""
    phases = {"train": "training", "memory": "memory update", "evaluate": "evaluation"}
    times, memories, lines = [], [], []
    for row in section.rows:
        spent = {
            words: sum(getattr(run.seconds, name) for run in row.counted) / len(row.counted)
            for name, words in phases.items()
        }
        parts = [
            Mark(value, f"{row.label}, {words}: {duration(value)}")
            for words, value in spent.items()
        ]
        held = size(round(row.memory))
        times.append(Bar(row.label, parts, duration(row.seconds)))
        memories.append(Bar(row.label, [Mark(row.memory, f"{row.label}: {held}")], held))
        lines.append([row.label, *(duration(value) for value in spent.values())])
        lines[-1] += [duration(row.seconds), held]
    return Bars(
        kind="cost",
        title="Time and memory",
        note="Of a run, mean over seeds. Memory is what a method keeps between tasks.",
        values=Values(["method", *phases.values(), "time", "memory"], lines),
        panels=[
            BarPanel("Time by phase", times, list(phases.values())),
            BarPanel("Memory", memories, []),
        ],
    )


def _text(found: Spread | None, signed: bool = False) -> str:
    return found.text(signed) if found else "–"
