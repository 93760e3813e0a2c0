"""A multi-layer perceptron without biases, as GPM and CGP use for flat inputs."""

import math
from collections import OrderedDict

from pydantic import Field
from torch import nn

from classgrad.networks.layers import Dropout, TaskBatchNorm
from classgrad.networks.trunk import NetworkSettings, Trunk


class MLP(Trunk):
    """Flatten, then `depth` times Linear, optional BatchNorm, ReLU, optional Dropout."""

    class Options(NetworkSettings):
        """Options of this network."""

        width: int = Field(default=256, ge=1, description="units of each hidden layer")
        depth: int = Field(default=2, ge=1, description="number of hidden layers")
        dropout: float = Field(
            default=0.0, ge=0, lt=1, description="share of units dropped in training"
        )
        batch_norm: bool = Field(default=False, description="normalise each hidden layer")

    summary = "perceptron, 2 x 256 ReLU units, no biases"

    @staticmethod
    def stack(input_shape: tuple[int, ...], options: Options) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""
        size = math.prod(input_shape)
        layers: OrderedDict[str, nn.Module] = OrderedDict(flat=nn.Flatten())
        for index in range(1, options.depth + 1):
            layers[f"fc{index}"] = nn.Linear(size, options.width, bias=False)
            if options.batch_norm:
                layers[f"bn{index}"] = TaskBatchNorm(options.width, options.norm, options.affine)
            layers[f"relu{index}"] = nn.ReLU()
            if options.dropout:
                layers[f"drop{index}"] = Dropout(options.dropout)
            size = options.width
        return layers
