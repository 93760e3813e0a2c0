"""What methods that keep the answers of old heads share: recording them, and asking again."""

from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.methods.base import Method
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import BATCH
from classgrad.tasks import Split, Transform, batches


class Distilled(Method):
    """Learn a task while old heads go on answering as they did; they move too, to follow."""

    revisits: ClassVar[bool] = True


def logits_of(
    net: Network, x: Tensor, tasks: Sequence[int], features: Tensor | None = None
) -> list[Tensor]:
    """Return the outputs of the heads of these tasks.

    `features` are embeddings of `x` that are at hand; they serve where embeddings do not depend on
    the task. Where they do, every head gets its own, in evaluation mode: with the stored statistics
    that its task is asked with. So nothing is pulled as long as nothing has moved.
    """
    if net.task_dependent:
        with net.evaluating():
            return [net.heads[task](net.embed(x, task)) for task in tasks]
    if features is None:
        features = net.embed(x, tasks[0])
    return [net.heads[task](features) for task in tasks]


def in_batches(
    net: Network,
    split: Split,
    transform: Transform,
    answer: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Return what `answer` makes of the inputs of a split, row by row, in evaluation mode.

    The batches are shuffled, as in training: with BatchNorm on batch statistics the company of a
    sample is part of its answer, and many a dataset is sorted by class.
    """
    dtype = next(net.parameters()).dtype
    order, rows = [], []
    with net.evaluating(), torch.no_grad():
        for index in batches(len(split), BATCH, generator):
            order.append(index)
            rows.append(answer(transform(split.unit_images(index, dtype))))
    return torch.cat(rows)[torch.cat(order).argsort()]


def record(
    net: Network,
    split: Split,
    transform: Transform,
    tasks: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Return the present outputs of these tasks' heads for a split, side by side."""

    def answer(x: Tensor) -> Tensor:
        return torch.cat(logits_of(net, x, tasks), dim=1)

    return in_batches(net, split, transform, answer, generator)


def drift(logits: Tensor, answers: Tensor) -> Tensor:
    """Return the loss with the recorded answers for targets, less what it was when recorded."""
    targets = answers.sigmoid()
    return cross_entropies(logits, targets) - cross_entropies(answers, targets)


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Binary cross-entropy of (n x outputs), summed over outputs and averaged over rows."""
    total = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return total / len(logits)
