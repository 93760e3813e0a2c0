"""Slow references: the published algorithms in their obvious form."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

Array = NDArray[np.float64]


def without_groups(
    gradients: Mapping[str, Tensor], groups: Mapping[str, Sequence[Tensor]]
) -> dict[str, Tensor]:
    """Project gradients (o x d) out of the subspace of one group of classes after another.

    `groups` has the dense d x d matrices P = S Sᵀ of each layer, made once: g <- g - g P. A list of
    one matrix is the projection of GPM.
    """
    projected = {}
    for name, gradient in gradients.items():
        for dense in groups[name]:
            gradient = gradient - gradient @ dense
        projected[name] = gradient
    return projected


def columns(layer: nn.Module, inputs: Array) -> Array:
    """Return the representation matrix C (d x n) of a layer: a column for every input it sees.

    For a convolution without padding the columns are patches, extracted one by one.
    """
    if not isinstance(layer, nn.Conv2d):
        return inputs.T
    height, width = layer.kernel_size
    down, across = layer.stride
    count, channels, rows, cells = inputs.shape
    tops = range(0, rows - height + 1, down)
    lefts = range(0, cells - width + 1, across)
    matrix = np.zeros((channels * height * width, count * len(tops) * len(lefts)))
    column = 0
    for image in inputs:
        for top in tops:
            for left in lefts:
                patch = image[:, top : top + height, left : left + width]
                matrix[:, column] = patch.reshape(-1)
                column += 1
    return matrix


def extended(basis: Array, matrix: Array, energy: float) -> Array:
    """Extend the basis (d x r) of a group by a class similar to one of it, as CGP's script does.

    As many directions as the basis lacks for the share of the class's energy are selected by
    energy, from those of the basis and those outside it; the latter are added.
    """
    along = basis.T @ matrix
    delta = np.sum(along**2, axis=1)
    left, sigma, _ = np.linalg.svd(matrix - basis @ along, full_matrices=False)
    outside = sigma**2
    missing = reach(outside, energy * np.sum(matrix**2) - delta.sum())
    first = np.argsort(-np.concatenate([delta, outside]), kind="stable")[:missing]
    return np.hstack([basis, left[:, : int(np.sum(first >= len(delta)))]])


def refined(basis: Array, matrix: Array, energy: float) -> Array:
    """Extend a basis (d x r) by a class similar to an earlier one: Algorithm 1 of CGP, by two SVDs.

    As many directions as the class would need alone are selected by energy, from those of the basis
    and those outside it, but no more new ones than are needed for the share of its energy.
    """
    total = np.sum(matrix**2)
    alone = np.linalg.svd(matrix, full_matrices=False)[1] ** 2
    along = basis.T @ matrix
    delta = np.sum(along**2, axis=1)
    left, sigma, _ = np.linalg.svd(matrix - basis @ along, full_matrices=False)
    outside = sigma**2
    listed = np.concatenate([delta, outside])
    first = np.argsort(-listed, kind="stable")[: reach(alone, energy * total)]
    count = int(np.sum(first >= len(delta)))
    return np.hstack([basis, left[:, : min(count, reach(outside, energy * total - delta.sum()))]])


def reach(energies: Array, target: float) -> int:
    """Return how many energies, from the first on, are needed to reach a target."""
    held, count = 0.0, 0
    while held < target and count < len(energies):
        held += energies[count]
        count += 1
    return count
