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
