"""Options that all benchmarks share."""

import torch
from pydantic import Field
from torch import Tensor

from classgrad.settings import Settings
from classgrad.tasks import Split


class BenchmarkSettings(Settings):
    """Options that all benchmarks share; each benchmark adds its own."""

    kind = "benchmark option"

    valid_fraction: float = Field(
        default=0.05, ge=0, lt=1, description="share of the training data kept for validation"
    )
    train_per_class: int | None = Field(
        default=None,
        ge=1,
        description="at most this many training images per class, for quick runs",
    )

    test_per_class: int | None = Field(
        default=None,
        ge=1,
        description="at most this many test images per class, for quick runs",
    )

    def reduce(self, test: Split) -> Split:
        """Return the test data, with at most `test_per_class` images per class."""
        if self.test_per_class is None:
            return test
        kept = first_of_each(test.labels, self.test_per_class)
        return Split(test.images[kept], test.labels[kept])

    def divide(self, data: Split, generator: torch.Generator) -> tuple[Split, Split]:
        """Return training and validation data, in an order drawn from `generator`.

        No class is left without a training sample.
        """
        order = torch.randperm(len(data), generator=generator)
        count = round(len(data) * self.valid_fraction)
        valid, train = order[:count], order[count:]
        missing = ~torch.isin(data.labels[valid], data.labels[train])
        if missing.any():
            moved = missing.nonzero().flatten()
            moved = moved[first_of_each(data.labels[valid][moved], 1)]
            train = torch.cat([valid[moved], train])
            keep = torch.ones(len(valid), dtype=torch.bool)
            keep[moved] = False
            valid = valid[keep]
        if self.train_per_class is not None:
            train = train[first_of_each(data.labels[train], self.train_per_class)]
        return (
            Split(data.images[train], data.labels[train]),
            Split(data.images[valid], data.labels[valid]),
        )


def first_of_each(labels: Tensor, count: int) -> Tensor:
    """Return the indices of the first `count` samples of each class, in order.

    >>> first_of_each(torch.tensor([1, 0, 1, 1, 0]), 2).tolist()
    [0, 1, 2, 4]
    """
    kept = [(labels == label).nonzero().flatten()[:count] for label in labels.unique()]
    return torch.cat(kept).sort().values
