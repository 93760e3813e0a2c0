"""What can be set on every benchmark."""

import torch
from pydantic import Field

from classgrad.settings import Settings
from classgrad.tasks import Split


class BenchmarkSettings(Settings):
    """Options all benchmarks share; each benchmark adds its own."""

    kind = "benchmark option"

    valid_fraction: float = Field(
        0.05, ge=0, lt=1, description="share of the training data kept for validation"
    )
    train_per_class: int | None = Field(
        None, ge=1, description="at most this many training images of each class, for quick work"
    )

    def divide(self, data: Split, generator: torch.Generator) -> tuple[Split, Split]:
        """Return training and validation data, in an order drawn from `generator`."""
        order = torch.randperm(len(data), generator=generator)
        held = round(len(data) * self.valid_fraction)
        valid, train = order[:held], order[held:]
        if self.train_per_class is not None:
            labels = data.labels[train]
            kept = [
                (labels == label).nonzero().flatten()[: self.train_per_class]
                for label in labels.unique()
            ]
            train = train[torch.cat(kept).sort().values]
        return (
            Split(data.images[train], data.labels[train]),
            Split(data.images[valid], data.labels[valid]),
        )
