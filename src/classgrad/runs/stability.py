"""How accuracy on earlier tasks falls and recovers while a task is learnt: the stability gap.

De Lange, van de Ven and Tuytelaars (ICLR 2023) test all earlier tasks after every step. Here they
are tested after a few steps of a task, on some images of each class. The same images are tested
every time, so what their accuracies differ by says more than what they are.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from classgrad.benchmarks.base import first_of_each
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import evaluate
from classgrad.runs.record import WithinTask
from classgrad.tasks import Split, TaskStream

IMAGES = 20  # of each class


def steps(total: int, count: int) -> set[int]:
    """Return after which steps of a task earlier ones are tested: closer at its start.

    That is where accuracy falls, and begins to recover.

    >>> sorted(steps(1000, 6))
    [3, 10, 32, 100, 316, 1000]
    """
    return {round(total ** (number / count)) for number in range(1, count + 1)}


def test_earlier(net: Network, stream: TaskStream, number: int) -> list[float]:
    """Return the accuracy on some images of each task before one."""
    accuracies = []
    with net.evaluating():
        for task in stream[:number]:
            test = stream.test(task.id)
            chosen = first_of_each(test.labels.cpu(), IMAGES)
            some = Split(test.images[chosen], test.labels[chosen])
            accuracies.append(evaluate(net, task, some).task_known)
    return accuracies


def lowest(within_tasks: Sequence[WithinTask], matrix: Tensor) -> Tensor | None:
    """Return at [i, j] the lowest accuracy on task j while task i was learnt; None if unknown.

    It is the accuracy on all test images before task i, A[i-1, j] of `matrix`, plus what the
    accuracy on some of them has changed by since.
    """
    size = len(matrix)
    if len(within_tasks) < size:
        return None
    result = torch.full((size, size), math.nan, dtype=torch.float64)
    for number, within in enumerate(within_tasks[1:size], start=1):
        measured = torch.tensor(within.accuracy, dtype=torch.float64)
        change = (measured - measured[0]).amin(0)
        result[number, :number] = (matrix[number - 1, :number] + change).clamp(min=0)
    return result
