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
    rho = shrinkage(covariance, len(x) - count)
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
    assert shrinkage(s, count) == pytest.approx(rho, rel=1e-6)


def test_one_sample_per_class_gives_the_nearest_mean():
    x, classes = samples(2, (1, 1, 1))
    discriminant = LinearDiscriminant(of(x, classes))
    queries = samples(5)[0]
    nearest = torch.cdist(queries, x).argmin(1)
    assert torch.equal(discriminant.scores(queries).argmax(1), nearest)


def distances_of(x, means, inverse):
    """Return (x - μ)ᵀ Σ⁻¹ (x - μ), class by class."""
    return torch.stack([((x - m) @ inverse * (x - m)).sum(1) for m in means], -1)


def test_distances_follow_the_formula():
    x, classes = samples(2)
    distances = LinearDiscriminant(of(x, classes)).distances(x)
    assert torch.allclose(distances, distances_of(x, *reference(x, classes)), rtol=1e-6)


@pytest.mark.parametrize("sizes", [(30, 20, 5, 40), (2, 3, 2)])
def test_distances_of_samples_left_out_are_those_of_statistics_without_them(sizes):
    x, classes = samples(3, sizes)
    whole = LinearDiscriminant(of(x, classes))
    scatter, freedom = of(x, classes).scatter()
    rho, variance = shrinkage(scatter, freedom), scatter.trace() / D
    distances = whole.distances_left_out(x, classes)
    for left_out in range(len(x)):
        others = torch.arange(len(x)) != left_out
        means = torch.stack(
            [x[others & (classes == number)].mean(0) for number in range(len(sizes))]
        )
        deviations = x[others] - means[classes[others]]
        covariance = (1 - rho) * deviations.T @ deviations / freedom  # ρ and N - C as they were
        covariance += rho * variance * torch.eye(D, dtype=torch.float64)
        expected = distances_of(x[left_out : left_out + 1], means, torch.linalg.inv(covariance))
        assert torch.allclose(distances[left_out], expected[0], rtol=1e-6)
    assert not torch.allclose(distances, whole.distances(x), rtol=1e-2)


def scenes(x, classes, seed=1):
    """Return a scene for some samples of each class, with their sizes and sums."""
    rng = torch.Generator().manual_seed(seed)
    number = classes * 100 + torch.randint(4, (len(x),), generator=rng)
    sizes = torch.stack([(number == one).sum() for one in number])
    sums = torch.stack([x[number == one].sum(0) for one in number])
    return number, sizes, sums


@pytest.mark.parametrize("sizes", [(30, 20, 9, 40), (7, 8, 6)])
def test_with_a_sample_its_scene_is_left_out(sizes):
    x, classes = samples(3, sizes)
    whole, (number, counts, sums) = LinearDiscriminant(of(x, classes)), scenes(x, classes)
    scatter, freedom = of(x, classes).scatter()
    rho, variance = shrinkage(scatter, freedom), scatter.trace() / D
    distances = whole.distances_left_out(x, classes, counts, sums)
    assert counts.unique().tolist()[:2] == [1, 2]
    for left_out in range(len(x)):
        others = number != number[left_out]
        means = torch.stack([x[others & (classes == c)].mean(0) for c in range(len(sizes))])
        deviations = x[others] - means[classes[others]]
        # Of the scene stays how the samples other than this one differ from each other.
        rest = x[~others & (torch.arange(len(x)) != left_out)]
        spread = rest - rest.mean(0) if len(rest) else rest
        covariance = (1 - rho) * (deviations.T @ deviations + spread.T @ spread) / freedom
        covariance += rho * variance * torch.eye(D, dtype=torch.float64)
        expected = distances_of(x[left_out : left_out + 1], means, torch.linalg.inv(covariance))
        assert torch.allclose(distances[left_out], expected[0], rtol=1e-6)
    assert not torch.allclose(distances, whole.distances_left_out(x, classes), rtol=1e-2)
    alone = torch.ones_like(counts)
    assert torch.allclose(
        whole.distances_left_out(x, classes, alone, x), whole.distances_left_out(x, classes)
    )


def test_a_class_that_is_forgotten_leaves_only_its_scatter():
    x, classes = samples(4)
    statistics, kept = of(x, classes), classes != 1
    statistics.forget(1)
    left = LinearDiscriminant(statistics)
    assert (left.scores(x)[:, 1] == -torch.inf).all()
    assert (statistics.sums[1] == 0).all()
    # The covariance is still that of all samples around their class means.
    means, inverse = reference(x, classes)
    assert torch.allclose(left.scores(x)[:, [0, 2, 3]], scores_of(x, means[[0, 2, 3]], inverse))
    # With its samples given, it is that of the others alone.
    statistics = of(x, classes)
    statistics.forget(1, x[classes == 1])
    means, inverse = reference(x[kept], classes[kept].sub((classes[kept] > 1).long()))
    scores = LinearDiscriminant(statistics).scores(x)[:, [0, 2, 3]]
    assert torch.allclose(scores, scores_of(x, means, inverse))


def test_priors_follow_the_counts():
    x, classes = samples(6)
    statistics = of(x, classes)
    difference = LinearDiscriminant(statistics, "counts").scores(x) - LinearDiscriminant(
        statistics
    ).scores(x)
    assert torch.allclose(difference, statistics.counts.double().log().expand_as(difference))


@pytest.mark.parametrize("spread", [0.0, 1e-12, 1e-9, 1e-7])
def test_samples_of_a_class_may_be_alike(spread):
    x, classes = samples(8, (50, 50, 50))
    centres = torch.stack([x[classes == number].mean(0) for number in range(3)])
    alike = centres[classes] + spread * (x - centres[classes])
    scores = LinearDiscriminant(of(alike, classes)).scores(alike)
    assert torch.equal(scores.argmax(1), classes)


def test_features_that_are_always_zero_do_no_harm():
    x, classes = samples(7, (400, 300))
    x[:, 3] = 0
    scores = LinearDiscriminant(of(x, classes)).scores(x)
    assert scores.isfinite().all()
    assert (scores.argmax(1) == classes).double().mean() > 0.9
