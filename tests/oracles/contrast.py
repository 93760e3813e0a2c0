"""The contrastive loss of CGP by a double loop over its formula."""

import math

import numpy as np


def contrastive_by_loops(z: np.ndarray, copies: np.ndarray, temperature: float) -> float:
    """Mean over the images of -log(exp(x_i·x_j(i) / μ) / Σ_{k≠i} exp(x_i·x_k / μ)).

    x has the n images first, then their n copies, all of unit length; j(i) = i + n.
    """
    x = [vector / math.sqrt(sum(v * v for v in vector)) for vector in [*z, *copies]]
    count = len(z)
    total = 0.0
    for i in range(count):
        below = 0.0
        for k in range(2 * count):
            if k != i:
                below += math.exp(sum(a * b for a, b in zip(x[i], x[k], strict=True)) / temperature)
        above = math.exp(sum(a * b for a, b in zip(x[i], x[i + count], strict=True)) / temperature)
        total += -math.log(above / below)
    return total / count


def supervised_by_loops(
    z: np.ndarray, copies: np.ndarray, labels: np.ndarray, temperature: float
) -> float:
    """The same, but the mean over all x_j of the class of x_i, other than x_i itself."""
    x = [vector / math.sqrt(sum(v * v for v in vector)) for vector in [*z, *copies]]
    count = len(z)
    total = 0.0
    for i in range(count):
        scores = [math.exp(float(x[i] @ x[k]) / temperature) for k in range(2 * count)]
        below = sum(score for k, score in enumerate(scores) if k != i)
        alike = [k for k in range(2 * count) if k != i and labels[k % count] == labels[i]]
        total += sum(-math.log(scores[k] / below) for k in alike) / len(alike)
    return total / count
