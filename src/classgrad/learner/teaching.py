"""How a learner comes to know a task: from what a user gives, in one go or after a crash."""

import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from classgrad import seeds
from classgrad.checkpoints import Keeper
from classgrad.checkpoints.errors import understood
from classgrad.errors import UserError
from classgrad.learner import state
from classgrad.learner.inputs import Data, as_split, divided
from classgrad.learner.judging import judged
from classgrad.learner.learnt import LearntTask
from classgrad.tasks import Task, digest
from classgrad.training.loop import Observer
from classgrad.training.rounds import fits

if TYPE_CHECKING:
    from classgrad.learner.learner import Learner


class SingleImage(UserWarning):
    """Warns of a class with one image."""


def task_from(
    learner: "Learner",
    name: str,
    train: Data,
    valid: Data | None,
    classes: Sequence[str] | None,
    skip_bad: bool,
) -> Task:
    """Return the task that a user describes; its number is that of a task learnt by that name."""
    known = [task.name for task in learner.tasks]
    number = known.index(name) if name in known else len(known)
    split, names = as_split(train, classes, learner.size, skip_bad)
    if len(set(names)) < len(names):
        raise UserError(f"task '{name}' has two classes of one name: give each its own")
    if valid is None:
        chance = seeds.generator(learner.seed, "valid", number)
        split, apart = divided(split, learner.valid_fraction, chance)
    else:
        apart, _ = as_split(valid, names, learner.size, skip_bad)
    shape = tuple(split.images.shape[1:])
    if learner.tasks and shape != learner.input_shape:
        raise UserError(
            f"images of task '{name}' have shape {shape}, those before {learner.input_shape}: "
            "give all the same"
        )
    learner.input_shape = shape
    if name in known and learner.tasks[number].data != digest([split, apart]):
        raise UserError(
            f"task '{name}' was learnt before, from other data: give the new one another name"
        )
    here = split.to(learner.device), apart.to(learner.device)
    return Task(number, name, names, *here, learner.transform)


def warn_of_single_images(task: Task) -> None:
    """Warn of classes whose prototypes, means over a class, are those of one image."""
    counts = torch.bincount(task.train.labels.cpu(), minlength=task.classes).tolist()
    alone = [name for name, count in zip(task.class_names, counts, strict=True) if count == 1]
    if alone:
        warnings.warn(
            f"class '{alone[0]}' of task '{task.name}' has one image to learn from, and prototypes "
            "of one image can show it: give more, or leave prototypes out (prototypes=False)",
            SingleImage,
            stacklevel=3,
        )


def teach(
    learner: "Learner", task: Task, keeper: Keeper | None, observer: Observer | None
) -> LearntTask:
    """Train on a task, from the start or where it was cut short; return what is known of it."""
    began = time.perf_counter()
    learner.learning = {"task": task.name, "data": digest([task.train, task.valid])}
    learner.add_task(task.classes)
    kept = state.unfinished(keeper, len(learner.tasks)) if keeper else None
    if kept:
        go_on(learner, kept)
        learner.method.continue_task(learner.net, task)
    else:
        learner.method.begin_task(learner.net, task)
    try:
        rounds = learner.method.rounds(task)
        fit = fits(learner, learner.training, learner.seed, rounds, observer, keeper)
        learner.method.fit_task(learner.net, task, fit)
        learner.method.end_task(
            learner.net, task, seeds.generator(learner.seed, "samples", task.id)
        )
    finally:
        learner.method.close()
    learner.tasks.append(judged(learner, task, time.perf_counter() - began))
    return learner.tasks[-1]


def go_on(learner: "Learner", kept: dict[str, Any]) -> None:
    """Bring a learner to the middle of a task that was cut short."""
    here = {**learner.learning, **state.circumstances(learner)}
    other = [name for name, value in here.items() if kept.get(name) != value]
    if other:
        raise UserError(
            f"task '{kept.get('task')}' was cut short with another {other[0]}: give the same "
            "again, or --fresh to start the task again"
        )
    with understood(f"what is kept of task '{learner.learning['task']}'"):
        state.put_in(learner, kept["memory"], kept["unfinished"]["net"])
    learner.unfinished = kept["unfinished"]
