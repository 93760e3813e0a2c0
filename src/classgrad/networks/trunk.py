"""The base of every network in the table: a stack of layers from images to an embedding."""

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from classgrad.errors import UserError
from classgrad.networks.blocks import run
from classgrad.networks.frozen import FrozenOutputs
from classgrad.networks.layers import Dropout, PerTask, TaskBatchNorm
from classgrad.settings import Settings


class HeadSettings(Settings):
    """Options of a user's own network."""

    kind = "network option"

    heads: Literal["task", "shared"] = Field(
        default="task", description="one head for each task, or one for all"
    )


class WeightSettings(HeadSettings):
    """Options all networks of the table share; each network adds its own.

    In settings, a digest of its content takes the place of a file, see `weights.with_digest`.
    """

    sources: ClassVar[tuple[str, ...]] = ("random",)  # values of `weights` that are not files
    folder: ClassVar[tuple[str, ...]] = ()  # files of released weights, if a folder can be given

    weights: str = Field(
        default="random",
        description="first weights: random, or a safetensors file, known by a digest",
    )


class NetworkSettings(WeightSettings):
    """Options of networks with BatchNorm for a stream of tasks."""

    norm: Literal["batch", "stored", "first"] = Field(
        default="batch",
        description="statistics of BatchNorm at test time: of the batch, stored for each task, or "
        "those of the first task for all",
    )
    affine: Literal["first", "task"] = Field(
        default="first",
        description="scale and shift of BatchNorm: of the first task, or one per task",
    )


# Layers allowed between a layer and its ReLU, besides a norm: they do not mix channels.
CHANNELWISE = (
    nn.Identity,
    Dropout,
    nn.modules.dropout._DropoutNd,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
)


@dataclass(frozen=True)
class Wire:
    """How a layer with weights is connected, by names: its norm, the ReLUs before and after it."""

    layer: str
    norm: str | None
    source: str | None  # the ReLU whose units it sees; None: the input
    target: str


class Trunk(nn.Sequential):
    """Layers by name, for inputs of one shape; the output has `embedding` numbers per input."""

    Options: ClassVar[type[WeightSettings]] = NetworkSettings
    summary: ClassVar[str]
    smallest: ClassVar[int] = 1  # height and width of the smallest image; 1 for inputs of any shape
    scheme: ClassVar[str] = "default"  # how weights are drawn, see `initialise`
    # Mean and deviation of images in [0, 1] that pretrained weights need; None: those of the data.
    normalisation: ClassVar[tuple[float, float] | None] = None
    licence: ClassVar[str] = ""  # of the weights that are released with the network
    reads: ClassVar[str] = "images"  # or "sentences", as their bytes
    last_blocks: ClassVar[int] = 5  # that learn with tune="last", in a network with `trainable`
    # Whether norms are fixed, so that a frozen layer always has the same output for an input.
    fixed_norms: ClassVar[bool] = False
    # Of the layers that the trunk begins with, where they are looked up instead of computed.
    frozen_outputs: FrozenOutputs | None = None

    def __init__(self, input_shape: tuple[int, ...], options: Any) -> None:
        super().__init__(self.stack(input_shape, options))
        self.embedding = output_size(self, input_shape)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layers in order."""
        known = self.frozen_outputs
        if known is None or not known.is_usable():
            return run(list(self), x)
        return run(list(self)[len(known.layers) :], known(x))

    def frozen_layers(self) -> list[nn.Module]:
        """Return the first layers, if what they make of an input never changes; else none."""
        layers = list(takewhile(_is_frozen, self)) if self.fixed_norms else []
        has_weights = any(True for layer in layers for _ in layer.parameters())
        return layers if has_weights else []

    @staticmethod
    @abstractmethod
    def stack(input_shape: tuple[int, ...], options: Any) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""

    def lengths(self, inputs: Tensor) -> Tensor:
        """Return the length of each input, if a batch of them is padded to the longest."""
        return torch.zeros(len(inputs), dtype=torch.int64)

    @classmethod
    def blocks(cls) -> int:
        """Return how many blocks the option `trainable` counts, in a network that has it."""
        raise UserError(f"{cls.__name__} has no blocks that can be chosen to learn")

    def pretrained(self) -> Mapping[str, Tensor]:
        """Return the weights that are released with the network, by name."""
        raise UserError(f"there are no pretrained weights of {type(self).__name__}")

    def released(self, folder: Path) -> Mapping[str, Tensor]:
        """Return the weights in a folder of released files, by their names here."""
        raise UserError(f"{type(self).__name__} takes its weights from a file, not from a folder")

    def wiring(self) -> list[Wire]:
        """Return between which ReLUs each layer with weights is; the heads see the last target.

        This works for layers one after another; a trunk with branches has to override it.
        """
        wires: list[Wire] = []
        layer = norm = source = None
        for name, module in self.named_children():
            if isinstance(module, nn.ReLU):
                if layer is not None:
                    wires.append(Wire(layer, norm, source, name))
                    layer, norm, source = None, None, name
            elif _is_plain(module) and layer is None:
                layer = name
            elif isinstance(module, TaskBatchNorm) and layer is not None and norm is None:
                norm = name
            elif any(True for _ in module.parameters()) or (
                layer is not None and not isinstance(module, CHANNELWISE)
            ):
                raise self._unclear(name, module)
        if layer is not None:
            raise self._unclear(layer, self.get_submodule(layer))
        return wires

    def _unclear(self, name: str, module: nn.Module) -> UserError:
        return UserError(
            f"layer '{name}' ({type(module).__name__}) of {type(self).__name__} is not a Linear "
            "layer or ungrouped convolution, then at most a TaskBatchNorm, then ReLU: define "
            f"wiring() in {type(self).__name__}"
        )


def _is_frozen(module: nn.Module) -> bool:
    """Tell whether a layer with fixed norms has nothing that learns, draws or knows the task."""
    if any(parameter.requires_grad for parameter in module.parameters()):
        return False
    return not any(isinstance(part, Dropout | PerTask) for part in module.modules())


def _is_plain(module: nn.Module) -> bool:
    """Tell whether every output of a layer sees every input channel."""
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return module.groups == 1
    return isinstance(module, nn.Linear)


def output_size(layers: Iterable[nn.Module], shape: tuple[int, ...]) -> int:
    """Return the size of a stack's output for one input of `shape`."""
    x = torch.zeros(2, *shape)
    with torch.no_grad():
        for layer in layers:
            x = layer.eval()(x)
            layer.train()
    return x[0].numel()
