"""What every network in the table is: a stack of layers from images to an embedding."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from classgrad.networks.options import NetworkSettings


class Trunk(nn.Sequential):
    """Layers by name, for inputs of one shape; `embedding` numbers come out for each."""

    Options: ClassVar[type[NetworkSettings]] = NetworkSettings
    summary: ClassVar[str]
    smallest: ClassVar[int] = 1  # height and width of the smallest image; 1 for inputs of any shape
    scheme: ClassVar[str] = "default"  # how weights are drawn, see `initialise`

    def __init__(self, input_shape: tuple[int, ...], options: NetworkSettings) -> None:
        super().__init__(self.stack(input_shape, options))
        self.embedding = output_size(self, input_shape)

    @staticmethod
    @abstractmethod
    def stack(input_shape: tuple[int, ...], options: Any) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""


def output_size(layers: Iterable[nn.Module], shape: tuple[int, ...]) -> int:
    """Return how many numbers a stack of layers makes of one input of `shape`."""
    x = torch.zeros(2, *shape)
    with torch.no_grad():
        for layer in layers:
            x = layer.eval()(x)
            layer.train()
    return x[0].numel()
