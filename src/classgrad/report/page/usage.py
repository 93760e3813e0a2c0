"""What methods use up: room in the layers, time and memory."""

from classgrad.report.page.figures import (
    Bar,
    BarPanel,
    Bars,
    Figure,
    LinePanel,
    Lines,
    Mark,
    Series,
    Values,
    value_at,
)
from classgrad.report.page.summary import Row, Section
from classgrad.report.page.words import duration
from classgrad.report.statistics import spread
from classgrad.report.terminal import size


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
            ["layer", "method", *(str(task + 1) for task in section.places)],
            [
                [
                    name,
                    label,
                    *(value_at(shares[label][name], task) for task in section.places),
                ]
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
