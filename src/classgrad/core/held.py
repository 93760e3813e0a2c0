"""How much of the energy of inputs is held: what projections remove of it, by layer and class.

A layer can change its output for an input only through what a projection leaves of the input. So
the share of the energy ||x||² that is not left counts as held, whichever way gradients are
projected: by a basis, by one after another, with importances, or by a matrix that shrinks.
"""

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from classgrad.core.collect import Batches, Forward
from classgrad.core.layers import Site, tap
from classgrad.core.projector import Projection, autocast_off

# Numbers in the rows that are projected at once: 16 MB in float32.
MAX_NUMBERS = 2**22


@torch.no_grad()
def held_energy(
    forward: Forward,
    batches: Batches,
    sites: Mapping[str, Site],
    projections: Mapping[str, Projection],
    classes: int,
) -> dict[str, list[float | None]]:
    """Return, by site, the share held of each of so many classes; None for one without energy."""
    energy = {name: torch.zeros(2, classes, dtype=torch.float64) for name in sites}  # all, left
    with tap(sites.values()) as seen:
        for x, labels in batches:
            seen.clear()
            forward(x)
            for name, site in sites.items():
                for inputs in seen.get(site.source, []):
                    of_samples = energies(inputs, len(labels), site, projections.get(name))
                    energy[name].index_add_(1, labels.cpu(), of_samples)
    return {name: list(shares(*both)) for name, both in energy.items()}


def shares(whole: Tensor, left: Tensor) -> Iterable[float | None]:
    """Yield 1 - left / whole, or None where there is nothing, or more than a number can say."""
    for all_of_it, rest in zip(whole.tolist(), left.tolist(), strict=True):
        measurable = 0 < all_of_it < math.inf and math.isfinite(rest)
        yield min(max(1 - rest / all_of_it, 0.0), 1.0) if measurable else None


def energies(inputs: Tensor, samples: int, site: Site, projection: Projection | None) -> Tensor:
    """Return the energy of a layer's input for each sample, and what is left of it (2 x samples).

    The input has one or several parts for each sample.
    """
    parts = inputs.to(site.weight.dtype).unflatten(0, (samples, -1))
    size = max(1, site.rows(parts[0]).numel())
    result = []
    with autocast_off(inputs):
        for some in parts.split(max(1, MAX_NUMBERS // size)):
            rows = site.rows(some.flatten(0, 1))
            left = rows if projection is None else projection.project(rows)
            both = torch.stack([rows.square().sum(1), left.square().sum(1)])
            # On the CPU, because not every device has double precision.
            result.append(both.cpu().unflatten(1, (len(some), -1)).sum(2, dtype=torch.float64))
    return torch.cat(result, dim=1)
