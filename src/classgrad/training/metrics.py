"""Metrics of a run, as pure functions of its accuracy matrix.

A[i, j] is the accuracy, in per cent, on the test set of task j after learning task i; NaN above the
diagonal and wherever nothing was measured. T is the number of tasks.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def average_accuracy(matrix: Tensor) -> float | None:
    """ACC = 1/T Σ_j A[T-1, j]; None if the last row was not measured.

    >>> import torch
    >>> average_accuracy(torch.tensor([[90.0, math.nan], [80.0, 96.0]]))
    88.0
    """
    return _number(matrix[-1].mean())


def average_incremental_accuracy(matrix: Tensor) -> float | None:
    """1/T Σ_i 1/(i+1) Σ_{j<=i} A[i, j], the mean of ACC after every task; None if one is unknown.

    >>> import torch
    >>> average_incremental_accuracy(torch.tensor([[90.0, math.nan], [80.0, 96.0]]))
    89.0
    """
    size = len(matrix)
    return _number(torch.stack([matrix[i, : i + 1].mean() for i in range(size)]).mean())


def accuracy_when_learnt(matrix: Tensor) -> float | None:
    """1/T Σ_j A[j, j]; None if one of them was not measured.

    >>> import torch
    >>> accuracy_when_learnt(torch.tensor([[90.0, math.nan], [80.0, 96.0]]))
    93.0
    """
    return _number(matrix.diagonal().mean())


def lowest_accuracy(matrix: Tensor, within: Tensor | None = None) -> float | None:
    """1/(T-1) Σ_{j<T-1} min_{i>j} A[i, j]: the lowest accuracy of a task after it was learnt.

    `within`, if known, has at [i, j] the lowest accuracy on task j while task i was learnt, NaN
    where it was not measured. With it this is the min-ACC of De Lange et al. (ICLR 2023), whose
    difference to the accuracy in the end is the stability gap.

    >>> import torch
    >>> nan = math.nan
    >>> matrix = torch.tensor([[90.0, nan, nan], [80.0, 96.0, nan], [85.0, 92.0, 70.0]])
    >>> lowest_accuracy(matrix)
    86.0
    >>> lowest_accuracy(matrix, torch.tensor([[nan] * 3, [60.0, nan, nan], [88.0, 94.0, nan]]))
    76.0
    """
    if len(matrix) < 2:
        return None
    lowest: list[float] = []
    for task in range(len(matrix) - 1):
        after = matrix[task + 1 :, task].tolist()
        if any(map(math.isnan, after)):
            return None
        during = [] if within is None else within[task + 1 :, task].tolist()
        lowest.append(min(*after, *(value for value in during if not math.isnan(value)), math.inf))
    return sum(lowest) / len(lowest)


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
