"""Random images that are smooth, as photos are. Imports nothing but torch."""

import torch
from torch import Tensor
from torch.nn import functional


def smooth_images(count: int, seed: int = 0) -> Tensor:
    """Return uint8 (count, 3, 32, 32): coarse patches of colour with some grain.

    Not plain noise, as the work of AugMix depends on the histograms and edges of images.
    """
    rng = torch.Generator().manual_seed(seed)
    coarse = torch.rand(count, 3, 5, 5, generator=rng)
    grain = torch.rand(count, 3, 32, 32, generator=rng)
    images = functional.interpolate(coarse, size=(32, 32), mode="bilinear")
    return (0.9 * images + 0.1 * grain).mul(255).to(torch.uint8)
