"""Models and numbers for tests, without a draw from PyTorch's global generator."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)


def built(make: Callable[[], Model], seed: int = 0) -> Model:
    """Return what `make` builds, in float64, with weights that depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def normal(*shape: int, seed: int = 0) -> Tensor:
    """Return normal numbers in float64."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def in_turn(count: int, classes: int) -> Tensor:
    """Return labels 0, 1, ..., 0, 1, ..."""
    return torch.arange(count) % classes
