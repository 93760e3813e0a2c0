"""Accuracy when some classes have many samples and others few: the mean of the classes' recalls.

With C classes, of whose n_c samples a share p_c is classified correctly, the balanced accuracy is
the mean of all p_c. Its standard error is √(Σ q_c (1 - q_c) / n_c) / C, where q_c = (n_c p_c + 1) /
(n_c + 2) stands for the unknown rate: of 5 samples that are all correct, the rate is not known to
be 1. The interval is 1.96 standard errors to each side.
"""

import math
from dataclasses import dataclass

from torch import Tensor

NORMAL_95 = 1.96  # quantile: 95 % of a normal distribution lie within so many standard errors


@dataclass(frozen=True)
class Balanced:
    """How often samples are classified correctly, all in per cent."""

    samples: int
    accuracy: float
    low: float  # of the 95 % interval
    high: float
    recalls: dict[int, float]  # by class


def balanced_accuracy(labels: Tensor, correct: Tensor) -> Balanced:
    """Return the balanced accuracy over all classes that have a label (n); `correct` is (n)."""
    recalls, variance = {}, 0.0
    for label in labels.unique().tolist():
        of_class = correct[labels == label].double()
        count = len(of_class)
        recalls[label] = float(of_class.mean())
        rate = (float(of_class.sum()) + 1) / (count + 2)
        variance += rate * (1 - rate) / count
    accuracy = sum(recalls.values()) / len(recalls)
    margin = NORMAL_95 * math.sqrt(variance) / len(recalls)
    return Balanced(
        len(labels),
        100 * accuracy,
        100 * max(accuracy - margin, 0),
        100 * min(accuracy + margin, 1),
        {label: 100 * recall for label, recall in recalls.items()},
    )
