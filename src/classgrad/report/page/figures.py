"""The figures of a section, from the records of its rows."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from classgrad.errors import counted
from classgrad.report.page.charts import (
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
    round_range,
    tick_range,
    value_at,
)
from classgrad.report.page.summary import Row, Section
from classgrad.report.text import duration, size
from classgrad.runs.record import Curve, Layer, MeanStd, RunRecord, mean_std

MAX_OTHERS = 30  # grey lines in a frame: with all of many the page is huge
MATRICES = 3  # that the page shows at once
MATRICES_OF_MANY_TASKS = 2
MANY_TASKS = 12
WIDE = 3  # times the range of the best lines: then the frame is not for all
MANY_LAYERS = 6  # of a deep network, whose frames the page folds
LOSSES = 6  # of a task, in a curve
BEYOND = 3  # times the usual range of losses: then the frame is not for all
PHASES = {"train": "training", "memory": "memory update", "evaluate": "evaluation"}
Losses = Mapping[tuple[str, str], MeanStd]  # by task and class


def figures(section: Section) -> list[Figure]:
    """Return the figures that the records have data for, in the order of the page."""
    optional = [curve(section), matrices(section), forgetting(section), free_rank(section)]
    optional += [losses(section), *(held_energy(row) for row in section.best)]
    optional += [merged_classes(row) for row in section.rows]
    return [*(figure for figure in optional if figure), cost(section)]


def styles(section: Section) -> dict[str, int | None]:
    """Return the style of each of the best lines in all figures; None for a bound."""
    competing = [row.label for row in section.best if not row.bound]
    return {row.label: None if row.bound else competing.index(row.label) for row in section.best}


def _series(section: Section, label: str, marks: list[Mark | None]) -> Series:
    style = styles(section).get(label, 0)
    return Series(label=label, marks=marks, style=style or 0, bound=style is None)


def curve(section: Section) -> Lines | None:
    """Return the average accuracy after each task: a line for each row, the best in colour."""
    averages = [[row.average(after) for after in section.task_indices] for row in section.rows]
    known = [average.mean for line in averages for average in line if average]
    if not known:
        return None
    series = [
        _series(section, row.label, _after_tasks(row.label, line, section.tasks))
        for row, line in zip(section.rows, averages, strict=True)
    ]
    best = [row.label for row in section.best]
    named = [line for line in series if line.label in best and line.last]
    others = [line for line in series if line.label not in best and line.last]
    grey = "other" if len(others) <= MAX_OTHERS else "some of the other"
    dashed = any(line.level for line in named)
    low, high = round_range(known)
    focus = [mark.value for line in named if not line.bound for mark in line.marks if mark]
    below = ""
    if focus and high - low > WIDE * (round_range(focus)[1] - round_range(focus)[0]):
        low, high = round_range(focus)
        below = " Lines that leave the frame go on below it."
    return Lines(
        kind="curve",
        title="Average accuracy after each task",
        note="Mean accuracy, %, on the tasks learnt so far."
        + (" Level: all tasks at once." if dashed else "")
        + (f" Grey: {grey} lines." if others else "")
        + below,
        values=Values(
            ["after task", *(row.label for row in section.rows)],
            [
                [f"{after + 1} {name}", *(_text(line[after]) for line in averages)]
                for after, name in enumerate(section.tasks)
            ],
        ),
        panels=[LinePanel(title="", series=named, others=_spread(others))],
        low=low,
        high=min(high, max(100.0, *known)),
        count=len(section.tasks),
        axis="task learnt",
        wide=True,
    )


def _after_tasks(
    label: str, line: Sequence[MeanStd | None], tasks: Sequence[str]
) -> list[Mark | None]:
    return [
        Mark(average.mean, f"{label}, after {name}: {average.text()} %") if average else None
        for name, average in zip(tasks, line, strict=True)
    ]


def _spread(lines: list[Series]) -> list[Series]:
    """Return all lines, or of very many some at equal intervals."""
    count = min(len(lines), MAX_OTHERS)
    return [lines[index * len(lines) // count] for index in range(count)]


def matrices(section: Section) -> Heat | None:
    """Return the accuracy on each task after each task: a matrix for each row.

    The first are of the best method, of the one that forgets most, and of the second.
    """
    panels = []
    for row in _telling(section):
        cells = [
            [_cell(section.tasks, after, task, row.cell(after, task)) for task in range(after + 1)]
            for after in range(row.learnt)
        ]
        if any(mark for line in cells for mark in line):
            panels.append(HeatPanel(title=row.label, cells=cells))
    if not panels:
        return None
    low, high = heat_range(panels)
    tasks = section.task_indices
    many = len(section.tasks) > MANY_TASKS
    return Heat(
        kind="matrix",
        title="Accuracy on each task after each task",
        note="Row: task learnt; column: task measured, %. Fading down: forgotten.",
        values=Values(
            ["method", "after task", *(str(task + 1) for task in tasks)],
            [
                [panel.title, str(after + 1), *(value_at(line, task) for task in tasks)]
                for panel in panels
                for after, line in enumerate(panel.cells)
            ],
        ),
        panels=panels,
        visible=MATRICES_OF_MANY_TASKS if many else MATRICES,
        low=low,
        high=high,
        tasks=section.tasks,
    )


def _telling(section: Section) -> list[Row]:
    """Return rows with a matrix: the best method, the one that forgets most, the second, others."""
    rows = [row for row in section.rows if not row.joint]
    competing = [row for row in section.competing if row in rows]
    best = competing[:1]
    second = [row for row in competing if row.method != best[0].method][:1] if best else []
    known = [row for row in rows if row.complete and row.transfer]
    worst = sorted(known, key=lambda row: row.transfer.mean if row.transfer else 0.0)[:1]
    first = [*best, *worst, *second, *rows]
    return [row for index, row in enumerate(first) if row not in first[:index]]


def _cell(tasks: Sequence[str], after: int, task: int, accuracy: MeanStd | None) -> Mark | None:
    if accuracy is None:
        return None
    return Mark(accuracy.mean, f"after {tasks[after]}, on {tasks[task]}: {accuracy.text()} %")


def heat_range(panels: Sequence[HeatPanel]) -> tuple[float, float]:
    """Return a round range of accuracies, up to 100 unless a damaged record exceeds it."""
    known = [mark.value for panel in panels for line in panel.cells for mark in line if mark]
    low, high = round_range(known, least=10.0)
    return low, min(high, max([100.0, *known]))


def forgetting(section: Section) -> Dots | None:
    """Return how much accuracy each class lost in the best lines: a dot for each class."""
    rows = [row for row in section.best if not row.joint]
    losses = [_losses(row) for row in rows]
    classes = list(dict.fromkeys(key for row_losses in losses for key in row_losses))
    known = [loss.mean for row_losses in losses for loss in row_losses.values()]
    if not known:
        return None
    low, high = tick_range(*round_range([*known, 0.0], least=5.0))
    still = [
        row.label
        for row, row_losses in zip(rows, losses, strict=True)
        if row_losses and not any(round(loss.mean, 1) for loss in row_losses.values())
    ]
    drawn = [row.label for row in rows if row.label not in still]
    unchanged = f" Nothing changed with {', '.join(still)}." if still and drawn else ""
    return Dots(
        kind="forgetting",
        title="Forgetting of each class",
        note="A dot is a class: points of accuracy lost since it was learnt. Left of zero it "
        f"gained. The line is the mean.{unchanged}",
        values=Values(
            ["task", "class", *(row.label for row in rows)],
            [
                [*key, *(_text(row_losses.get(key), signed=True) for row_losses in losses)]
                for key in classes
            ],
        ),
        panels=[
            DotPanel(title=row.label, note=_worst(row_losses), dots=_lost_dots(row_losses))
            for row, row_losses in zip(rows, losses, strict=True)
            if row_losses and (row.label in drawn or not drawn)
        ],
        low=low,
        high=high,
        axis="points lost",
    )


def _losses(row: Row) -> Losses:
    """Return the forgetting of each class of each task, mean over the runs that have it."""
    values: dict[tuple[str, str], list[float]] = {}
    for run in row.counted:
        for task in run.classes:
            for name, value in zip(task.classes, task.forgetting, strict=False):
                if value is not None:
                    values.setdefault((task.task, name), []).append(value)
    return {key: mean for key, losses in values.items() if (mean := mean_std(losses))}


def _lost_dots(losses: Losses) -> list[Mark]:
    return [
        Mark(loss.mean, f"{name} ({task}): {loss.text(signed=True)} points lost")
        for (task, name), loss in losses.items()
    ]


def _worst(losses: Losses) -> str:
    task, name = max(losses, key=lambda key: losses[key].mean)
    worst = losses[task, name]
    return f"most: {name} ({task}), {worst.text()}" if worst.mean > 0 else "no class lost anything"


def free_rank(section: Section) -> Lines | None:
    """Return the free rank of each layer in per cent: a frame for each layer.

    The page shows at once those of the first row that has any, unless they are many.
    """
    rows = section.best
    shares = {row.label: _free_shares(row, section.tasks) for row in rows}
    layers = list(dict.fromkeys(name for row_shares in shares.values() for name in row_shares))
    if not layers or not section.tasks:
        return None
    lines = {
        layer: [
            _series(section, method, row_shares[layer])
            for method, row_shares in shares.items()
            if layer in row_shares
        ]
        for layer in layers
    }
    first = next(len(row_shares) for row_shares in shares.values() if row_shares)
    tasks = section.task_indices
    return Lines(
        kind="free-rank",
        title="Free rank of each layer",
        note="Directions of a layer, or its units, that are not protected, %, after each task.",
        values=Values(
            ["layer", "method", *(str(task + 1) for task in tasks)],
            [
                [layer, line.label, *(value_at(line.marks, task) for task in tasks)]
                for layer in layers
                for line in lines[layer]
            ],
        ),
        panels=[LinePanel(title=layer, series=lines[layer], others=[]) for layer in layers],
        visible=first if first <= MANY_LAYERS < len(layers) else None,
        aside=first > MANY_LAYERS,
        low=0.0,
        high=100.0,
        count=len(section.tasks),
        axis="task learnt",
    )


def _free_shares(row: Row, tasks: Sequence[str]) -> dict[str, list[Mark | None]]:
    """Return the free rank after each task, in per cent, of each layer that all runs have."""
    first, *others = [{layer.name: layer for layer in run.layers} for run in row.counted]
    return {
        name: [
            _free_share(row.label, [layer, *(other[name] for other in others)], index, task)
            for index, task in enumerate(tasks)
        ]
        for name, layer in first.items()
        if all(name in other for other in others)
    }


def _free_share(label: str, layers: Sequence[Layer], index: int, task: str) -> Mark | None:
    if any(index >= len(layer.ranks) for layer in layers):
        return None
    free = mean_std(100 * (1 - layer.ranks[index] / layer.dimension) for layer in layers)
    if free is None:
        return None
    rank = sum(layer.ranks[index] for layer in layers) / len(layers)
    used = f"{rank:.0f} of {layers[0].dimension} in use"
    return Mark(free.mean, f"{label}, {layers[0].name}, after {task}: {free.text()} % free, {used}")


def losses(section: Section) -> Lines | None:
    """Return the training loss over the epochs of each task: a frame for each of the best lines."""
    curves = {row.label: _curves(row, len(section.tasks)) for row in section.best}
    curves = {label: tasks for label, tasks in curves.items() if any(c.train for c in tasks)}
    longest = max((len(c.train) for tasks in curves.values() for c in tasks), default=0)
    if not longest:
        return None
    every = -(-longest // LOSSES)
    shown = -(-longest // every)
    step = shown + 1 if shown > 1 else 1
    lines = {
        label: _loss_marks(label, tasks, section.tasks, every, step)
        for label, tasks in curves.items()
    }
    known = [[mark.value for mark in marks if mark] for marks in lines.values()]
    tops = sorted(max(values, default=0.0) for values in known)
    usual = BEYOND * tops[len(tops) // 2]
    beyond = tops[-1] > usual
    validated = any(c.valid for tasks in curves.values() for c in tasks)
    head = ["method", "task", "epochs", "at first", "in the end", *["validation"] * validated]
    low, high = round_range([0.0, *map(min, filter(None, known)), min(tops[-1], usual)], least=0.1)
    return Lines(
        kind="loss",
        title="Training loss",
        aside=True,
        note="Mean loss of epochs, task by task, with all that a method adds to the cross-entropy."
        + (" Lines that leave the frame go on above it." if beyond else ""),
        values=Values(
            head,
            [
                [label, name, *_loss_values(curve, validated)]
                for label, tasks in curves.items()
                for name, curve in zip(section.tasks, tasks, strict=True)
            ],
        ),
        panels=[
            LinePanel(title=label, series=[_series(section, label, marks)], others=[])
            for label, marks in lines.items()
        ],
        low=low,
        high=high,
        count=len(section.tasks) * step - (step > 1),
        axis="task",
        step=step,
    )


def _curves(row: Row, count: int) -> list[Curve]:
    """Return the curves of a row for each task, means over the runs that have trained so long."""
    return [
        Curve(
            epochs=max((curve.epochs for curve in runs), default=0),
            train=_means([curve.train for curve in runs]),
            valid=_means([curve.valid for curve in runs]),
        )
        for task in range(count)
        for runs in [[run.curves[task] for run in row.counted if task < len(run.curves)]]
    ]


def _means(lists: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Return the mean of each position over the lists that have it; None if one has no value."""
    longest = max(map(len, lists), default=0)
    each = [mean_std(one[i] for one in lists if i < len(one)) for i in range(longest)]
    return [value.mean if value else None for value in each]


