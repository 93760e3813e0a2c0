"""LeNet-5, the network of APD, GPM and CGP for CIFAR-100 Superclass: 2,986,500 weights, no bias."""

from collections import OrderedDict

from torch import nn

from classgrad.networks.options import NetworkSettings
from classgrad.networks.response import LocalResponseNorm
from classgrad.networks.trunk import Trunk, output_size


class LeNet5(Trunk):
    """Two 5 x 5 convolutions with local response normalisation, then 800 and 500 units."""

    summary = "LeNet-5: 20-50-800-500, local response normalisation, no biases"
    smallest = 4
    scheme = "relu"

    @staticmethod
    def stack(
        input_shape: tuple[int, ...], options: NetworkSettings
    ) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = input_shape[0]
        for index, width in enumerate([20, 50], start=1):
            layers[f"conv{index}"] = nn.Conv2d(channels, width, 5, padding=2, bias=False)
            layers[f"relu{index}"] = nn.ReLU()
            layers[f"lrn{index}"] = LocalResponseNorm(4, alpha=0.001 / 9)
            layers[f"pool{index}"] = nn.MaxPool2d(3, stride=2, padding=1)
            channels = width
        layers["flat"] = nn.Flatten()
        size = output_size(layers.values(), input_shape)
        for index, width in enumerate([800, 500], start=1):
            layers[f"fc{index}"] = nn.Linear(size, width, bias=False)
            layers[f"relu{index + 2}"] = nn.ReLU()
            size = width
        return layers
