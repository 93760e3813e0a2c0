"""ResNet-50 and ViT-B/16 without heads, from plain layers of their real sizes; random weights."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

EDGE = 224  # pixels


class Bottleneck(nn.Module):
    """A block of ResNet-50: 1x1 to `width` channels, 3x3, 1x1 to four times as many, and a sum."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *norm_after(nn.Conv2d(channels, width, 1, bias=False)),
            nn.ReLU(),
            *norm_after(nn.Conv2d(width, width, 3, stride, padding=1, bias=False)),
            nn.ReLU(),
            *norm_after(nn.Conv2d(width, 4 * width, 1, bias=False)),
        )
        self.shortcut = nn.Sequential()
        if channels != 4 * width:
            conv = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(*norm_after(conv))

    def forward(self, x: Tensor) -> Tensor:
        """Add the layers' output to the input, or to a projection of it."""
        return functional.relu(self.layers(x) + self.shortcut(x))


def norm_after(conv: nn.Conv2d) -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Return a convolution and its norm, whose statistics are those of the last batch."""
    return conv, nn.BatchNorm2d(conv.out_channels, momentum=1.0)


def resnet50() -> nn.Module:
    """ResNet-50: stages of 3, 4, 6 and 3 blocks, strides in the 3x3 convolutions."""
    layers: list[nn.Module] = [
        *norm_after(nn.Conv2d(3, 64, 7, 2, padding=3, bias=False)),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]
    channels = 64
    for width, blocks in [(64, 3), (128, 4), (256, 6), (512, 3)]:
        for number in range(blocks):
            stride = 2 if number == 0 and width > 64 else 1
            layers.append(Bottleneck(channels, width, stride))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())


class Attention(nn.Module):
    """Self-attention with queries, keys and values from one Linear layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (n, tokens, width) to as many."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v)
        result: Tensor = self.proj(mixed.transpose(1, 2).flatten(2))
        return result


class Block(nn.Module):
    """A block of a vision transformer: attention and two Linear layers, each after a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(width), Attention(width, heads))
        self.mlp = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map tokens (n, tokens, width) to as many."""
        x = x + self.attention(x)
        result: Tensor = x + self.mlp(x)
        return result


class VisionTransformer(nn.Module):
    """ViT-B/16: patches of 16 pixels, a class token, and twelve blocks."""

    def __init__(self, width: int = 768, blocks: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn(1, (EDGE // 16) ** 2 + 1, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Return the class token of each image."""
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], dim=1)
        result: Tensor = self.norm(self.blocks(tokens + self.positions))[:, 0]
        return result


MODELS: dict[str, Callable[[], nn.Module]] = {"ResNet-50": resnet50, "ViT-B/16": VisionTransformer}
