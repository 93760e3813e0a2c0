"""Transforms from images in [0, 1] to the inputs of a network, fixed for each task."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True)
class Permute:
    """Permute the pixels of every image."""

    order: Tensor

    def __call__(self, images: Tensor) -> Tensor:
        """Permute (n, ...), keeping the shape."""
        return images.flatten(1)[:, self.order].reshape(images.shape)


class Normalise:
    """Pad with black, subtract mean and divide by deviation per channel, repeat grey channels.

    >>> Normalise([0.5], [0.25], padding=2, channels=3)(torch.ones(1, 1, 28, 28)).shape
    torch.Size([1, 3, 32, 32])
    """

    def __init__(
        self, mean: Sequence[float], deviation: Sequence[float], padding: int = 0, channels: int = 0
    ) -> None:
        self.mean = torch.tensor(mean, dtype=torch.float64).reshape(-1, 1, 1)
        self.deviation = torch.tensor(deviation, dtype=torch.float64).reshape(-1, 1, 1)
        self.padding, self.channels = padding, channels

    def __call__(self, images: Tensor) -> Tensor:
        """Map (n, c, h, w) in [0, 1] to the network's input."""
        if self.padding:
            images = functional.pad(images, [self.padding] * 4)
        images = (images - self.mean.to(images)) / self.deviation.to(images)
        return images.expand(-1, self.channels, -1, -1) if self.channels else images
