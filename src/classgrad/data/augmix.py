"""AugMix (Hendrycks et al., ICLR 2020) on batches of image tensors, with random crop and flip."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from classgrad.data.operations import ALL, MATRICES, OPERATIONS, STANDARD, warp
from classgrad.errors import UserError, unknown

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

    A choice of len(names) applies nothing. Each operation is called once per step, on the rows that
    drew it; the geometric ones share a call, with the matrix that each row drew.
    """
    height, width = pixels.shape[-2:]
    geometric = len(names) + 1
    kinds, matrices = choice, level.new_zeros(*level.shape, 2, 3)
    for index, name in enumerate(names):
        if name in MATRICES:
            drawn = choice == index
            kinds = kinds.masked_fill(drawn, geometric)
            matrix = MATRICES[name](level, sign, (height, width))
            matrices = torch.where(drawn[..., None, None], matrix, matrices)
    for step, kind in enumerate(kinds):
        groups, results = [], []
        for index in kind.unique().tolist():
            rows = (kind == index).nonzero().squeeze(1)
            group = pixels.index_select(0, rows)
            if index == geometric:
                group = warp(group, matrices[step, rows])
            elif index < len(names):
                group = OPERATIONS[names[index]](group, level[step, rows], sign[step, rows])
            groups.append(rows)
            results.append(group)
        # One gather puts the groups back in order: 0.05 ms, where writing each in place took 0.6.
        pixels = torch.cat(results).index_select(0, torch.cat(groups).argsort())
    return pixels


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


def crop(images: Tensor, *, padding: int = 4, generator: Generator) -> Tensor:
    """Pad with `padding` zeros on all sides and crop each image to a random window of its old size.

    `images` is float (N, C, H, W); the corner of a window is drawn uniformly from (2 padding + 1)²
    positions.

    >>> x = torch.ones(1, 1, 4, 4)
    >>> crop(x, padding=0, generator=torch.Generator()).equal(x)
    True
    """
    _check_images(images)
    if padding < 0:
        raise UserError(f"padding is {padding}: give 0 or more pixels")
    count, channels, height, width = images.shape
    corner = _integers(2 * padding + 1, (2, count, 1, 1, 1), generator).to(images.device)
    rows = corner[0] + torch.arange(height, device=images.device).view(-1, 1)
    columns = corner[1] + torch.arange(width, device=images.device)
    padded = F.pad(images, (padding,) * 4)
    strips = padded.gather(2, rows.expand(-1, channels, -1, padded.shape[3]))
    return strips.gather(3, columns.expand(-1, channels, height, -1))


def flip(images: Tensor, *, generator: Generator) -> Tensor:
    """Flip each image of a float (N, C, H, W) left to right with probability 1/2.

    >>> x = torch.tensor([[[[0.0, 1.0]]]])
    >>> flip(x, generator=torch.Generator().manual_seed(0)).flatten().tolist() in ([0, 1], [1, 0])
    True
    """
    _check_images(images)
    heads = _integers(2, (len(images), 1, 1, 1), generator).to(images.device)
    return torch.where(heads == 1, images.flip(-1), images)


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
