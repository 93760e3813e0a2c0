"""AlexNet-5, the network of GPM, CGP and TRGP for CIFAR-100: 6,499,328 weights and no bias."""

from collections import OrderedDict

from pydantic import Field
from torch import nn

from classgrad.networks.layers import Dropout, TaskBatchNorm
from classgrad.networks.trunk import NetworkSettings, Trunk, output_size


class AlexNet5(Trunk):
    """Three convolutions and two wide Linear layers, each with BatchNorm, ReLU and Dropout."""

    class Options(NetworkSettings):
        """Options of this network."""

        dropout: bool = Field(default=True, description="drop 20 to 50 % of the units in training")

    summary = "AlexNet-5: 3 convolutions, 2 x 2048 units, BatchNorm, dropout"
    smallest = 19

    @staticmethod
    def stack(input_shape: tuple[int, ...], options: Options) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()

        def block(index: int, name: str, layer: nn.Module, width: int, drop: float) -> None:
            layers[name] = layer
            layers[f"bn{index}"] = TaskBatchNorm(width, options.norm, options.affine)
            layers[f"relu{index}"] = nn.ReLU()
            if options.dropout:
                layers[f"drop{index}"] = Dropout(drop)

        channels = input_shape[0]
        for index, (width, kernel, drop) in enumerate([(64, 4, 0.2), (128, 3, 0.2), (256, 2, 0.5)]):
            conv = nn.Conv2d(channels, width, kernel, bias=False)
            block(index + 1, f"conv{index + 1}", conv, width, drop)
            layers[f"pool{index + 1}"] = nn.MaxPool2d(2)
            channels = width
        layers["flat"] = nn.Flatten()
        size = output_size(layers.values(), input_shape)
        for index in (1, 2):
            block(3 + index, f"fc{index}", nn.Linear(size, 2048, bias=False), 2048, 0.5)
            size = 2048
        return layers
