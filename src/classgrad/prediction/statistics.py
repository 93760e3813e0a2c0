"""Class statistics: sums of embeddings, and the linear discriminant that follows from them.

Embeddings are scaled to unit length (`unit`). Kept are n and Σ x of each class, and Σ x xᵀ of all
together, in float64. Sums do not depend on the order of classes, batches or tasks, so neither does
the classifier (linear discriminant analysis):

    S = (Σ x xᵀ - Σ_c n_c μ_c μ_cᵀ) / (N - C)                       scatter within classes
    Σ = (1 - ρ) S + ρ tr(S) / d · I                                 ρ from S, N - C and d alone
    score_c(x) = xᵀ Σ⁻¹ μ_c - ½ μ_cᵀ Σ⁻¹ μ_c                        + log n_c, if classes differ

ρ is the oracle approximating shrinkage of Chen et al. (2010). Σ is the same for all classes, so the
scores of all classes of all tasks cost one product.

How well this classifies new samples can be told from those in the sums: leaving x of class c out
changes μ_c to (n_c μ_c - x) / (n_c - 1), and Σ by a matrix of rank one, so the scores without it
follow in closed form, with ρ and N - C as they are. If x looks like others (`data.lookalikes`), its
whole scene is left out with it. With m samples and mean g, that changes μ_c to (n_c μ_c - m g) /
(n_c - m), and the scatter by

    m n_c / (n_c - m) (g - μ_c) (g - μ_c)ᵀ + m / (m - 1) (x - g) (x - g)ᵀ                 if m > 1

What stays of the scene is how its other samples differ from each other: their sum does not tell
that, and it says nothing about x. With two samples nothing stays.

What was added has to be removed without a trace. Sums of floating-point numbers keep one: rounding.
So embeddings are rounded to multiples of g = 2⁻¹⁵ first (`on_grid`). Their products are multiples
of g², and float64 holds sums of these exactly while they are below 2⁵³ g² = 2²³: for 8 million
samples, and more where no feature is near 1.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

GRID = 2.0**-15
NEAR = 0.4  # of a step: what another machine may round to the other side


def unit(features: Tensor) -> Tensor:
    """Return embeddings of length 1, in float32 on the CPU."""
    return functional.normalize(features.detach().cpu().float(), dim=1)


def on_grid(x: Tensor, grid: float = GRID) -> Tensor:
    """Round to multiples of a power of two; 0 leaves all as it is.

    >>> on_grid(torch.tensor([0.5, 0.0001])).tolist()
    [0.5, 9.1552734375e-05]
    """
    return (x / grid).round() * grid if grid else x


def with_sum(x: Tensor, total: Tensor, grid: float = GRID) -> Tensor:
    """Round rows (n, embedding) to a grid so that their sum is `total`, where that can be.

    Rows computed on another machine differ in their last digits. Where a feature was near the
    middle between two multiples, it may have been rounded to the other one: the sum tells.
    """
    exact = x.double() / grid
    rows = exact.round()
    steps = total / grid - rows.sum(0)
    for place in steps.nonzero().flatten().tolist():
        count, sign = int(steps[place].abs()), float(steps[place].sign())
        toward = sign * (exact - rows)[:, place]
        if count <= len(rows) and float(toward.topk(count).values[-1]) > NEAR:
            rows[toward.topk(count).indices, place] += sign
    return rows * grid


@dataclass
class ClassStatistics:
    """Count and sum of each class's embeddings, and the sum of all outer products.

    A class without samples is not predicted. Names of fields are keys of saved states.
    """

    counts: Tensor  # of each class
    sums: Tensor  # classes x embedding
    products: Tensor  # embedding x embedding
    removed: int = 0  # degrees of freedom of forgotten classes whose scatter is still in `products`

    @classmethod
    def empty(cls, classes: int, embedding: int) -> "ClassStatistics":
        """Return statistics of classes without samples."""
        zeros = torch.zeros(classes, embedding, dtype=torch.float64)
        return cls(torch.zeros(classes, dtype=torch.int64), zeros, zeros.T @ zeros)

    def add(self, x: Tensor, classes: Tensor) -> None:
        """Add embeddings (n, embedding) of classes with these numbers (n)."""
        x, classes = x.detach().cpu().double(), classes.cpu()
        self.counts += torch.bincount(classes, minlength=len(self.counts))
        self.sums.index_add_(0, classes, x)
        self.products.addmm_(x.T, x)

    def append(self, other: "ClassStatistics") -> None:
        """Append the classes of other statistics."""
        self.counts = torch.cat([self.counts, other.counts])
        self.sums = torch.cat([self.sums, other.sums])
        self.products = self.products + other.products
        self.removed += other.removed

    def remove(self, number: int, x: Tensor) -> None:
        """Remove embeddings of a class, which are the same as when they were added."""
        x = x.detach().cpu().double()
        self.counts[number] -= len(x)
        self.sums[number] -= x.sum(0)
        self.products.addmm_(x.T, x, alpha=-1)

    def forget(self, number: int, samples: Tensor | None = None, grid: float = 0.0) -> None:
        """Remove the count and the mean of a class, up to rounding.

        Its scatter around that mean stays in the shared covariance, unless all its samples are
        given. Products stay on the grid of the embeddings.
        """
        count, mean = int(self.counts[number]), self.means()[number]
        self.counts[number] = 0
        self.sums[number] = 0
        if not count:
            return
        self.products -= count * torch.outer(mean, mean)
        if samples is None:
            self.removed += count - 1
        else:
            deviations = samples.detach().cpu().double() - mean
            self.products -= deviations.T @ deviations
        self._keep_positive(grid)

    def _keep_positive(self, grid: float) -> None:
        """Round products to their grid, and make the covariance positive again.

        It is not if embeddings were removed that are not those that were added.
        """
        scatter, freedom = self.scatter()
        values, vectors = torch.linalg.eigh(scatter)
        negative = max(freedom, 1) * values.clamp(max=0)
        if float(negative.min()) < -1e-9 * float(self.products.diagonal().abs().max()):
            self.products -= (vectors * negative) @ vectors.T
        if grid:
            # Each number is rounded by at most half a step, so the diagonal can make up for a row.
            self.products = on_grid((self.products + self.products.T) / 2, grid**2)
            self.products.diagonal().add_((len(scatter) + 1) // 2 * grid**2)

    def means(self) -> Tensor:
        """Return the mean embedding of each class (classes x embedding)."""
        return self.sums / self.counts.clamp(min=1)[:, None]

    def scatter(self) -> tuple[Tensor, int]:
        """Return the covariance within classes, S, and its degrees of freedom, N - C."""
        within = self.products - self.sums.T @ self.means()
        freedom = int((self.counts - 1).clamp(min=0).sum()) + self.removed
        return (within + within.T) / (2 * max(freedom, 1)), freedom


def shrinkage(covariance: Tensor, freedom: int) -> float:
    """Return ρ for a covariance S; 1 where nothing else is known.

    ρ = ((1 - 2/d) tr S² + tr² S) / ((n + 1 - 2/d) (tr S² - tr² S / d)), at most 1 (Chen et al.).
    """
    d, trace, squares = len(covariance), covariance.trace(), covariance.square().sum()
    spread = squares - trace.square() / d
    if freedom < 1 or spread <= 1e-12 * squares:
        return 1.0
    rho = ((1 - 2 / d) * squares + trace.square()) / ((freedom + 1 - 2 / d) * spread)
    return min(float(rho), 1.0)


class LinearDiscriminant:
    """Scores of embeddings for every class, from class statistics.

    `priors` are "equal", all classes as probable, or "counts", as frequent as among the samples.
    Classes without samples have a score of minus infinity.
    """

    def __init__(self, statistics: ClassStatistics, priors: str = "equal") -> None:
        scatter, freedom = statistics.scatter()
        d = len(scatter)
        rho = shrinkage(scatter, freedom)
        variance = max(float(scatter.trace()) / d, 0.0) or 1.0  # 1: single samples, nearest mean
        covariance = (1 - rho) * scatter + rho * variance * torch.eye(d, dtype=torch.float64)
        # Where a feature is always 0, or all samples of a class are alike, rounding of the sums can
        # leave a covariance that is not quite positive.
        rounding = 1e-12 * float(statistics.products.trace()) / max(int(statistics.counts.sum()), 1)
        covariance.diagonal().add_(1e-9 * variance + rounding)
        self.counts, self.means = statistics.counts.clone(), statistics.means()
        self.precision = torch.cholesky_inverse(torch.linalg.cholesky(covariance))
        self.weights = self.means @ self.precision
        self.squares = (self.weights * self.means).sum(1)  # μᵀ Σ⁻¹ μ
        self.absent = torch.zeros(len(self.counts), dtype=torch.float64)
        self.absent[self.counts == 0] = torch.inf
        self.log_priors = self.counts.double().log() if priors == "counts" else -self.absent
        self.share = (1 - rho) / max(freedom, 1)  # of one sample's scatter in the covariance

    def scores(self, x: Tensor) -> Tensor:
        """Return the score of each class (n, classes), in float64 on the CPU."""
        offsets = self.log_priors - self.squares / 2
        scores: Tensor = x.detach().cpu().double() @ self.weights.T + offsets
        return scores

    def distances(self, x: Tensor) -> Tensor:
        """Return (x - μ)ᵀ Σ⁻¹ (x - μ) for each class (n, classes); infinity without samples."""
        x = x.detach().cpu().double()
        own = (x @ self.precision * x).sum(1, keepdim=True)
        return own - 2 * (x @ self.weights.T) + self.squares + self.absent

    def distances_left_out(
        self,
        x: Tensor,
        classes: Tensor,
        scene_sizes: Tensor | None = None,
        scene_sums: Tensor | None = None,
    ) -> Tensor:
        """Return the distances of samples in the statistics as if each had been left out of them.

        `classes` are their classes, which must have further samples. Left out with a sample is its
        scene, of so many samples of its class with this sum; by default it is alone.
        """
        x, classes = x.detach().cpu().double(), classes.cpu()
        alone = torch.ones(len(x), dtype=torch.int64)
        m = (alone if scene_sizes is None else scene_sizes).double()[:, None]
        centre = x if scene_sums is None else scene_sums.double() / m
        n, own_mean = self.counts[classes].double()[:, None], self.means[classes]
        inside, outside = x - centre, centre - own_mean
        # Where u is `inside` or `outside`, Σ' = Σ - a u uᵀ, so Σ'⁻¹ = Σ⁻¹ + b q qᵀ with q = Σ⁻¹ u
        # and b = a / (1 - a uᵀ q); for the second one Σ is the first one's Σ'.
        a = self.share * torch.where(m > 1, m / (m - 1).clamp(min=1), 0.0)
        p = inside @ self.precision
        b = a / (1 - a * (inside * p).sum(1, keepdim=True))
        c = self.share * m * n / (n - m)
        q = outside @ self.precision + b * p * (p * outside).sum(1, keepdim=True)
        d = c / (1 - c * (outside * q).sum(1, keepdim=True))
        distances = self.distances(x)
        for factor, direction in ((b, p), (d, q)):
            along = (x * direction).sum(1, keepdim=True) - direction @ self.means.T
            distances += factor * along.square()
        # The class itself has another mean, too.
        from_mean = x - own_mean + m / (n - m) * outside
        own = (from_mean @ self.precision * from_mean).sum(1, keepdim=True)
        for factor, direction in ((b, p), (d, q)):
            own += factor * (from_mean * direction).sum(1, keepdim=True).square()
        return distances.scatter(1, classes[:, None], own)
