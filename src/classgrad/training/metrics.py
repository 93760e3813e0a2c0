"""Metrics of a run, as pure functions of its accuracy matrix.

A[i, j] is the accuracy, in per cent, on the test set of task j after learning task i; NaN above the
diagonal and wherever nothing was measured. T is the number of tasks.
"""

import math
from collections.abc import Sequence

from torch import Tensor


def average_accuracy(matrix: Tensor) -> float | None:
    """ACC = 1/T Σ_j A[T-1, j]; None if the last row was not measured.

    >>> import torch
    >>> average_accuracy(torch.tensor([[90.0, math.nan], [80.0, 96.0]]))
    88.0
    """
    return _number(matrix[-1].mean())


def backward_transfer(matrix: Tensor) -> float | None:
    """BWT = 1/(T-1) Σ_{j<T-1} (A[T-1, j] - A[j, j]); None for one task or an unmeasured diagonal.

    >>> import torch
    >>> backward_transfer(torch.tensor([[90.0, math.nan], [80.0, 96.0]]))
    -10.0
    """
    if len(matrix) < 2:
        return None
    return _number((matrix[-1] - matrix.diagonal())[:-1].mean())


def forgetting(matrix: Tensor) -> float | None:
    """F = 1/(T-1) Σ_{j<T-1} (max_{i<T-1} A[i, j] - A[T-1, j]) (Chaudhry et al. 2018).

    >>> import torch
    >>> forgetting(torch.tensor([[90.0, math.nan], [80.0, 96.0]]))
    10.0
    """
    if len(matrix) < 2:
        return None
    earlier = matrix[:-1, :-1]
    if earlier.diagonal().isnan().any():
        return None
    best = earlier.nan_to_num(-math.inf).max(0).values
    return _number((best - matrix[-1, :-1]).mean())


def forward_transfer(before: Sequence[float], untrained: Sequence[float]) -> float | None:
    """FWT = 1/(T-1) Σ_{j>0} (A[j-1, j] - b_j) (GEM, 2017).

    `before` holds A[j-1, j] for j = 1..T-1 and `untrained` b_j, the accuracy of the network before
    any training. Both are defined only when the tasks share one head; None otherwise.

    >>> forward_transfer([30.0, 40.0], [10.0, 10.0])
    25.0
    """
    if not before or len(before) != len(untrained):
        return None
    return sum(a - b for a, b in zip(before, untrained, strict=True)) / len(before)


def _number(value: Tensor) -> float | None:
    return None if value.isnan() else float(value)
