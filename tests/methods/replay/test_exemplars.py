"""Herding against trying every sample, and lists that are only ever truncate."""

import numpy as np
import torch

from classgrad.methods.replay.icarl import choose, herd, truncate
from classgrad.tasks import Split
from oracles.distilled import greedy


def test_a_case_worked_by_hand():
    """Mean (3, 1). (3, 0) is nearest; with (2, 2) the mean is (2.5, 1), with (6, 0) (4.5, 0)."""
    points = torch.tensor([[6.0, 0.0], [3.0, 0.0], [1.0, 2.0], [2.0, 2.0]])
    assert points.mean(0).tolist() == [3, 1]
    assert herd(points, 2).tolist() == [1, 3]
    assert herd(points, 4).tolist() == [1, 3, 0, 2]


def test_order_is_that_of_the_greedy_search():
    rng = np.random.default_rng(0)
    for case in range(60):
        count, size = int(rng.integers(1, 20)), int(rng.integers(1, 8))
        features = rng.standard_normal((count, size)) + rng.standard_normal(size)
        if case % 2:
            features /= np.linalg.norm(features, axis=1, keepdims=True)
        if case % 5 == 0:
            features[0] = 0  # an embedding without any active unit
        wanted = int(rng.integers(1, 25))
        assert herd(torch.from_numpy(features), wanted).tolist() == greedy(features, wanted)


def test_fewer_exemplars_are_the_first_of_more():
    features = torch.randn(30, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(herd(features, 9)[:4], herd(features, 4))


def test_no_sample_is_chosen_twice_even_if_all_are_alike():
    assert sorted(herd(torch.ones(5, 2), 9).tolist()) == [0, 1, 2, 3, 4]


def test_classes_are_chosen_and_cut_each_on_its_own():
    features = torch.tensor([[0.0], [9.0], [4.0], [11.0], [5.0], [10.0], [11.0]])
    labels = torch.tensor([0, 1, 0, 1, 0, 1, 0])  # means 5 and 10
    images = torch.arange(7, dtype=torch.uint8).reshape(7, 1)
    chosen = choose(Split(images, labels), features, 3)
    assert chosen.images.flatten().tolist() == [4, 2, 6, 5, 1, 3]
    assert chosen.labels.tolist() == [0, 0, 0, 1, 1, 1]
    shorter = truncate(chosen, 2)
    assert shorter.images.flatten().tolist() == [4, 2, 5, 1]
    assert truncate(shorter, 5).images.equal(shorter.images)
