"""CLINC150 as ten tasks: the fifteen intents of each domain, told apart in sentences."""

from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from classgrad import seeds
from classgrad.benchmarks.base import (
    BenchmarkSettings,
    first_of_each,
    load_both,
    select_classes,
)
from classgrad.tasks import Split, Task, TaskStream

TRAIN, VALID = 100, 20  # released sentences of an intent


class Clinc150Options(BenchmarkSettings):
    """Options of the benchmark.

    Sentences for validation are those released for it; with `valid_fraction=0` they are trained on.
    """

    task_order: Literal["natural", "reversed", "shuffled"] = Field(
        default="natural",
        description="order of the domains: as released, the other way round, or drawn with the "
        "run's seed",
    )


def clinc150(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Ten domains of fifteen intents; validation sentences as released."""
    options = Clinc150Options(**values)
    train, test = load_both("clinc150", root, options.held_out)
    assert train.coarse is not None
    order = list(range(len(train.coarse_names)))
    if options.task_order == "reversed":
        order.reverse()
    elif options.task_order == "shuffled":
        order = torch.randperm(len(order), generator=seeds.generator(seed, "classes")).tolist()
    every, judged = Split(train.images, train.labels), Split(test.images, test.labels)
    tasks, tests = [], []
    for number, domain in enumerate(order):
        classes = train.labels[train.coarse == domain].unique().tolist()
        names = tuple(train.class_names[label] for label in classes)
        learnt, valid = divide(select_classes(every, classes), options)
        tasks.append(Task(number, train.coarse_names[domain], names, learnt, valid))
        tests.append(options.reduce(select_classes(judged, classes)))
    notes = [*options.remarks, *(one.note for one in (train, test) if one.note)]
    return TaskStream("clinc150", tasks, tests, notes, options.model_dump())


def divide(data: Split, options: Clinc150Options) -> tuple[Split, Split]:
    """Return the sentences for training, and those released for validation, the last of each class.

    If a share is held out, it is missing in both.
    """
    kept = torch.zeros(len(data), dtype=torch.bool)
    for label in data.labels.unique().tolist() if options.valid_fraction else []:
        indices = (data.labels == label).nonzero().flatten()
        kept[indices[round(len(indices) * TRAIN / (TRAIN + VALID)) :]] = True
    train, valid = ((~kept).nonzero().flatten(), kept.nonzero().flatten())
    if options.train_per_class is not None:
        train = train[first_of_each(data.labels[train], options.train_per_class)]
    return (
        Split(data.images[train], data.labels[train]),
        Split(data.images[valid], data.labels[valid]),
    )
