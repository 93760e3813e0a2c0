"""What `make photos` compares the learner with."""

import torch

from benchmarks import photos
from benchmarks.photos import lifted_ridge, ridge_by_gcv


def test_the_ridge_is_the_one_with_the_least_score_of_the_samples_themselves(monkeypatch):
    rng = torch.Generator().manual_seed(2)
    labels = torch.randint(3, (40,), generator=rng)
    x = torch.randn(40, 12, generator=rng).double()
    x[:, :3] += 1.5 * torch.eye(3).double()[labels]
    y = torch.eye(3).double()[labels]
    found = ridge_by_gcv(x.T @ x, x.T @ y, 40)
    scores, weights = [], []
    for exponent in range(-8, 9):
        ridge = 10.0**exponent * torch.linalg.eigvalsh(x.T @ x).mean()
        weights.append(torch.linalg.solve(x.T @ x + ridge * torch.eye(12), x.T @ y))
        hat = x @ torch.linalg.solve(x.T @ x + ridge * torch.eye(12), x.T)
        residual = (y - hat @ y).square().sum()
        scores.append(float(residual / (1 - hat.trace() / 40) ** 2))
    best = scores.index(min(scores))
    assert 0 < best < len(scores) - 1
    torch.testing.assert_close(found, weights[best])


def test_the_lift_tells_classes_apart_whatever_the_order_of_samples(monkeypatch):
    monkeypatch.setattr(photos, "RANDOM_FEATURES", 60)
    rng = torch.Generator().manual_seed(4)
    centres = torch.rand(5, 8, generator=rng)
    labels = torch.arange(5).repeat(40)
    x = (centres[labels] + 0.08 * torch.randn(200, 8, generator=rng)).clamp(min=0)
    new = (centres + 0.02 * torch.randn(5, 8, generator=rng)).clamp(min=0)
    assert lifted_ridge(x, labels, new).tolist() == [0, 1, 2, 3, 4]
    order = labels.argsort()
    assert lifted_ridge(x[order], labels[order], new).tolist() == [0, 1, 2, 3, 4]
