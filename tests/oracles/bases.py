"""Bases of GPM and CGP by plain singular value decompositions, one loop per equation.

C (d x n) has one column per input of a layer, S (d x r) is the basis so far. Every choice notes in
`margins` by how much it was taken, as a share of the energy: cases that hang on rounding have no
right answer to compare with.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from classgrad.guard.attach import Guard, attach
from classgrad.methods import Projected
from oracles.models import built


def energy(c: np.ndarray) -> float:
    """||C||²."""
    return float(sum(column @ column for column in c.T))


def energies_along(c: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """δ_i = ||s_iᵀ C||² for every column of S."""
    return np.array([sum(float(s @ column) ** 2 for column in c.T) for s in basis.T])


def outside(c: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """Ĉ = C - S Sᵀ C."""
    rest = c.copy()
    for s in basis.T:
        rest = rest - np.outer(s, s @ c)
    return rest


def directions(c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """σ² and the left singular vectors of C."""
    u, sigma, _ = np.linalg.svd(c, full_matrices=False)
    return sigma**2, u


def held(c: np.ndarray, basis: np.ndarray) -> float:
    """Share of ||C||² inside span(S)."""
    return 1 - energy(outside(c, basis)) / energy(c)


def projector(basis: np.ndarray) -> np.ndarray:
    """S Sᵀ."""
    return basis @ basis.T


@dataclass
class LayerMemory:
    """S, the prototypes and the groups of one layer, grown task by task."""

    dimension: int
    compat: bool = False
    basis: np.ndarray = field(init=False)
    prototypes: list[np.ndarray] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)
    groups: int = 0
    margins: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.basis = np.zeros((self.dimension, 0))

    def pooled_task(self, classes: list[np.ndarray], epsilon: float) -> None:
        """GPM: one matrix for all classes of the task."""
        self.append(self.plain(np.concatenate(classes, axis=1), epsilon))

    def first_task(self, classes: list[np.ndarray], epsilon: float, eta: float) -> None:
        """CGP, pooled, τ = 1: classes of a group are concatenated before they are decomposed."""
        groups = [self._enter(c, eta) for c in classes]
        for group in dict.fromkeys(groups):
            members = [c for c, own in zip(classes, groups, strict=True) if own == group]
            self.append(self.plain(np.concatenate(members, axis=1), epsilon))

    def later_task(self, classes: list[np.ndarray], epsilon: float, eta: float, rule: str) -> None:
        """CGP, pooled, τ > 1: class by class, those above η by base refining."""
        for c in classes:
            known = self.groups
            group = self._enter(c, eta)
            choose = self.plain if group == known else getattr(self, rule)
            self.append(choose(c, epsilon))

    def plain(self, c: np.ndarray, epsilon: float) -> np.ndarray:
        """Min m with Σδ + Σ_{j<=m} σ_j² >= ε ||C||²."""
        delta, (values, u) = energies_along(c, self.basis), directions(outside(c, self.basis))
        target = epsilon * energy(c) - sum(delta)
        return self._cut(c, values, u, self._count(c, values, target))

    def own(self, c: np.ndarray, epsilon: float) -> np.ndarray:
        """The residual ones among the first k of [δ, σ²], k the rank of C alone."""
        delta, (values, u) = energies_along(c, self.basis), directions(outside(c, self.basis))
        own = self._count(c, directions(c)[0], epsilon * energy(c))
        return self._cut(c, values, u, self._new_among_first(c, delta, values, own))

    def capped(self, c: np.ndarray, epsilon: float) -> np.ndarray:
        """The residual ones among the first k of [δ, σ²], k the rank of C alone; at most m."""
        delta, (values, u) = energies_along(c, self.basis), directions(outside(c, self.basis))
        own = self._count(c, directions(c)[0], epsilon * energy(c))
        most = self._count(c, values, epsilon * energy(c) - sum(delta))
        return self._cut(c, values, u, min(most, self._new_among_first(c, delta, values, own)))

    def joint(self, c: np.ndarray, epsilon: float) -> np.ndarray:
        """The residual ones among the first of [δ, σ²] that reach ε ||C||²."""
        delta, (values, u) = energies_along(c, self.basis), directions(outside(c, self.basis))
        ordered = np.array(sorted([*delta, *values], reverse=True))
        first = self._count(c, ordered, epsilon * energy(c))
        return self._cut(c, values, u, self._new_among_first(c, delta, values, first))

    def missing(self, c: np.ndarray, epsilon: float) -> np.ndarray:
        """The residual ones among the first m of [δ, σ²], m what S lacks."""
        delta, (values, u) = energies_along(c, self.basis), directions(outside(c, self.basis))
        needed = self._count(c, values, epsilon * energy(c) - sum(delta))
        return self._cut(c, values, u, self._new_among_first(c, delta, values, needed))

    def _count(self, c: np.ndarray, values: np.ndarray, target: float) -> int:
        total, count = 0.0, 0
        self.margins.append(abs(target) / energy(c))
        while total < target and count < len(values):
            total += values[count]
            count += 1
            self.margins.append(abs(total - target) / energy(c))
        return count

    def _new_among_first(
        self, c: np.ndarray, delta: np.ndarray, values: np.ndarray, count: int
    ) -> int:
        joint = [(value, False) for value in delta] + [(value, True) for value in values]
        joint.sort(key=lambda pair: -pair[0])
        if 0 < count < len(joint):
            self.margins.append((joint[count - 1][0] - joint[count][0]) / energy(c))
        return sum(new for _, new in joint[:count])

    def _cut(self, c: np.ndarray, values: np.ndarray, u: np.ndarray, count: int) -> np.ndarray:
        if 0 < count < len(values):
            self.margins.append((values[count - 1] - values[count]) / energy(c))
        return u[:, :count]

    def append(self, vectors: np.ndarray) -> None:
        """Gram-Schmidt, twice; what lies in the span already is not new."""
        if self.compat and self.basis.shape[1] == 0:
            vectors = vectors[:, :-1]
        for vector in vectors.T:
            rest = outside(outside(vector[:, None], self.basis), self.basis)
            length = np.linalg.norm(rest)
            self.margins.append(length if length > 1e-7 else np.inf)
            if length > 1e-7:
                self.basis = np.concatenate([self.basis, rest / length], axis=1)

    def _enter(self, c: np.ndarray, eta: float) -> int:
        """Group of the most similar earlier class if its cosine is above η, else a new group."""
        mean = sum(c.T) / c.shape[1]
        prototype = mean / np.linalg.norm(mean)
        cosines = [float(prototype @ other) for other in self.prototypes]
        group = self.groups
        if cosines and eta < 1:
            nearest = int(np.argmax(cosines))
            self.margins.append(abs(cosines[nearest] - eta))
            if cosines[nearest] > eta:
                group = self.group_of[nearest]
                others = [
                    value for value, own in zip(cosines, self.group_of, strict=True) if own != group
                ]
                self.margins.append(cosines[nearest] - max(others, default=-np.inf))
        self.groups += group == self.groups
        self.prototypes.append(prototype)
        self.group_of.append(group)
        return group


@dataclass(frozen=True)
class Case:
    """A stream for one layer: for every task the matrices of its classes, ε and its growth, η."""

    dimension: int
    tasks: list[list[np.ndarray]]
    epsilon: float
    step: float
    eta: float

    def threshold(self, task: int, limit: float = 0.999) -> float:
        """ε of a task: start + task * step, up to a limit."""
        return min(self.epsilon + task * self.step, max(self.epsilon, limit))


def random_case(seed: int) -> Case:
    """Wide and tall matrices, of full or low rank, flat or decaying, some sharing directions."""
    rng = np.random.default_rng(seed)
    dimension = int(rng.integers(3, 20))
    common = rng.standard_normal((dimension, dimension))
    seen: list[np.ndarray] = []
    tasks = []
    for _ in range(rng.integers(1, 4)):
        classes = []
        for _ in range(rng.integers(1, 4)):
            kind = rng.choice(["free", "common", "low", "decay", "again"])
            count = int(rng.integers(1, 2 * dimension + 3))
            c = rng.standard_normal((dimension, count))
            if kind == "common":
                c = c + 3 * common[:, :1]
            elif kind == "low":
                rank = int(rng.integers(1, dimension))
                c = common[:, :rank] @ rng.standard_normal((rank, count))
            elif kind == "decay":
                c = common @ (0.6 ** np.arange(dimension)[:, None] * c)
            elif kind == "again" and seen:
                c = seen[rng.integers(len(seen))] * rng.uniform(0.5, 2)
            seen.append(c)
            classes.append(c)
        tasks.append(classes)
    epsilon = float(rng.choice([0.5, 0.8, 0.9, 0.95, 0.97, 0.99, 0.998]))
    step = float(rng.choice([0.0, 0.003, 0.02]))
    eta = float(rng.choice([-1.0, 0.0, 0.3, 0.7, 0.9, 1.0]))
    return Case(dimension, tasks, epsilon, step, eta)


def as_batch(classes: list[np.ndarray]) -> tuple[Tensor, Tensor]:
    """Columns of several classes -> rows (n x d), labels, as a data loader gives them."""
    rows = torch.from_numpy(np.concatenate([c.T for c in classes]))
    labels = [label for label, c in enumerate(classes) for _ in c.T]
    return rows, torch.tensor(labels)


def linear_layer(dimension: int) -> nn.Module:
    """Return a model of one bias-free layer '0', whose inputs are those of the model."""
    return built(lambda: nn.Sequential(nn.Linear(dimension, 3, bias=False)))


def guarded(method: Projected, dimension: int) -> Guard:
    """Return a guard on that model, with a method that takes every sample."""
    return attach(linear_layer(dimension), method.replace(samples=10_000))


def learnt(method: Projected, tasks: list[list[np.ndarray]]) -> Guard:
    """Guard a linear layer whose inputs are the given columns, and end one task after another."""
    guard = guarded(method, len(tasks[0][0]))
    for classes in tasks:
        guard.end_task([as_batch(classes)])
    return guard


def basis_of(guard: Guard) -> np.ndarray:
    """Return the basis of that layer."""
    return guard.method.subspaces["0"].basis.numpy()
