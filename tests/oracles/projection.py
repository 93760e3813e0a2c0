"""Projection of a gradient by its definition, and the leak of an update into a basis."""

import numpy as np
import torch
from torch import Tensor


def without(gradient: Tensor, basis: Tensor) -> Tensor:
    """g - g S Sᵀ in float64, entry by entry of the sum over basis vectors."""
    g, s = gradient.detach().double().numpy(), basis.double().numpy()
    result = g.copy()
    for row in range(len(g)):
        for column in range(s.shape[1]):
            result[row] -= np.dot(g[row], s[:, column]) * s[:, column]
    return torch.from_numpy(result)


def leak(change: Tensor, basis: Tensor) -> float:
    """||ΔW S|| / ||ΔW||, 0 if nothing moved."""
    change = change.detach().double()
    return float((change @ basis.double()).norm() / change.norm()) if change.any() else 0.0


def random_basis(dimension: int, rank: int, seed: int = 0) -> Tensor:
    """Orthonormal d x r, float64."""
    rng = np.random.default_rng(seed)
    return torch.from_numpy(np.linalg.qr(rng.standard_normal((dimension, rank)))[0])
