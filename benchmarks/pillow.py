"""AugMix (Hendrycks et al., ICLR 2020) as published: image by image, with Pillow."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from classgrad.data.augmix import STANDARD

# (image, level 0 to 10, sign 1 or -1) -> image
Operation = Callable[[Image.Image, float, int], Image.Image]


def affine(image: Image.Image, *matrix: float) -> Image.Image:
    """Transform the image by a matrix from output to input points, given row by row."""
    return image.transform(
        image.size, Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR
    )


OPERATIONS: dict[str, Operation] = {
    "autocontrast": lambda image, level, sign: ImageOps.autocontrast(image),
    "equalize": lambda image, level, sign: ImageOps.equalize(image),
    "posterize": lambda image, level, sign: ImageOps.posterize(image, 4 - int(level * 4 / 10)),
    "solarize": lambda image, level, sign: ImageOps.solarize(image, 256 - int(level * 256 / 10)),
    "rotate": lambda image, level, sign: image.rotate(
        sign * int(level * 30 / 10), resample=Image.Resampling.BILINEAR
    ),
    "shear_x": lambda image, level, sign: affine(image, 1, sign * level * 0.3 / 10, 0, 0, 1, 0),
    "shear_y": lambda image, level, sign: affine(image, 1, 0, 0, sign * level * 0.3 / 10, 1, 0),
    "translate_x": lambda image, level, sign: affine(
        image, 1, 0, sign * int(level * (image.width / 3) / 10), 0, 1, 0
    ),
    "translate_y": lambda image, level, sign: affine(
        image, 1, 0, 0, 0, 1, sign * int(level * (image.height / 3) / 10)
    ),
    "color": lambda image, level, sign: ImageEnhance.Color(image).enhance(level * 1.8 / 10 + 0.1),
    "contrast": lambda image, level, sign: ImageEnhance.Contrast(image).enhance(
        level * 1.8 / 10 + 0.1
    ),
    "brightness": lambda image, level, sign: ImageEnhance.Brightness(image).enhance(
        level * 1.8 / 10 + 0.1
    ),
    "sharpness": lambda image, level, sign: ImageEnhance.Sharpness(image).enhance(
        level * 1.8 / 10 + 0.1
    ),
}


def augmix(
    images: Sequence[Image.Image],
    rng: np.random.Generator,
    *,
    severity: float = 3,
    width: int = 3,
    alpha: float = 1.0,
    operations: Sequence[str] = STANDARD,
) -> Tensor:
    """Mix every image with altered copies: (1 - m) x + m Σᵢ wᵢ chainᵢ(x), floats in [0, 1]."""
    return torch.stack([mix(image, rng, severity, width, alpha, operations) for image in images])


def mix(
    image: Image.Image,
    rng: np.random.Generator,
    severity: float,
    width: int,
    alpha: float,
    operations: Sequence[str],
) -> Tensor:
    """Return one image (channels, height, width) mixed with `width` chains of operations."""
    weights = rng.dirichlet([alpha] * width).astype(np.float32)
    share = np.float32(rng.beta(alpha, alpha))
    plain = unit_floats(image)
    chains = np.zeros_like(plain)
    for weight in weights:
        altered = image.copy()
        for _ in range(rng.integers(1, 4)):
            operation = OPERATIONS[operations[int(rng.integers(len(operations)))]]
            level, sign = rng.uniform(0.1, severity), 1 if rng.random() < 0.5 else -1
            altered = operation(altered, level, sign)
        chains += weight * unit_floats(altered)
    return torch.from_numpy(((1 - share) * plain + share * chains).transpose(2, 0, 1))


def unit_floats(image: Image.Image) -> np.ndarray:
    """Return an image of three channels as floats in [0, 1], channels last."""
    return np.asarray(image, dtype=np.float32) / 255


def to_pillow(image: Tensor) -> Image.Image:
    """Return an 8-bit tensor (channels, height, width) as a Pillow image."""
    array = image.numpy().transpose(1, 2, 0)
    return Image.fromarray(array.squeeze(-1) if array.shape[-1] == 1 else array.copy())
