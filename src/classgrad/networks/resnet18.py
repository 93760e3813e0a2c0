"""Reduced ResNet18, the network of GEM, GPM and CGP for 5-Datasets: 1,090,140 conv weights."""

from collections import OrderedDict

from pydantic import Field
from torch import Tensor, nn

from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.trunk import NetworkSettings, Trunk, Wire


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, a 1 x 1 convolution where the shapes differ."""

    def __init__(self, inputs: int, width: int, stride: int, options: NetworkSettings) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride=stride, padding=1, bias=False)
        self.bn1 = TaskBatchNorm(width, options.norm, options.affine)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn2 = TaskBatchNorm(width, options.norm, options.affine)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != width:
            self.shortcut.append(nn.Conv2d(inputs, width, 1, stride=stride, bias=False))
            self.shortcut.append(TaskBatchNorm(width, options.norm, options.affine))
        self.relu2 = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, width, h / stride, w / stride)."""
        inner = self.relu1(self.bn1(self.conv1(x)))
        out: Tensor = self.relu2(self.bn2(self.conv2(inner)) + self.shortcut(x))
        return out


class ResNet18(Trunk):
    """A 3 x 3 stem and four stages of two blocks, a third as wide as the usual ResNet18."""

    class Options(NetworkSettings):
        """Options of this network."""

        width: int = Field(default=20, ge=1, description="channels of the first stage")

    summary = "ResNet18 reduced to 20-40-80-160 channels, BatchNorm"
    smallest = 9

    @staticmethod
    def stack(input_shape: tuple[int, ...], options: Options) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        layers["conv1"] = nn.Conv2d(input_shape[0], options.width, 3, padding=1, bias=False)
        layers["bn1"] = TaskBatchNorm(options.width, options.norm, options.affine)
        layers["relu"] = nn.ReLU()
        inputs = options.width
        for stage in range(1, 5):
            width = options.width * 2 ** (stage - 1)
            first = Block(inputs, width, 1 if stage == 1 else 2, options)
            layers[f"stage{stage}"] = nn.Sequential(first, Block(width, width, 1, options))
            inputs = width
        layers["pool"] = nn.AvgPool2d(2)
        layers["flat"] = nn.Flatten()
        return layers

    def wiring(self) -> list[Wire]:
        """Return between which ReLUs each convolution is; a shortcut ends where its block does."""
        wires = [Wire("conv1", "bn1", None, "relu")]
        source = "relu"
        for name, block in self.named_modules():
            if isinstance(block, Block):
                inner, outer = f"{name}.relu1", f"{name}.relu2"
                wires.append(Wire(f"{name}.conv1", f"{name}.bn1", source, inner))
                wires.append(Wire(f"{name}.conv2", f"{name}.bn2", inner, outer))
                if len(block.shortcut):
                    shortcut = f"{name}.shortcut.0", f"{name}.shortcut.1"
                    wires.append(Wire(*shortcut, source, outer))
                source = outer
        return wires
