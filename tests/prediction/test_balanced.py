"""Balanced accuracy: classes count alike, however many samples they have."""

import pytest
import torch

from classgrad.prediction.balanced import balanced_accuracy


def test_every_class_counts_alike():
    labels = torch.tensor([0] * 500 + [1] * 5)
    correct = torch.tensor([True] * 490 + [False] * 10 + [True] + [False] * 4)
    figures = balanced_accuracy(labels, correct)
    assert figures.samples == 505
    assert figures.recalls == pytest.approx({0: 98, 1: 20})
    assert figures.accuracy == pytest.approx(59)
    assert figures.low < figures.accuracy < figures.high


def test_few_samples_that_are_all_correct_are_not_certain():
    figures = balanced_accuracy(torch.zeros(5, dtype=torch.int64), torch.ones(5, dtype=torch.bool))
    assert (figures.accuracy, figures.high) == (100, 100)
    assert figures.low < 75


@pytest.mark.parametrize(
    ("counts", "rates"),
    [
        ((10,) * 12, (0.8,) * 12),
        ((500, 500, 5, 5), (0.97, 0.95, 0.3, 0.2)),
        ((5, 5), (0.5, 0.7)),
        ((10, 20, 40), (0.9, 0.95, 0.6)),
    ],
)
def test_the_interval_has_the_true_accuracy_in_about_95_of_100_cases(counts, rates):
    rng = torch.Generator().manual_seed(1)
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    rate = torch.tensor(rates)[labels]
    truth, repeats, inside = 100 * sum(rates) / len(rates), 400, 0
    for _ in range(repeats):
        figures = balanced_accuracy(labels, torch.rand(len(labels), generator=rng) < rate)
        inside += figures.low <= truth <= figures.high
    least = 0.92 if min(counts) * len(counts) > 10 else 0.9  # of ten samples in all
    assert least * repeats <= inside <= 0.995 * repeats
