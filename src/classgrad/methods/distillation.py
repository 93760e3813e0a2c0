"""The base of distillation methods: outputs of old heads are recorded and compared with later."""

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
    """Learn a task while the outputs of old heads are pulled to recorded ones; they train too."""

    revisits: ClassVar[bool] = True


def logits_of(
    net: Network, x: Tensor, tasks: Sequence[int], features: Tensor | None = None
) -> list[Tensor]:
    """Return the outputs of the heads of these tasks.

    `features` are embeddings of `x`, if they are known already; they are used where embeddings do
    not depend on the task. Where they do, every head gets the embeddings of its own task, in
    evaluation mode, so with stored statistics, as in predictions: the loss is zero as long as no
    weight has moved.
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
    forward: Callable[[Tensor], Tensor],
    generator: torch.Generator,
) -> Tensor:
    """Return the outputs of `forward` for a split, in its order, in evaluation mode.

    The batches are shuffled, as in training: with BatchNorm on batch statistics the output of a
    sample depends on its batch, and many datasets are sorted by class.
    """
    dtype = next(net.parameters()).dtype
    order, rows = [], []
    with net.evaluating(), torch.no_grad():
        for index in batches(len(split), BATCH, generator):
            order.append(index)
            rows.append(forward(transform(split.unit_images(index, dtype))))
    return torch.cat(rows)[torch.cat(order).argsort()]


def record(
    net: Network,
    split: Split,
    transform: Transform,
    tasks: Sequence[int],
    generator: torch.Generator,
) -> Tensor:
    """Return the current outputs of these tasks' heads for a split, concatenated."""

    def forward(x: Tensor) -> Tensor:
        return torch.cat(logits_of(net, x, tasks), dim=1)

    return in_batches(net, split, transform, forward, generator)


def drift(logits: Tensor, recorded: Tensor) -> Tensor:
    """Return the loss with the recorded outputs as targets, minus its value when recorded."""
    targets = recorded.sigmoid()
    return cross_entropies(logits, targets) - cross_entropies(recorded, targets)


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the binary cross-entropy of (n x outputs), summed over outputs, averaged over rows."""
    total = functional.binary_cross_entropy_with_logits(logits, targets, reduction="sum")
    return total / len(logits)
