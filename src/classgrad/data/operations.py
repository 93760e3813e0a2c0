"""The 13 image operations of AugMix (Hendrycks et al., ICLR 2020) in Pillow's 8-bit arithmetic."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

# (images, level, sign) -> images: uint8 (N, C, H, W) with C = 1 or 3, level (N,) in [0, 10] and
# sign (N,) of 1 and -1; an operation that needs no level or sign ignores it.
Operation = Callable[[Tensor, Tensor, Tensor], Tensor]
Size = tuple[int, int]
# (level, sign, (H, W)) -> float64 (N, 2, 3), from the centres of output pixels to input points.
Matrix = Callable[[Tensor, Tensor, Size], Tensor]


def _scaled(level: Tensor, maximum: float) -> Tensor:
    """Return the operation's parameter, level · maximum / 10, in float64."""
    return level.double() * maximum / 10


def _truncated(level: Tensor, maximum: float) -> Tensor:
    """Return the parameter truncated to an integer: for degrees, shifts, bits and thresholds.

    >>> _truncated(torch.tensor([0.5, 3.0]), 30)
    tensor([1., 9.], dtype=torch.float64)
    """
    return _scaled(level, maximum).trunc()


def _per_image(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1, 1)


def autocontrast(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Stretch each channel to the full range: 255 (x - low) / (high - low), truncated.

    A constant channel stays as it is.

    >>> image = torch.tensor([[[[40, 51], [44, 45]]]], dtype=torch.uint8)
    >>> autocontrast(image, torch.ones(1), torch.ones(1)).tolist()
    [[[[0, 254], [92, 115]]]]
    """
    low = images.amin((2, 3), keepdim=True).double()
    high = images.amax((2, 3), keepdim=True).double()
    # Pillow rounds slope and offset separately, in float64: 51 above becomes 254. A scalar divided
    # by a tensor would be a product with the reciprocal, which is off by 1 at 0.1 % of the pixels.
    slope = torch.full_like(high, 255) / (high - low)
    stretched = (images * slope - low * slope).clamp(0, 255)
    return torch.where(high > low, stretched, images.double()).to(torch.uint8)


def equalize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Flatten each channel's histogram: x -> (step // 2 + #{pixels below x}) // step.

    The step is (H W - #{pixels at the channel's maximum}) // 255; a channel whose step is 0, such
    as every channel of an image of fewer than 256 pixels, stays as it is.
    """
    values = images.flatten(0, 1).flatten(1).long()
    rows = len(values)
    offset = 256 * torch.arange(rows, device=images.device).unsqueeze(1)
    counts = torch.bincount((values + offset).flatten(), minlength=256 * rows).view(rows, 256)
    below = counts.cumsum(1) - counts
    step = below.gather(1, values.amax(1, keepdim=True)) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    return torch.where(step > 0, table.gather(1, values), values).to(torch.uint8).view_as(images)


def posterize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Keep the upper 4 - trunc(4 level / 10) bits of every value.

    >>> image = torch.tensor([[[[15, 16], [100, 255]]]], dtype=torch.uint8)
    >>> posterize(image, torch.tensor([1.0]), torch.ones(1)).flatten().tolist()
    [0, 16, 96, 240]
    """
    bits = 4 - _truncated(level, 4)
    return images & _per_image(256 - 2 ** (8 - bits)).to(torch.uint8)


def solarize(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Invert the values at or above the threshold 256 - trunc(256 level / 10)."""
    # int16, because the threshold 256 of the lowest levels does not fit into uint8.
    threshold = _per_image(256 - _truncated(level, 256)).to(torch.int16)
    return torch.where(images < threshold, images, 255 - images)


def _blend(base: Tensor, images: Tensor, level: Tensor) -> Tensor:
    """Return base + f (images - base) clipped to 8 bits, with f = 1.8 level / 10 + 0.1."""
    factor = _per_image(_scaled(level, 1.8) + 0.1).float()
    base = base.float()
    return (base + factor * (images - base)).clamp(0, 255).to(torch.uint8)


def _grey(images: Tensor) -> Tensor:
    """Return the luma 0.299 R + 0.587 G + 0.114 B as int32 (N, 1, H, W)."""
    if images.shape[1] == 1:
        return images.int()
    # The weights in 1/65536 and the rounding half are those of Pillow's conversion to "L".
    weights = torch.tensor([19595, 38470, 7471], device=images.device, dtype=torch.int32)
    luma = (weights.view(-1, 1, 1) * images).sum(1, keepdim=True, dtype=torch.int32)
    return (luma + 32768).bitwise_right_shift(16)


def color(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Blend with the image's own grey version; a grey image stays as it is."""
    return images.clone() if images.shape[1] == 1 else _blend(_grey(images), images, level)


def contrast(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Blend with the uniform image of the mean luma, rounded."""
    mean = _grey(images).double().mean((1, 2, 3), keepdim=True)
    return _blend((mean + 0.5).floor(), images, level)


def brightness(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Blend with black."""
    return _blend(images.new_zeros(()), images, level)


def sharpness(images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    """Blend with the 3 x 3 smoothing that weighs the centre 5 and its neighbours 1 (over 13).

    The outermost pixels, which lack neighbours, are their own smoothing.
    """
    values = images.int()
    across = values[..., :-2] + values[..., 1:-1] + values[..., 2:]
    box = across[..., :-2, :] + across[..., 1:-1, :] + across[..., 2:, :]
    smooth = values.clone()
    smooth[..., 1:-1, 1:-1] = (2 * (box + 4 * values[..., 1:-1, 1:-1]) + 13) // 26
    return _blend(smooth, images, level)


def _affine(level: Tensor, entries: dict[tuple[int, int], Tensor]) -> Tensor:
    """Return one 2 x 3 identity per level, with the given entries in place of its own."""
    matrix = torch.eye(2, 3, dtype=torch.float64, device=level.device).repeat(*level.shape, 1, 1)
    for (row, column), values in entries.items():
        matrix[..., row, column] = values
    return matrix


def _rotation(level: Tensor, sign: Tensor, size: Size) -> Tensor:
    """Rotate about the image's centre by sign · trunc(30 level / 10) degrees, anticlockwise."""
    angle = torch.deg2rad(sign * _truncated(level, 30))
    cosine, sine = angle.cos(), angle.sin()
    y, x = size[0] / 2, size[1] / 2
    across = {(0, 0): cosine, (0, 1): -sine, (0, 2): x - cosine * x + sine * y}
    down = {(1, 0): sine, (1, 1): cosine, (1, 2): y - sine * x - cosine * y}
    return _affine(level, across | down)


def _shear_x(level: Tensor, sign: Tensor, size: Size) -> Tensor:
    return _affine(level, {(0, 1): sign * _scaled(level, 0.3)})


def _shear_y(level: Tensor, sign: Tensor, size: Size) -> Tensor:
    return _affine(level, {(1, 0): sign * _scaled(level, 0.3)})


def _translation_x(level: Tensor, sign: Tensor, size: Size) -> Tensor:
    return _affine(level, {(0, 2): sign * _truncated(level, size[1] / 3)})


def _translation_y(level: Tensor, sign: Tensor, size: Size) -> Tensor:
    return _affine(level, {(1, 2): sign * _truncated(level, size[0] / 3)})


def warp(images: Tensor, matrix: Tensor) -> Tensor:
    """Sample each output pixel at the point that its 2 x 3 matrix maps its centre to.

    The value is interpolated between the four nearest pixel centres, repeating those of the edge,
    and truncated; a point outside the image gives 0.

    >>> image = torch.tensor([[[[10, 20], [30, 40]]]], dtype=torch.uint8)
    >>> warp(image, torch.tensor([[[1.0, 0.0, 1.0], [0.0, 1.0, 0.0]]])).tolist()
    [[[[20, 0], [40, 0]]]]
    """
    height, width = images.shape[-2:]
    # float64: in float32 a shift by whole pixels misses exact values, and truncation loses 1 level.
    rows = torch.arange(height, device=images.device, dtype=torch.float64).view(-1, 1) + 0.5
    columns = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5
    # The sampler counts from -1 to 1 along each axis, between the outer borders of the pixels.
    scale = torch.tensor([[2 / width], [2 / height]], device=images.device, dtype=torch.float64)
    by_column, by_row, shift = (matrix * scale).permute(2, 1, 0)[..., None, None]
    points = by_column * columns + (by_row * rows + (shift - 1))
    inside = (points >= -1) & (points < 1)
    values = F.grid_sample(
        images.double(), points.movedim(0, -1), padding_mode="border", align_corners=False
    )
    # The four weights sum to 1 within 1e-15 only: 1e-9 keeps a value of 200 from becoming 199.
    return values.add_(1e-9).to(torch.uint8).mul_((inside[0] & inside[1]).unsqueeze(1))


def _warped(matrix: Matrix, images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    return warp(images, matrix(level, sign, (height, width)))


MATRICES: dict[str, Matrix] = {
    "rotate": _rotation,
    "shear_x": _shear_x,
    "shear_y": _shear_y,
    "translate_x": _translation_x,
    "translate_y": _translation_y,
}

OPERATIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "solarize": solarize,
    **{name: partial(_warped, matrix) for name, matrix in MATRICES.items()},
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
}

ALL = tuple(OPERATIONS)
# The last four are also corruptions of ImageNet-C, so the paper leaves them out of training.
STANDARD = ALL[:9]
