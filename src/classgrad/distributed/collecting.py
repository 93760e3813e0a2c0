"""Collecting the inputs of layers with several processes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from classgrad.core.collect import ALONE, Batch, ClassInputs, Processes
from classgrad.core.layers import Site
from classgrad.core.subspace import Representation
from classgrad.distributed import World, world

BLOCKS = 8  # a symmetric matrix is sent in this many rows of blocks


def processes() -> Processes:
    """Return the processes of this run, for `collect`."""
    return ALONE if world().size == 1 else Together(world())


class Together:
    """Several processes that collect together: in each round every process takes one batch."""

    def __init__(self, together: World) -> None:
        self.world = together

    def in_step(self, batches: Iterable[Batch]) -> Iterator[Batch | None]:
        """Yield the batches of this process, and None after them while others have some left."""
        return self.world.in_step(batches)

    def errors_shared(self) -> AbstractContextManager[None]:
        """Raise an error of one process in the block in all of them."""
        return self.world.errors_shared()

    def counts(
        self,
        own: Mapping[int, int],
        classes: Collection[int] | None,
        labels: set[int],
        expected: Collection[int] | None,
    ) -> dict[int, tuple[int, int]]:
        """Return, by class, how many samples a round has before those of this process, and in all.

        Batches of a round are in the order of the processes. `labels` gets those that others saw.
        """
        assert classes is not None, "several processes have to name the classes"
        assert expected is not None
        places, known = sorted(classes), sorted(expected)
        counts = [own.get(value, 0) for value in places]
        here = [value in own for value in places]
        seen = [value in labels for value in known]
        table = self.world.gather(torch.tensor([*counts, *here, *seen]))
        by_process, present, others = table.split([len(places), len(places), len(known)], dim=1)
        labels.update(v for v, any_of in zip(known, others.any(0), strict=True) if any_of)
        before = by_process[: self.world.process_index].sum(0).tolist()
        total = by_process.sum(0).tolist()
        return {
            value: (before[place], total[place])
            for place, value in enumerate(places)
            if present[:, place].any()
        }

    def in_any(self, values: Sequence[bool]) -> list[bool]:
        """Tell of each value whether it is true in any process."""
        return [bool(value) for value in self.world.max(values)]

    def merge(self, classes: Sequence[ClassInputs], sites: Mapping[str, Site]) -> None:
        """Sum what all processes have of these classes in the main process; others keep nothing.

        A representation is sent as C Cᵀ and a prototype as a sum, so the traffic depends on classes
        and layers, not on the number of samples. The main process then computes the bases for all:
        several would only compete for the cores.
        """
        rows = self.world.sum(_table(classes, sites, _rows_of))
        counts = self.world.sum(_table(classes, sites, _samples_of))
        widths = self.world.max([_width(classes, name) for name in sites])
        for c, in_rows, in_samples in zip(classes, rows.tolist(), counts.tolist(), strict=True):
            for place, (name, site) in enumerate(sites.items()):
                if in_rows[place]:
                    part = c.representations.pop(name, Representation(site.dimension))
                    gram = summed_gram(self.world, part.gram())
                    if self.world.is_main_process:
                        c.representations[name] = Representation.of_gram(gram, in_rows[place])
                if in_samples[place]:
                    nothing = torch.zeros(widths[place], dtype=torch.float64)
                    total = self.world.sum_on_main_process(c.sums.pop(name, nothing))
                    if self.world.is_main_process:
                        c.sums[name], c.counts[name] = total, in_samples[place]


def summed_gram(together: World, gram: Tensor) -> Tensor:
    """Return the sum of a symmetric matrix in the main process; little more than half is sent."""
    total = torch.empty_like(gram)
    size = max(1, -(-len(gram) // BLOCKS))
    for start in range(0, len(gram), size):  # blocks below the diagonal are transposes
        stop = min(start + size, len(gram))
        block = together.sum_on_main_process(gram[start:stop, start:])
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
