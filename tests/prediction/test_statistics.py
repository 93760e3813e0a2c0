"""Class statistics and the linear discriminant, against plain formulas sample by sample."""

import pytest
import torch

from classgrad.prediction.statistics import ClassStatistics, LinearDiscriminant, shrinkage

D = 12


def samples(seed, sizes=(30, 20, 5, 40)):
    """Return embeddings of some classes with correlated noise, and their classes."""
    rng = torch.Generator().manual_seed(seed)
    mixing = torch.randn(D, D, generator=rng, dtype=torch.float64)
    centres = 2 * torch.randn(len(sizes), D, generator=rng, dtype=torch.float64)
    classes = torch.cat([torch.full((size,), number) for number, size in enumerate(sizes)])
    noise = torch.randn(len(classes), D, generator=rng, dtype=torch.float64) @ mixing
    return centres[classes] + noise, classes


def of(x, classes):
    """Return the statistics of samples."""
    statistics = ClassStatistics.empty(int(classes.max()) + 1, D)
    statistics.add(x, classes)
    return statistics


def reference(x, classes):
    """Return means and inverse covariance, from deviations of samples instead of sums."""
    count = int(classes.max()) + 1
    means = torch.stack([x[classes == c].mean(0) for c in range(count)])
    deviations = x - means[classes]
    covariance = deviations.T @ deviations / (len(x) - count)
    rho = shrinkage(torch.linalg.eigvalsh(covariance), len(x) - count)
    sphere = covariance.trace() / D * torch.eye(D, dtype=torch.float64)
    return means, torch.linalg.inv((1 - rho) * covariance + rho * sphere)


def scores_of(x, means, inverse):
    """Return xᵀ Σ⁻¹ μ - ½ μᵀ Σ⁻¹ μ, class by class."""
    return torch.stack([x @ inverse @ m - m @ inverse @ m / 2 for m in means], -1)


@pytest.mark.parametrize("seed", range(5))
def test_scores_follow_the_formula(seed):
    x, classes = samples(seed)
    means, inverse = reference(x, classes)
    assert torch.allclose(
        LinearDiscriminant(of(x, classes)).scores(x), scores_of(x, means, inverse), atol=1e-9
    )


@pytest.mark.parametrize("seed", range(5))
def test_any_order_of_tasks_and_batches_gives_the_same_classifier(seed):
    x, classes = samples(seed)
    whole = LinearDiscriminant(of(x, classes)).scores(x)
    rng = torch.Generator().manual_seed(seed)
    order = torch.randperm(4, generator=rng)
    pieces = ClassStatistics.empty(0, D)
    for task in order.split(2):  # two tasks of two classes each
        of_task = torch.isin(classes, task).nonzero().flatten()
        part = ClassStatistics.empty(2, D)
        for batch in of_task[torch.randperm(len(of_task), generator=rng)].split(7):
            part.add(x[batch], (classes[batch] == task[1]).long())
        pieces.append(part)
    scores = LinearDiscriminant(pieces).scores(x)
    assert (scores - whole[:, order]).abs().max() < 1e-9


@pytest.mark.parametrize("count", [14, 40, 400])
def test_the_shrinkage_is_the_limit_of_its_iteration(count):
    # Chen et al. derive it as the fixed point of the best ρ for the covariance that ρ gives.
    x = samples(1, (count,))[0]
    s = x.T @ x / count
    rho, share = 0.5, 1 - 2 / D
    for _ in range(2000):
        estimate = (1 - rho) * s + rho * s.trace() / D * torch.eye(D, dtype=torch.float64)
        inner, trace = (estimate @ s).trace(), estimate.trace() ** 2
        rho = (share * inner + trace) / ((count + share) * inner + (1 - count / D) * trace)
        rho = min(float(rho), 1.0)
    assert shrinkage(torch.linalg.eigvalsh(s), count) == pytest.approx(rho, rel=1e-6)


def test_one_sample_per_class_gives_the_nearest_mean():
    x, classes = samples(2, (1, 1, 1))
    discriminant = LinearDiscriminant(of(x, classes))
    queries = samples(5)[0]
    nearest = torch.cdist(queries, x).argmin(1)
    assert torch.equal(discriminant.scores(queries).argmax(1), nearest)
