"""Earlier states of a learner, and what differs between two."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgrad.checkpoints import CheckpointManager, Lock, Store
from classgrad.checkpoints.manager import FOLDER
from classgrad.errors import UserError
from classgrad.learner.info import Info
from classgrad.learner.learner import LEARNING, read_state, unfinished_state
from classgrad.networks import NETWORKS


def undo(folder: Path) -> None:
    """Return the learner in a folder to the state before the last task or images that it learnt.

    A class that was forgotten does not come back: no state with it is kept.
    """
    store = Store(folder / FOLDER)
    learnt = len(read_state(folder, store).state["tasks"])  # refuses what is no learner
    with Lock(folder):
        unfinished = unfinished_state(CheckpointManager(folder / LEARNING), learnt)
        if unfinished:
            raise UserError(
                f"task '{unfinished['task']}' was cut short: finish it before you undo anything"
            )
        if store.undo(carried=["kept_states"]) is None:  # a setting of the folder
            raise UserError(
                f"'{folder}' holds no earlier state: nothing can be undone, and no forgotten class "
                "be brought back"
            )


@dataclass(frozen=True)
class Differences:
    """What differs between two learners; names of fields are keys of the JSON output."""

    removed: list[str]  # task/class that only the first predicts
    added: list[str]  # task/class that only the second predicts
    images: dict[str, tuple[int, int]]  # numbers of images of a class of both
    settings: dict[str, tuple[Any, Any]]
    accuracy: dict[str, tuple[float | None, float | None]]  # of tasks of both, in per cent


def compare(first: Info, second: Info) -> Differences:
    """Return what differs between two learners, from what is known about them."""
    before, after = _images(first), _images(second)
    settings, other_settings = _settings(first), _settings(second)
    accuracy = {task.name: task.required_accuracy() for task in first.tasks}
    other_accuracy = {task.name: task.required_accuracy() for task in second.tasks}
    return Differences(
        removed=[name for name in before if name not in after],
        added=[name for name in after if name not in before],
        images=_changed(before, after, [name for name in before if name in after]),
        settings=_changed(settings, other_settings, sorted({**settings, **other_settings})),
        accuracy=_changed(
            accuracy, other_accuracy, [name for name in accuracy if name in other_accuracy]
        ),
    )


def _images(learner: Info) -> dict[str, int]:
    """Return the number of images of each class that is predicted."""
    return {
        f"{task.name}/{name}": count
        for task in learner.tasks
        for name, count in zip(task.class_names, task.samples, strict=True)
        if name not in task.forgotten
    }


def _settings(learner: Info) -> dict[str, Any]:
    """Return the settings of a learner, with the options of its network that were not given.

    A learner has these in its state only once it was loaded, so they may be in one of two.
    """
    settings = dict(learner.settings)
    kind = NETWORKS.get(settings["network"] or "")
    if kind is not None:
        given = settings["network_options"]
        settings["network_options"] = {**kind.Options().model_dump(), **given}
    return _flat(settings)


def _flat(settings: dict[str, Any]) -> dict[str, Any]:
    """Return settings by their names, those of parts with the name of their part."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        nested = isinstance(value, dict)
        flat |= {f"{name}.{key}": one for key, one in value.items()} if nested else {name: value}
    return flat


def _changed(before: dict[str, Any], after: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {
        name: (before.get(name), after.get(name))
        for name in names
        if before.get(name) != after.get(name)
    }
