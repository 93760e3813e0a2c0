"""What the layers see of a class, and how the parts of several processes are put together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from classgrad.core.layers import Site
from classgrad.core.subspace import Representation
from classgrad.distributed import world

BLOCKS = 8  # rows of blocks in which a symmetric matrix is sent


@dataclass
class ClassInputs:
    """For one class, by site: the representation, and the mean of the raw inputs (prototype)."""

    count: int = 0
    representations: dict[str, Representation] = field(default_factory=dict)
    sums: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, list[list[Tensor]]] = field(
        default_factory=dict
    )  # inputs of calls, by batch

    def prototype(self, site: str) -> Tensor:
        """Return the unit mean of the inputs at a site (Eq. prototype); zero if the mean is."""
        return nn.functional.normalize(self.sums[site] / self.counts[site], dim=0)


def merged(classes: Sequence[ClassInputs], sites: Mapping[str, Site]) -> None:
    """Let the first process have what all have of these classes, and the others nothing.

    A representation goes as C Cᵀ and a prototype as a sum, so what is sent depends on classes and
    layers, not on how many samples are behind them. The first process then finds the bases for all:
    they would only take the cores from each other.
    """
    if world().size == 1:
        return
    rows = world().sum(_table(classes, sites, _rows_of))
    counts = world().sum(_table(classes, sites, _samples_of))
    widths = world().largest([_width(classes, name) for name in sites])
    for c, in_rows, in_samples in zip(classes, rows.tolist(), counts.tolist(), strict=True):
        for place, (name, site) in enumerate(sites.items()):
            if in_rows[place]:
                part = c.representations.pop(name, Representation(site.dimension))
                gram = summed_gram(part.gram())
                if world().first:
                    c.representations[name] = Representation.of_gram(gram, in_rows[place])
            if in_samples[place]:
                nothing = torch.zeros(widths[place], dtype=torch.float64)
                total = world().sum_in_first(c.sums.pop(name, nothing))
                if world().first:
                    c.sums[name], c.counts[name] = total, in_samples[place]


def summed_gram(gram: Tensor) -> Tensor:
    """Return the sum of a symmetric matrix in the first process; half of it is sent, and a bit."""
    total = torch.empty_like(gram)
    size = max(1, -(-len(gram) // BLOCKS))
    for start in range(0, len(gram), size):  # what is below a block is that beside it, turned
        stop = min(start + size, len(gram))
        block = world().sum_in_first(gram[start:stop, start:])
        total[start:stop, start:] = block
        total[start:, start:stop] = block.T
    return total


def _table(
    classes: Sequence[ClassInputs],
    sites: Mapping[str, Site],
    value: Callable[[ClassInputs, str], int],
) -> Tensor:
    return torch.tensor([[value(c, name) for name in sites] for c in classes])


def _rows_of(c: ClassInputs, name: str) -> int:
    return c.representations[name].count if name in c.representations else 0


def _samples_of(c: ClassInputs, name: str) -> int:
    return c.counts.get(name, 0)


def _width(classes: Sequence[ClassInputs], name: str) -> int:
    return max((len(c.sums[name]) for c in classes if name in c.sums), default=0)
