"""The sentences of CLINC150, as the network reads them, by task; and those of no intent."""

from dataclasses import dataclass

import torch
from torch import Tensor

from classgrad import benchmarks
from classgrad.data import DATASETS, data_dir
from classgrad.data.clinc150 import FILES, without_intent
from classgrad.data.datasets import read
from classgrad.data.sentences import as_text
from classgrad.tasks import Split


@dataclass(frozen=True)
class Domain:
    """The sentences of a task, with labels from 0; those for tests are for the figures only."""

    name: str
    intents: tuple[str, ...]
    train: Split
    valid: Split
    test: Split


def domains(order: str = "natural", per_intent: int | None = None) -> list[Domain]:
    """Return the ten tasks; for trials with some sentences of each intent alone."""
    stream = benchmarks.load(
        "clinc150", data_dir(), 1, task_order=order, train_per_class=per_intent
    )
    return [
        Domain(task.name, task.class_names, task.train, task.valid, test)
        for task, test in ((task, stream.test(task.id)) for task in stream)
    ]


def without(split: str) -> list[str]:
    """Return the sentences of no intent of a split."""
    data = DATASETS["clinc150"]
    path = data_dir() / data.folder / FILES[0]
    return without_intent(path, data, read(data, path), split)


def texts(split: Split) -> list[str]:
    """Return sentences as text."""
    return as_text(split.images)


def area(known: Tensor, others: Tensor) -> float:
    """Return the share of pairs in which the known one is higher; equal ones count half.

    >>> area(torch.tensor([3.0, 2.0]), torch.tensor([2.0, 1.0]))
    0.875
    """
    values = others.double().sort().values
    below = torch.searchsorted(values, known.double()).double()
    equal = torch.searchsorted(values, known.double(), right=True).double() - below
    return float((below + equal / 2).mean() / len(values))
