"""Local response normalisation against PyTorch's own."""

import pytest
import torch
from torch import nn

from classgrad.networks.lenet5 import LocalResponseNorm


@pytest.mark.parametrize("shape", [(2, 1, 3, 3), (3, 5, 4, 2), (2, 20, 3, 3), (4, 7, 6), (4, 7)])
@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_equals_pytorch_and_so_does_its_gradient(shape, size):
    rng = torch.Generator().manual_seed(size)
    x = torch.randn(shape, generator=rng, dtype=torch.float64) * 3
    weights = torch.randn(shape, generator=rng, dtype=torch.float64)
    results = []
    for layer in (
        nn.LocalResponseNorm(size, alpha=0.3, beta=0.75, k=2.0),
        LocalResponseNorm(size, alpha=0.3, k=2.0),
    ):
        own = x.clone().requires_grad_()
        # PyTorch takes three dimensions or more.
        seen = own[..., None] if own.dim() == 2 else own
        out = layer(seen)
        (out.reshape(shape) * weights).sum().backward()
        results.append((out.detach().reshape(shape), own.grad))
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


def test_keeps_how_images_lie_in_memory():
    x = torch.ones(2, 4, 3, 3).to(memory_format=torch.channels_last)
    assert LocalResponseNorm(4, alpha=0.1)(x).is_contiguous(memory_format=torch.channels_last)
