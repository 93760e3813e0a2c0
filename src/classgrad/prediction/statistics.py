"""Class statistics: sums of embeddings, and the linear discriminant that follows from them.

Kept are n and Σ x of each class, and Σ x xᵀ of all together, in float64. Sums do not depend on the
order of classes, batches or tasks, so neither does the classifier (linear discriminant analysis):

    S = (Σ x xᵀ - Σ_c n_c μ_c μ_cᵀ) / (N - C)                       scatter within classes
    Σ = (1 - ρ) S + ρ tr(S) / d · I                                 ρ from S, N - C and d alone
    score_c(x) = xᵀ Σ⁻¹ μ_c - ½ μ_cᵀ Σ⁻¹ μ_c

ρ is the oracle approximating shrinkage of Chen et al. (2010). Σ is the same for all classes, so the
scores of all classes of all tasks cost one product.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class ClassStatistics:
    """Count and sum of each class's embeddings, and the sum of all outer products.

    Names of fields are keys of saved states.
    """

    counts: Tensor  # of each class
    sums: Tensor  # classes x embedding
    products: Tensor  # embedding x embedding

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

    def means(self) -> Tensor:
        """Return the mean embedding of each class (classes x embedding)."""
        return self.sums / self.counts[:, None]

    def scatter(self) -> tuple[Tensor, int]:
        """Return the covariance within classes, S, and its degrees of freedom, N - C."""
        within = self.products - self.sums.T @ self.means()
        freedom = int(self.counts.sum()) - len(self.counts)
        return (within + within.T) / (2 * max(freedom, 1)), freedom


def shrinkage(eigenvalues: Tensor, freedom: int) -> float:
    """Return ρ for a covariance with these eigenvalues; 1 where nothing else is known.

    ρ = ((1 - 2/d) tr S² + tr² S) / ((n + 1 - 2/d) (tr S² - tr² S / d)), at most 1 (Chen et al.).
    """
    d, trace, squares = len(eigenvalues), eigenvalues.sum(), eigenvalues.square().sum()
    spread = squares - trace.square() / d
    if freedom < 1 or spread <= 1e-12 * squares:
        return 1.0
    rho = ((1 - 2 / d) * squares + trace.square()) / ((freedom + 1 - 2 / d) * spread)
    return min(float(rho), 1.0)


class LinearDiscriminant:
    """Scores of embeddings for every class, from class statistics; all classes are as probable."""

    def __init__(self, statistics: ClassStatistics) -> None:
        scatter, freedom = statistics.scatter()
        values, axes = torch.linalg.eigh(scatter)
        values = values.clamp(min=0)
        rho = shrinkage(values, freedom)
        variance = float(values.mean()) or 1.0  # 1: single samples, so the nearest class mean
        inverse = axes / ((1 - rho) * values + rho * variance) @ axes.T
        self.weights = statistics.means() @ inverse
        self.offsets = -(self.weights * statistics.means()).sum(1) / 2

    def scores(self, x: Tensor) -> Tensor:
        """Return the score of each class (n, classes), in float64 on the CPU."""
        scores: Tensor = x.detach().cpu().double() @ self.weights.T + self.offsets
        return scores
