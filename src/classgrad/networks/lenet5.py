"""LeNet-5, the network of APD, GPM and CGP for CIFAR-100 Superclass: 2,986,500 weights, no bias.

Local response normalisation (Krizhevsky et al., 2012) is y_c = x_c / s_c^¾ with
s_c = k + α/n Σ x_j² over the n channels j around c. Here the sum over channels is a product of the
squares with a band matrix, for all positions at once; that is five times as fast as
`nn.LocalResponseNorm`, which took most of a training step of LeNet-5.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from classgrad.networks.trunk import NetworkSettings, Trunk, output_size


class LocalResponseNorm(nn.Module):
    """`nn.LocalResponseNorm` with the exponent ¾."""

    def __init__(self, size: int, alpha: float, k: float = 1.0) -> None:
        super().__init__()
        self.size, self.alpha, self.k = size, alpha, k

    def forward(self, x: Tensor) -> Tensor:
        """Divide each channel by s^¾ of the channels around it."""
        out: Tensor = _Normalise.apply(x, self.band(x), self.k)
        return out

    def band(self, x: Tensor) -> Tensor:
        """Return the matrix that maps the squares of all channels to the sums: α/n near c."""
        channel = torch.arange(x.shape[1], device=x.device)
        offset = channel[None, :] - channel[:, None]  # of channel c (column) from j (row)
        near = (offset <= self.size // 2) & (offset >= -((self.size - 1) // 2))
        return near.to(x.dtype) * (self.alpha / self.size)

    def extra_repr(self) -> str:
        """Return the settings for `repr`."""
        return f"size={self.size}, alpha={self.alpha:g}, k={self.k:g}"


class _Normalise(torch.autograd.Function):
    """With p = s^-¾:  y = x p,  and  ∂L/∂x = g p - 3/2 x ((g y / s) bandᵀ)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, band: Tensor, k: float) -> Tensor:
        s = mix_channels(x * x, band).add_(k)
        p = s.rsqrt()
        p.mul_(p.sqrt())
        y = x * p
        ctx.save_for_backward(x, s, p, y, band)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        x, s, p, y, band = ctx.saved_tensors
        around = mix_channels((g * y).div_(s), band.T)
        return (g * p).addcmul_(x, around, value=-1.5), None, None


def mix_channels(x: Tensor, matrix: Tensor) -> Tensor:
    """Multiply the channels at every position by a matrix (channels x channels)."""
    return (x.movedim(1, -1) @ matrix).movedim(-1, 1)


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
