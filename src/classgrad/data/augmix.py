"""AugMix (Hendrycks et al., ICLR 2020) on batches of image tensors, with random crop and flip.

Its 13 operations are those of Pillow, in its 8-bit arithmetic.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from classgrad.errors import UserError, unknown

# (images, level, sign) -> images: uint8 (N, C, H, W) with C = 1 or 3, level (N,) in [0, 10] and
# sign (N,) of 1 and -1; an operation that needs no level or sign ignores it.
Operation = Callable[[Tensor, Tensor, Tensor], Tensor]
Size = tuple[int, int]


def _scaled(level: Tensor, maximum: float | Tensor) -> Tensor:
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
    if images.shape[2] * images.shape[3] < 256:
        return images
    values = images.flatten(0, 1).flatten(1).long()
    rows = len(values)
    offset = 256 * torch.arange(rows, device=images.device).unsqueeze(1)
    counts = torch.bincount((values + offset).flatten(), minlength=256 * rows).view(rows, 256)
    below = counts.cumsum(1) - counts
    step = below.gather(1, values.amax(1, keepdim=True)) // 255
    table = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    table = torch.where(step > 0, table, torch.arange(256, device=images.device))
    return table.to(torch.uint8).gather(1, values).view_as(images)


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


GEOMETRIC = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")


def _matrices(kind: Tensor, level: Tensor, sign: Tensor, size: Size) -> Tensor:
    """Return a matrix for each operation GEOMETRIC[kind]: float64 (..., 2, 3).

    A matrix maps the centres of output pixels to input points. Rotations are about the image's
    centre, anticlockwise and by whole degrees, translations by whole pixels.
    """
    height, width = size
    maxima = torch.tensor(
        [30, 0.3, 0.3, width / 3, height / 3], dtype=torch.float64, device=level.device
    )
    value = _scaled(level, maxima[kind])
    rotates, shears_x, shears_y, moves_x, moves_y = (kind == i for i in range(len(GEOMETRIC)))
    value = sign * torch.where(shears_x | shears_y, value, value.trunc())
    angle = torch.deg2rad(value * rotates)
    cosine, sine = angle.cos(), angle.sin()
    y, x = height / 2, width / 2
    entries = [
        cosine,
        torch.where(shears_x, value, -sine),
        torch.where(moves_x, value, x - cosine * x + sine * y),
        torch.where(shears_y, value, sine),
        cosine,
        torch.where(moves_y, value, y - sine * x - cosine * y),
    ]
    return torch.stack(entries, -1).view(*kind.shape, 2, 3)


@lru_cache(maxsize=16)
def _centres(size: int, device: torch.device) -> Tensor:
    """Return the centres of the pixels along an axis, where a pixel has size 1, in float64."""
    return torch.arange(size, device=device, dtype=torch.float64) + 0.5


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
    rows, columns = _centres(height, images.device).view(-1, 1), _centres(width, images.device)
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


def _warped(kind: int, images: Tensor, level: Tensor, sign: Tensor) -> Tensor:
    height, width = images.shape[-2:]
    kinds = torch.full_like(level, kind, dtype=torch.int64)
    return warp(images, _matrices(kinds, level, sign, (height, width)))


OPERATIONS: dict[str, Operation] = {
    "autocontrast": autocontrast,
    "equalize": equalize,
    "posterize": posterize,
    "solarize": solarize,
    **{name: partial(_warped, kind) for kind, name in enumerate(GEOMETRIC)},
    "color": color,
    "contrast": contrast,
    "brightness": brightness,
    "sharpness": sharpness,
}

ALL = tuple(OPERATIONS)
# The last four are also corruptions of ImageNet-C, so the paper leaves them out of training.
STANDARD = ALL[:9]


SETS = {"standard": STANDARD, "all": ALL}


def augmix(
    images: Tensor,
    *,
    generator: Generator,
    severity: float = 3,
    width: int = 3,
    depth: int | None = None,
    alpha: float = 1.0,
    operations: str | Sequence[str] = "standard",
    among: tuple[int, int] | None = None,
) -> Tensor:
    """Mix every image with `width` randomly altered copies: (1 - m) x + m Σᵢ wᵢ chainᵢ(x).

    `images` is float (N, C, H, W) in [0, 1], and so is the result. For each image on its own,
    w ~ Dirichlet(alpha, ..., alpha), m ~ Beta(alpha, alpha), and a chain applies `depth`
    operations (if None: 1, 2 or 3, drawn uniformly) at levels drawn uniformly from 0.1 to
    `severity`. `operations` is "standard" (9 of them), "all" (13) or a sequence of names of
    `OPERATIONS`. All randomness comes from `generator`. A chain works on x rounded to 8 bits. With
    `among=(start, count)` the images are a shard of `count` images, from index `start` on, and the
    result is the same as if all were given.

    >>> x = torch.rand(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    >>> augmix(x, generator=torch.Generator().manual_seed(1)).shape
    torch.Size([4, 3, 32, 32])
    """
    _check_augmix(images, severity, width, depth, alpha)
    names = _names(operations)
    start, count = (0, len(images)) if among is None else among
    if not count:
        return images.clone()
    steps = 3 if depth is None else depth
    draws = (steps, width * count)
    weights = dirichlet(alpha, (count, width), generator)
    share = dirichlet(alpha, (count, 2), generator)[:, :1]
    choice = _integers(len(names), draws, generator)
    level = 0.1 + (severity - 0.1) * _uniform(draws, generator)
    sign = 2 * _integers(2, draws, generator) - 1
    if depth is None:
        last = _integers(3, (1, width * count), generator)
        ended = torch.arange(steps, device=last.device).unsqueeze(1) > last
        choice = choice.masked_fill(ended, len(names))
    if among is not None:
        part = slice(start, start + len(images))
        weights, share = weights[part], share[part]
        choice, level, sign = (
            drawn.view(steps, width, count)[:, :, part].flatten(1)
            for drawn in (choice, level, sign)
        )

    # Operations compute in float64, which mps lacks.
    device = torch.device("cpu") if images.device.type == "mps" else images.device
    pixels = (images * 255).round().to(torch.uint8).to(device).repeat(width, 1, 1, 1)
    altered = _chains(pixels, names, choice.to(device), level.to(device), sign.to(device))
    # For each image its own coefficient and those of its chains, (1 + width, N, 1, 1, 1): sum 1.
    parts = torch.cat((1 - share, share * weights), dim=1).to(images).T[..., None, None, None]
    result = parts[0] * images
    for part, chain in zip(parts[1:], altered.to(images).view(width, *images.shape), strict=True):
        result.addcmul_(part, chain, value=1 / 255)
    return result.clamp_(0, 1)


def _chains(
    pixels: Tensor, names: Sequence[str], choice: Tensor, level: Tensor, sign: Tensor
) -> Tensor:
    """Apply operation `choice[s, j]` to row j of `pixels` for s = 0, 1, ...

    A choice of len(names) applies nothing. In each step the rows are sorted by their operation, and
    each operation is called once, on a slice; the geometric ones share a call, with the matrix that
    each row drew.
    """
    height, width = pixels.shape[-2:]
    nothing, geometric = len(names), len(names) + 1
    kind_of = [GEOMETRIC.index(name) if name in GEOMETRIC else -1 for name in names]
    kind = torch.tensor([*kind_of, -1], device=choice.device)[choice]
    matrices = _matrices(kind, level, sign, (height, width))
    kinds = choice.masked_fill(kind >= 0, geometric)
    order = kinds.argsort(1)
    level, sign = level.gather(1, order), sign.gather(1, order)
    counts = F.one_hot(kinds, geometric + 1).sum(1).tolist()
    places = order.argsort(1)  # where each row is after sorting
    for step, rows in enumerate(order):
        # The rows are still in the order of the step before.
        now = rows if step == 0 else places[step - 1][rows]
        groups = list(pixels.index_select(0, now).split(counts[step]))
        levels, signs = level[step].split(counts[step]), sign[step].split(counts[step])
        for index, group in enumerate(groups):
            if not counts[step][index] or index == nothing:
                continue
            if index == geometric:
                groups[index] = warp(group, matrices[step, rows[-counts[step][index] :]])
            else:
                operation = OPERATIONS[names[index]]
                groups[index] = operation(group, levels[index], signs[index])
        pixels = torch.cat(groups)
    return pixels.index_select(0, places[-1])


def dirichlet(alpha: float, shape: tuple[int, int], generator: Generator) -> Tensor:
    """Draw rows of float64 weights from Dirichlet(alpha, ..., alpha): each row sums to 1.

    A row is g / Σ g for g ~ Gamma(alpha), by the rejection of Marsaglia and Tsang (2000): with
    d = alpha + 2/3, z normal and v = (1 + z / √(9 d))³, d v ~ Gamma(alpha + 1) once
    log u < z²/2 + d - d v + d log v for u uniform; times U^(1/alpha) it is Gamma(alpha).

    >>> weights = dirichlet(0.5, (2, 3), torch.Generator().manual_seed(0))
    >>> bool(((weights.sum(1) - 1).abs() < 1e-12).all())
    True
    """
    d = alpha + 2 / 3
    device = generator.device
    log_gamma = torch.zeros(shape, device=device, dtype=torch.float64)
    pending = torch.ones(shape, device=device, dtype=torch.bool)
    while pending.any():
        z = torch.randn(shape, generator=generator, device=device, dtype=torch.float64)
        # The logarithm of a v below 0 is NaN, which no comparison accepts: that z is drawn again.
        log_v = 3 * (z / math.sqrt(9 * d)).log1p()
        bound = z.square() / 2 + d * (log_v - log_v.expm1())
        accepted = pending & (_uniform(shape, generator).log() < bound)
        log_gamma = torch.where(accepted, log_v, log_gamma)
        pending &= ~accepted
    # In logarithms, because U^(1/alpha) reaches 0 in float64 from alpha = 0.05 on; 1 - U, which is
    # never 0, and the bound keep them finite for every alpha.
    boost = (_uniform(shape, generator).neg().log1p() / alpha).clamp(min=-1e300)
    return (log_gamma + boost).softmax(1)


def crop(
    images: Tensor,
    *,
    padding: int = 4,
    generator: Generator,
    among: tuple[int, int] | None = None,
) -> Tensor:
    """Pad with `padding` zeros on all sides and crop each image to a random window of its old size.

    `images` is float (N, C, H, W); the corner of a window is drawn uniformly from (2 padding + 1)²
    positions. `among` is as in `augmix`.

    >>> x = torch.ones(1, 1, 4, 4)
    >>> crop(x, padding=0, generator=torch.Generator()).equal(x)
    True
    """
    _check_images(images)
    if padding < 0:
        raise UserError(f"padding is {padding}: give 0 or more pixels")
    channels, height, width = images.shape[1:]
    start, count = (0, len(images)) if among is None else among
    corner = _integers(2 * padding + 1, (2, count, 1, 1, 1), generator).to(images.device)
    corner = corner[:, start : start + len(images)]
    rows = corner[0] + torch.arange(height, device=images.device).view(-1, 1)
    columns = corner[1] + torch.arange(width, device=images.device)
    padded = F.pad(images, (padding,) * 4)
    strips = padded.gather(2, rows.expand(-1, channels, -1, padded.shape[3]))
    return strips.gather(3, columns.expand(-1, channels, height, -1))


def flip(images: Tensor, *, generator: Generator, among: tuple[int, int] | None = None) -> Tensor:
    """Flip each image of a float (N, C, H, W) left to right with probability 1/2.

    `among` is as in `augmix`.

    >>> x = torch.tensor([[[[0.0, 1.0]]]])
    >>> flip(x, generator=torch.Generator().manual_seed(0)).flatten().tolist() in ([0, 1], [1, 0])
    True
    """
    _check_images(images)
    start, count = (0, len(images)) if among is None else among
    heads = _integers(2, (count, 1, 1, 1), generator).to(images.device)
    return torch.where(heads[start : start + len(images)] == 1, images.flip(-1), images)


def _uniform(shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw float64 numbers from [0, 1), on the generator's device."""
    return torch.rand(shape, generator=generator, device=generator.device, dtype=torch.float64)


def _integers(high: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Draw integers from 0, ..., high - 1, on the generator's device."""
    return torch.randint(high, shape, generator=generator, device=generator.device)


def _names(operations: str | Sequence[str]) -> Sequence[str]:
    """Return the names of operations, or refuse unknown ones."""
    if isinstance(operations, str):
        if operations not in SETS:
            raise unknown("operation set", operations, SETS)
        return SETS[operations]
    for name in operations:
        if name not in OPERATIONS:
            raise unknown("operation", name, OPERATIONS)
    if not operations:
        raise UserError(f"operations is empty: name one or more of {', '.join(OPERATIONS)}")
    return operations


def _check_images(images: Tensor) -> None:
    if images.ndim != 4:
        raise UserError(
            f"images of shape {tuple(images.shape)} are not (N, C, H, W): reshape them first"
        )
    if not images.is_floating_point():
        raise UserError(f"images are {images.dtype}: convert them to float in [0, 1] first")


def refuse_range(images: Tensor) -> None:
    """Refuse images with values that are not in [0, 1]."""
    low, high = (float(bound) for bound in images.aminmax()) if images.numel() else (0.0, 1.0)
    if not (low >= 0 and high <= 1):
        raise UserError(
            f"images range from {low:g} to {high:g}: scale them to [0, 1], and normalise afterwards"
        )


def _check_augmix(
    images: Tensor, severity: float, width: int, depth: int | None, alpha: float
) -> None:
    _check_images(images)
    shape = tuple(images.shape)
    if shape[1] not in (1, 3):
        raise UserError(f"images of shape {shape} have {shape[1]} channels: give 1 or 3")
    if min(shape[2:]) < 2:
        raise UserError(f"images of shape {shape} are too small: give 2 x 2 pixels or more")
    refuse_range(images)
    if not 0 < severity <= 10:
        raise UserError(f"severity is {severity}: give a number above 0 and at most 10")
    if width < 1:
        raise UserError(f"width is {width}: give 1 chain or more")
    if depth is not None and depth < 1:
        raise UserError(f"depth is {depth}: give 1 operation or more, or None to draw 1, 2 or 3")
    if not 0 < alpha < math.inf:
        raise UserError(f"alpha is {alpha}: give a finite number above 0")
