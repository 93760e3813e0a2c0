"""Which classes base refining has merged, and how similar they were."""

from dataclasses import dataclass

from classgrad.report.page.figures import DotPanel, Dots, Figure, Mark, Values, rounded
from classgrad.report.page.summary import Row
from classgrad.runs.record import Layer, RunRecord


@dataclass(frozen=True)
class Group:
    """Classes of one layer that share directions: the first of them, and those that joined."""

    first: str
    joined: list[tuple[str, float]]  # with the cosine that decided it


def merged(row: Row) -> Figure | None:
    """Return the similarities of merged classes, of the first run that has any; a panel a layer."""
    run = next((run for run in row.counted if any(layer.groups for layer in run.layers)), None)
    if run is None:
        return None
    layers = {layer.name: groups_of(run, layer) for layer in run.layers if layer.groups}
    cosines = [cosine for groups in layers.values() for g in groups for _, cosine in g.joined]
    low, high = rounded(cosines or [0.0, 1.0], least=0.1)
    return Dots(
        kind="merged",
        title=f"Classes merged by base refining: {row.label}, seed {run.seed}",
        note="A dot is a class that joined the group of an earlier one, by their cosine. The "
        "classes of a group share directions.",
        values=Values(
            ["layer", "group of", "classes that joined, with their cosine"],
            [
                [name, group.first, _members(group) or "none"]
                for name, groups in layers.items()
                for group in groups
            ],
        ),
        panels=[DotPanel(name, _counts(groups), _dots(groups)) for name, groups in layers.items()],
        low=low,
        high=min(high, max([1.0, *cosines])),  # more than 1 only if the record is damaged
        axis="cosine",
    )


def groups_of(run: RunRecord, layer: Layer) -> list[Group]:
    """Return the groups of a layer, in the order of their first classes."""
    names = class_names(run)
    groups: dict[int, Group] = {}
    for place, (number, cosine) in enumerate(zip(layer.groups, layer.cosines, strict=True)):
        name = names[place] if place < len(names) else f"class {place + 1}"
        if number in groups:
            groups[number].joined.append((name, cosine))
        else:
            groups[number] = Group(name, [])
    return list(groups.values())


def class_names(run: RunRecord) -> list[str]:
    """Return the classes of a run in the order they were learnt; with the task if that is needed.

    A class that several tasks have is named with its task.
    """
    pairs = [(name, task.task) for task in run.classes for name in task.classes]
    names = [name for name, _ in pairs]
    twice = (
        {name for name in names if names.count(name) > 1} if len(set(names)) < len(names) else ()
    )
    return [f"{name} ({task})" if name in twice else name for name, task in pairs]


def _members(group: Group) -> str:
    return ", ".join(f"{name} {cosine:.2f}" for name, cosine in group.joined)


def _counts(groups: list[Group]) -> str:
    classes = sum(1 + len(group.joined) for group in groups)
    return f"{classes} classes in {len(groups)} group{'s' if len(groups) > 1 else ''}"


def _dots(groups: list[Group]) -> list[Mark]:
    return [
        Mark(cosine, f"{name} joined the group of {group.first}: cosine {cosine:.2f}")
        for group in groups
        for name, cosine in group.joined
    ]
