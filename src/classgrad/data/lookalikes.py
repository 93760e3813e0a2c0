"""Pictures that look alike: shots taken in a row, the same photo saved again.

A picture is seen as a thumbnail of 10 x 10 pixels, less the mean of each channel. Two look alike if
one is the other with another brightness and contrast, moved a little. To first order that is a
combination of the thumbnail and its two derivatives, x and y (the tangent distance of P. Simard et
al., *Efficient pattern recognition using a new transformation distance*, NIPS 1992). So with an
orthonormal basis B of these three, and the other thumbnail u of length one, ‖Bᵀ u‖ tells how much
of u they explain; the mean of both directions has to be above `ALIKE`.

Pictures of a class that look alike are of one scene, and so are those that are linked by others.
What is almost without contrast, or smaller than a thumbnail, looks like nothing else.

Where things are always photographed from the same place, or are drawn, everything looks alike. Then
much does across classes, too, and only what is more alike than that is taken for one scene.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.tasks import Split

# Of 3,000 photos of CIFAR-100, each taken twice with the camera moved by up to 3 % of the edge and
# turned by 1 degree, 96 % were found, with 16 of 4.5 million pairs of different photos; a 64-bit
# difference hash finds 74 % with 612. The other levels are for pictures that are alike in any case.
ALIKE = (0.95, 0.975, 0.99)
# Pictures that may look like one of another class at a level: a share of all, or so many.
ACROSS, FEW = 0.1, 10
EDGE = 10
NEAR = 0.8  # correlation of thumbnails below which pairs are not looked at
CONTRAST = 1 / 255  # standard deviation, of the range of values, that shows anything
# Memory is bounded by how many numbers, pairs and pixels are held at a time.
BLOCK, PAIRS, PIXELS = 2**23, 2048, 2**24

Pair = tuple[int, int]


@dataclass(frozen=True)
class Scenes:
    """Which pictures (n) show the same scene."""

    numbers: Tensor  # of the scene of each picture: the index of its first one
    # Pictures of different classes that look alike, the most alike first. Each such picture is in
    # some pair, but there can be further pairs.
    across: tuple[Pair, ...] = ()

    @property
    def pictures_across(self) -> int:
        """How many pictures look like one of another class."""
        return len({picture for pair in self.across for picture in pair})


def find_scenes(*parts: Split) -> Scenes:
    """Return the scenes of all pictures of some data, counted through.

    Data other than pictures have as many scenes as samples.

    >>> ramp = torch.arange(12.0).expand(3, 12, 12) / 12
    >>> pictures = torch.stack([ramp, 0.5 * ramp, ramp.mT])
    >>> find_scenes(Split(pictures, torch.zeros(3, dtype=torch.int64))).numbers.tolist()
    [0, 0, 2]
    """
    labels = torch.cat([part.labels.cpu() for part in parts])
    alone = Scenes(torch.arange(len(labels)))
    shape = parts[0].images.shape[1:]
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < EDGE:
        return alone
    bases = torch.cat([_bases(_thumbnails(part.images)) for part in parts if len(part)])
    for alike in ALIKE:
        scenes = _scenes(bases, labels, alike)
        if scenes.pictures_across <= max(ACROSS * len(labels), FEW):
            return scenes
    return Scenes(alone.numbers, scenes.across)


def _thumbnails(images: Tensor) -> Tensor:
    """Return thumbnails (n, channels, EDGE, EDGE) less their means; zeros for those that are flat.

    Values count from 0 to 1 of the range.
    """
    scale = 255 if images.dtype == torch.uint8 else 1
    size = max(PIXELS // images[0].numel(), 1)
    parts = [
        functional.adaptive_avg_pool2d(part.cpu().float() / scale, EDGE)
        for part in images.split(size)
    ]
    thumbnails = torch.cat(parts)
    thumbnails = thumbnails - thumbnails.mean((2, 3), keepdim=True)
    deviations = thumbnails.square().mean((1, 2, 3)).sqrt()
    return thumbnails * (deviations > CONTRAST)[:, None, None, None]


def _bases(thumbnails: Tensor) -> Tensor:
    """Return the basis of each thumbnail and its derivatives (n, 3, numbers), itself first."""
    padded = functional.pad(thumbnails, (1, 1, 1, 1), mode="replicate")
    along_x = padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]
    along_y = padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]
    columns: list[Tensor] = []
    for part in (thumbnails, along_x, along_y):
        column = functional.normalize((part - part.mean((2, 3), keepdim=True)).flatten(1), dim=1)
        for _ in range(2):  # once is not orthogonal to rounding, where derivatives are similar
            for known in columns:
                column = column - (column * known).sum(1, keepdim=True) * known
        columns.append(functional.normalize(column, dim=1))
    return torch.stack(columns, 1)


def _scenes(bases: Tensor, labels: Tensor, alike: float) -> Scenes:
    """Return scenes of pictures that are alike to a degree.

    Pairs that could tell nothing new are passed over, or many pictures of one scene would take as
    long as all their pairs.
    """
    plain, count = bases[:, 0].contiguous(), len(bases)
    first_of = torch.arange(count)  # picture of the scene of each
    across = torch.zeros(count, dtype=torch.bool)
    pairs: list[tuple[float, Pair]] = []
    rows = max(BLOCK // count, 1)
    for start in range(0, count, rows):
        near = (plain[start : start + rows] @ plain[start:].T > NEAR).triu(1).nonzero() + start
        for chunk in near.split(PAIRS) if len(near) else []:
            one, two = chunk.T
            same = labels[one] == labels[two]
            open_ = torch.where(same, first_of[one] != first_of[two], ~(across[one] & across[two]))
            one, two, same = one[open_], two[open_], same[open_]
            likeness = (_explained(bases[one], plain[two]) + _explained(bases[two], plain[one])) / 2
            chosen = likeness > alike
            one, two, same, likeness = one[chosen], two[chosen], same[chosen], likeness[chosen]
            first_of = _join(first_of, one[same], two[same])
            across[one[~same]] = across[two[~same]] = True
            found = torch.stack([one, two], 1)[~same].tolist()
            values = likeness[~same].tolist()
            pairs += [(-value, (a, b)) for value, (a, b) in zip(values, found, strict=True)]
    return Scenes(first_of, tuple(pair for _, pair in sorted(pairs)))


def _explained(bases: Tensor, others: Tensor) -> Tensor:
    """Return ‖Bᵀ u‖ for each pair (n) of a basis (n, 3, numbers) and a thumbnail (n, numbers)."""
    lengths: Tensor = torch.bmm(bases, others[:, :, None]).flatten(1).norm(dim=1)
    return lengths


def _join(first_of: Tensor, one: Tensor, two: Tensor) -> Tensor:
    """Return the first picture of each scene after the scenes of some pairs became one."""
    while True:
        a, b = first_of[one], first_of[two]
        if torch.equal(a, b):
            return first_of
        # Each scene joins the one with the lowest number that it is paired with, and what is in it
        # follows, along chains of scenes.
        first_of = first_of.scatter_reduce(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
        while not torch.equal(first_of, first_of[first_of]):
            first_of = first_of[first_of]
