"""The energy of a task's classes that layers hold, measured on some images, in a run's record.

The images are the first of each class, the same ones every time. They go through the network in
mixed batches, as predictions do, because BatchNorm may use the statistics of a batch.
"""

import torch

from classgrad.benchmarks.base import first_of_each
from classgrad.core.held import held_energy
from classgrad.core.projector import Projector
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import BATCH
from classgrad.runs.record import HeldEnergy, RunRecord
from classgrad.tasks import Split, Task, batches

Shares = dict[str, list[float | None]]  # by layer, of each class
DIGITS = 4


def held_of(net: Network, projector: Projector, task: Task, split: Split, count: int) -> Shares:
    """Return, by layer, the share held of each class of a task, for up to `count` images of it."""
    chosen = first_of_each(split.labels.cpu(), count)
    dtype = next(net.parameters()).dtype
    shuffled = batches(len(chosen), BATCH, torch.Generator().manual_seed(0))
    data = (
        (task.transform(split.unit_images(chosen[index], dtype)), split.labels[chosen[index]])
        for index in shuffled
    )
    with net.evaluating():
        by_layer = held_energy(
            lambda x: net(x, task.id), data, projector.sites, projector.projections, task.classes
        )
    return {
        layer: [None if share is None else round(share, DIGITS) for share in shares]
        for layer, shares in by_layer.items()
    }


def add_held(record: RunRecord, when: str, shares: Shares, known: int = 0) -> None:
    """Add the shares of a task to a list of every layer; `known` classes come before its own.

    Classes before it that were not measured have None there: those of a state that an earlier
    version has saved.
    """
    layers = {entry.layer: entry for entry in record.held}
    for layer, of_classes in shares.items():
        entry = layers.setdefault(layer, HeldEnergy(layer=layer))
        values = getattr(entry, when)
        values += [None] * (known - len(values)) + of_classes
    record.held = list(layers.values())
