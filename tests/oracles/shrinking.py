"""OWM by its definition: rows found by loops, one rank-1 update after another."""

import numpy as np
import torch
from torch import Tensor, nn


def learnt(p: np.ndarray, rows: np.ndarray, alpha: float) -> np.ndarray:
    """P <- P - k kᵀ / (α + r k) for each row r in turn, with k = P rᵀ."""
    for r in rows:
        k = p @ r
        p = p - np.outer(k, k) / (alpha + r @ k)
    return p


def closed(rows: np.ndarray, alphas: np.ndarray) -> np.ndarray:
    """(I + Σ rᵀ r / α)⁻¹."""
    total = np.eye(rows.shape[1])
    for r, alpha in zip(rows, alphas, strict=True):
        total += np.outer(r, r) / alpha
    return np.linalg.inv(total)


def rows_of(layer: nn.Module, x: Tensor, every: int) -> np.ndarray:
    """Rows of the mean over all samples of a layer's input (n, ...), by loops over positions."""
    mean = x.detach().double().mean(0).numpy()
    if isinstance(layer, nn.Linear):
        return mean[None]
    (high, wide), (down, across) = layer.kernel_size, layer.stride
    mean = np.pad(mean, [(0, 0)] + [(edge, edge) for edge in layer.padding])
    result = []
    for top in range(0, mean.shape[1] - high + 1, down * every):
        for left in range(0, mean.shape[2] - wide + 1, across * every):
            result.append(mean[:, top : top + high, left : left + wide].reshape(-1))
    return np.array(result)


def layer_inputs(trunk: nn.Sequential, x: Tensor) -> dict[str, Tensor]:
    """What each Linear and convolution layer of a stack is given."""
    result = {}
    with torch.no_grad():
        for name, layer in trunk.named_children():
            if isinstance(layer, nn.Linear | nn.Conv2d):
                result[name] = x
            x = layer(x)
    return result