def _loss_marks(
    label: str, tasks: Sequence[Curve], names: Sequence[str], every: int, step: int
) -> list[Mark | None]:
    """Return the loss of every few epochs, with a gap behind each task."""
    marks: list[Mark | None] = []
    for name, curve in zip(names, tasks, strict=True):
        last = len(curve.train) - 1
        epochs = [min(first + every - 1, last) for first in range(0, last + 1, every)]
        for epoch in epochs:
            loss = curve.train[epoch]
            tip = f"{label}, {name}, epoch {epoch + 1}: {_loss(loss)}"
            marks.append(None if loss is None else Mark(loss, tip))
        marks += [None] * (step - len(epochs))
    return marks[:-1] if step > 1 else marks


def _loss_values(curve: Curve, validated: bool) -> list[str]:
    """Return the epochs of a task, its first and last loss, and its least loss in validation."""
    ends = [curve.train[0], curve.train[-1]] if curve.train else [None, None]
    least = min((loss for loss in curve.valid if loss is not None), default=None)
    return [str(curve.epochs), *map(_loss, [*ends, *[least] * validated])]


def _loss(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Held:
    """What a layer's projection removes of each class's energy, in per cent, by class."""

    training: dict[str, float]
    unseen: dict[str, float]


def held_energy(row: Row) -> Dots | None:
    """Return how much of each class's energy the projection of each layer holds, in unseen images.

    It is that of the end, or of when classes were learnt as long as there is no end.
    """
    layers = {entry.layer: _held(row, entry.layer) for run in row.counted for entry in run.held}
    layers = {layer: held for layer, held in layers.items() if held.training or held.unseen}
    if not layers:
        return None
    shown = {layer: held.unseen or held.training for layer, held in layers.items()}
    classes = list(dict.fromkeys(name for values in shown.values() for name in values))
    known = [value for values in shown.values() for value in values.values()]
    low, high = tick_range(*round_range(known, least=5.0))
    of = "unseen" if any(held.unseen for held in layers.values()) else "training"
    return Dots(
        kind="held",
        title=f"Energy held of each class: {row.label}",
        aside=True,
        note=f"A dot is a class: how much of the energy of {of} images, %, the projection of a "
        "layer removes from updates. The line is the mean.",
        values=Values(
            ["class", *layers],
            [
                ["mean, training images", *(_mean_of(held.training) for held in layers.values())],
                ["mean, unseen images", *(_mean_of(held.unseen) for held in layers.values())],
                *(
                    [name, *(_percent(values.get(name)) for values in shown.values())]
                    for name in classes
                ),
            ],
        ),
        panels=[
            DotPanel(title=layer, note=_held_note(held), dots=_held_dots(held))
            for layer, held in layers.items()
        ],
        low=low,
        high=min(high, max([100.0, *known])),
        axis="energy held, %",
        visible=MANY_LAYERS if len(layers) > MANY_LAYERS else None,
    )


def _held(row: Row, layer: str) -> Held:
    """Return the shares held of each class by a layer, means over the runs that have them."""
    found: dict[str, dict[str, list[float]]] = {"train": {}, "test": {}}
    for run in row.counted:
        names = _class_names(run)
        for entry in (entry for entry in run.held if entry.layer == layer):
            when = "final" if entry.final_train or entry.final_test else "learnt"
            for kind, values in found.items():
                for name, share in zip(names, getattr(entry, f"{when}_{kind}"), strict=False):
                    if share is not None:
                        values.setdefault(name, []).append(100 * share)
    means = (
        {name: statistics.fmean(shares) for name, shares in found[kind].items()} for kind in found
    )
    return Held(*means)


def _held_note(held: Held) -> str:
    """Return the means over classes, and the class that is held least."""
    values = held.unseen or held.training
    least = min(values, key=lambda name: values[name])
    parts = [
        f"{kind}\u00a0{_mean_of(of_kind)}"
        for kind, of_kind in (("unseen", held.unseen), ("training", held.training))
        if of_kind
    ]
    return f"{', '.join(parts)}; least: {least}, {_percent(values[least])}"


def _held_dots(held: Held) -> list[Mark]:
    return [
        Mark(
            value, f"{name}: {_percent(value)} % of unseen images, {training} % of training images"
        )
        for name, value in held.unseen.items()
        for training in [_percent(held.training.get(name))]
    ] or [
        Mark(value, f"{name}: {_percent(value)} % of training images")
        for name, value in held.training.items()
    ]


def _mean_of(values: Mapping[str, float]) -> str:
    return _percent(statistics.fmean(values.values()) if values else None)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


@dataclass(frozen=True)
class Group:
    """Classes that share directions at a layer: the first of them, and those that joined it."""

    first: str
    joined: list[tuple[str, float]]  # with the cosine because of which they joined


def merged_classes(row: Row) -> Dots | None:
    """Return the cosines of classes that base refining merged, in the first run with groups."""
    run = next((run for run in row.counted if any(layer.groups for layer in run.layers)), None)
    if run is None:
        return None
    layers = {layer.name: _groups(run, layer) for layer in run.layers if layer.groups}
    cosines = [cosine for groups in layers.values() for g in groups for _, cosine in g.joined]
    low, high = tick_range(*round_range(cosines or [0.0, 1.0], least=0.1))
    return Dots(
        kind="merged",
        title=f"Classes merged by base refining: {row.label}, seed {run.seed}",
        aside=True,
        note="A dot is a class that joined the group of an earlier one, by their cosine. The "
        "classes of a group share directions.",
        values=Values(
            ["layer", "group of", "classes that joined, with their cosine"],
            [
                [name, group.first, ", ".join(f"{n} {c:.2f}" for n, c in group.joined) or "none"]
                for name, groups in layers.items()
                for group in groups
            ],
        ),
        panels=[_groups_panel(name, groups) for name, groups in layers.items()],
        low=low,
        high=min(high, max([1.0, *cosines])),  # more than 1 only if the record is damaged
        axis="cosine",
    )


def _groups(run: RunRecord, layer: Layer) -> list[Group]:
    """Return the groups of a layer, in the order of their first classes."""
    names = _class_names(run)
    groups: dict[int, Group] = {}
    for index, (number, cosine) in enumerate(zip(layer.groups, layer.cosines, strict=True)):
        name = names[index] if index < len(names) else f"class {index + 1}"
        if number in groups:
            groups[number].joined.append((name, cosine))
        else:
            groups[number] = Group(name, [])
    return list(groups.values())


def _class_names(run: RunRecord) -> list[str]:
    """Return the classes in the order they were learnt, with their tasks where names repeat."""
    pairs = [(name, task.task) for task in run.classes for name in task.classes]
    counts = Counter(name for name, _ in pairs)
    return [f"{name} ({task})" if counts[name] > 1 else name for name, task in pairs]


def _groups_panel(layer: str, groups: Sequence[Group]) -> DotPanel:
    classes = sum(1 + len(group.joined) for group in groups)
    dots = [
        Mark(cosine, f"{name} joined the group of {group.first}: cosine {cosine:.2f}")
        for group in groups
        for name, cosine in group.joined
    ]
    note = f"{classes} classes in {counted(len(groups), 'group')}"
    return DotPanel(title=layer, note=note, dots=dots)


def cost(section: Section) -> Bars:
    """Return time by phase and memory: a bar for each row."""
    times, memories, lines = [], [], []
    for row in section.rows:
        spent = [
            sum(getattr(run.seconds, name) for run in row.counted) / len(row.counted)
            for name in PHASES
        ]
        parts = [
            Mark(value, f"{row.label}, {phase}: {duration(value)}")
            for phase, value in zip(PHASES.values(), spent, strict=True)
        ]
        memory = size(round(row.memory))
        times.append(Bar(label=row.label, parts=parts, text=duration(row.seconds)))
        kept = Mark(row.memory, f"{row.label}: {memory}")
        memories.append(Bar(label=row.label, parts=[kept], text=memory))
        lines.append([row.label, *map(duration, [*spent, row.seconds]), memory])
    return Bars(
        kind="cost",
        title="Time and memory",
        aside=True,
        note="Of a run, mean over seeds. Memory is what a method keeps between tasks.",
        values=Values(["method", *PHASES.values(), "time", "memory"], lines),
        panels=[
            BarPanel(title="Time by phase", bars=times, parts=list(PHASES.values())),
            BarPanel(title="Memory", bars=memories, parts=[]),
        ],
    )


def _text(figure: MeanStd | None, signed: bool = False) -> str:
    return figure.text(signed) if figure else "–"
