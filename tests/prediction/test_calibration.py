"""The temperature is the minimum of the cost, wherever that is."""

import pytest
import torch

from classgrad.prediction.calibration import MAX_SHARPNESS, calibrate


def cost(scores, labels, sharpness):
    """Return the cost from its definition, with smoothed labels."""
    total, smoothing = 0.0, 1 / (len(labels) + 2)
    for row, label in zip(scores.double(), labels.tolist(), strict=True):
        logs = (row * sharpness).log_softmax(0)
        total -= (1 - smoothing) * float(logs[label]) + smoothing * float(logs.mean())
    return total


@pytest.mark.parametrize("length", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("right", [0.0, 0.6, 1.0])
def test_no_other_temperature_costs_less(length, right):
    rng = torch.Generator().manual_seed(3)
    scores = length * torch.randn(40, 5, generator=rng)
    guessed = torch.randint(5, (40,), generator=rng)
    labels = torch.where(torch.rand(40, generator=rng) < right, scores.argmax(1), guessed)
    best = calibrate(scores, labels)
    assert 0 <= best <= MAX_SHARPNESS
    least = cost(scores, labels, best)
    for other in (0.0, 0.9 * best, 0.999 * best, 1.001 * best, 1.1 * best, MAX_SHARPNESS):
        if other <= MAX_SHARPNESS:
            assert least <= cost(scores, labels, other) + 1e-9


def test_equal_scores_and_no_samples_have_a_temperature():
    assert calibrate(torch.zeros(3, 4), torch.zeros(3, dtype=torch.int64)) >= 0
    assert calibrate(torch.zeros(0, 4), torch.zeros(0, dtype=torch.int64)) == 1.0
