"""Base refining of CGP in each of its readings, by plain loops: one function for each description.

`algorithm` follows Algorithm 1 of the paper line by line, `text` the section on base refining,
`released` the description of the released CIFAR-100 script; `pooled` is in `oracles.bases`. Each
returns what one layer ends with, for a stream of tasks whose classes are matrices C (d x n). Every
choice notes in `margins` by how much it was taken, see `oracles.bases`.
"""

from dataclasses import dataclass, field

import numpy as np

from oracles.bases import Case, directions, energies_along, energy, outside


@dataclass
class Layer:
    """What a layer ends with: S or the bases of groups, the group of each class, and margins."""

    dimension: int
    basis: np.ndarray = field(init=False)
    bases: list[np.ndarray] = field(default_factory=list)
    prototypes: list[np.ndarray] = field(default_factory=list)
    group_of: list[int] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.basis = np.zeros((self.dimension, 0))

    def rank(self, values: np.ndarray, target: float, of: float) -> int:
        """The smallest count of values whose sum reaches the target."""
        total, count = 0.0, 0
        self.margins.append(abs(target) / of)
        while total < target and count < len(values):
            total += values[count]
            count += 1
            self.margins.append(abs(total - target) / of)
        return count

    def first(self, c: np.ndarray, values: np.ndarray, u: np.ndarray, count: int) -> np.ndarray:
        """The first columns of U."""
        if 0 < count < len(values):
            self.margins.append((values[count - 1] - values[count]) / energy(c))
        return u[:, :count]

    def k_rank1(self, c: np.ndarray, epsilon: float) -> np.ndarray:
        """Eq. k-rank1: the first k left singular vectors that hold ε of C."""
        values, u = directions(c)
        return self.first(c, values, u, self.rank(values, epsilon * energy(c), energy(c)))

    def k_rank2(self, c: np.ndarray, basis: np.ndarray, epsilon: float) -> tuple[np.ndarray, int]:
        """Eq. k-rank2: the first k of the residual that hold ε of C together with a basis."""
        values, u = directions(outside(c, basis))
        missing = epsilon * energy(c) - sum(energies_along(c, basis))
        count = self.rank(values, missing, energy(c))
        return self.first(c, values, u, count), count

    def from_joint_list(self, c: np.ndarray, basis: np.ndarray, count: int) -> np.ndarray:
        """The residual directions among the first `count` of sorted [δ, σ²]."""
        values, u = directions(outside(c, basis))
        joint = [(value, False) for value in energies_along(c, basis)]
        joint += [(value, True) for value in values]
        joint.sort(key=lambda pair: -pair[0])
        if 0 < count < len(joint):
            self.margins.append((joint[count - 1][0] - joint[count][0]) / energy(c))
        return self.first(c, values, u, sum(new for _, new in joint[:count]))

    def extend(self, basis: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Gram-Schmidt, twice; what lies in the span already is not new."""
        for vector in vectors.T:
            rest = outside(outside(vector[:, None], basis), basis)
            length = np.linalg.norm(rest)
            self.margins.append(length if length > 1e-7 else np.inf)
            if length > 1e-7:
                basis = np.concatenate([basis, rest / length], axis=1)
        return basis

    def similar(self, c: np.ndarray, eta: float) -> list[tuple[float, int]]:
        """The cosine and number of every earlier class above η; the prototype is kept."""
        mean = sum(c.T) / c.shape[1]
        prototype = mean / np.linalg.norm(mean)
        cosines = [float(prototype @ other) for other in self.prototypes]
        self.prototypes.append(prototype)
        if eta >= 1:
            return []
        self.margins += [abs(cosine - eta) for cosine in cosines]
        for one in range(len(cosines)):
            self.margins += [abs(cosines[one] - other) or 1.0 for other in cosines[:one]]
        return [(cosine, number) for number, cosine in enumerate(cosines) if cosine > eta]


def algorithm(case: Case) -> Layer:
    """Algorithm 1: no class of the first task is special; k from the class alone."""
    layer = Layer(case.dimension)
    for task, classes in enumerate(case.tasks):
        epsilon = case.threshold(task)
        for c in classes:
            similar = layer.similar(c, case.eta)
            if not similar:
                layer.group_of.append(max(layer.group_of, default=-1) + 1)
                new, _ = layer.k_rank2(c, layer.basis, epsilon)
            else:
                layer.group_of.append(layer.group_of[max(similar)[1]])
                values, _ = directions(c)
                k = layer.rank(values, epsilon * energy(c), energy(c))
                new = layer.from_joint_list(c, layer.basis, k)
            layer.basis = layer.extend(layer.basis, new)
    return layer


def text(case: Case) -> Layer:
    """The text: pairs of the first task replace the bases of both classes; then k by k-rank2."""
    layer = Layer(case.dimension)
    own: list[np.ndarray] = []
    for number, c in enumerate(case.tasks[0]):
        similar = layer.similar(c, case.eta)
        if not similar:
            layer.group_of.append(max(layer.group_of, default=-1) + 1)
            own.append(layer.k_rank2(c, layer.basis, case.threshold(0))[0])
        else:
            other = max(similar)[1]
            layer.group_of.append(layer.group_of[other])
            pair = np.concatenate([c, case.tasks[0][other]], axis=1)
            own.append(layer.k_rank1(pair, case.threshold(0)))
            own[other] = own[number]
        layer.basis = np.zeros((case.dimension, 0))
        for basis in own:
            layer.basis = layer.extend(layer.basis, basis)
    for task, classes in enumerate(case.tasks[1:], 1):
        for c in classes:
            similar = layer.similar(c, case.eta)
            new, k = layer.k_rank2(c, layer.basis, case.threshold(task))
            if similar:
                layer.group_of.append(layer.group_of[max(similar)[1]])
                new = layer.from_joint_list(c, layer.basis, k)
            else:
                layer.group_of.append(max(layer.group_of, default=-1) + 1)
            layer.basis = layer.extend(layer.basis, new)
    return layer


def released(case: Case) -> Layer:
    """The released script: each group has its own basis, and counts for itself."""
    layer = Layer(case.dimension)
    for task, classes in enumerate(case.tasks):
        epsilon = case.threshold(task)
        for number, c in enumerate(classes):
            similar = layer.similar(c, case.eta)
            if not similar:  # what the last group lacks
                last = layer.bases[-1] if layer.bases else np.zeros((case.dimension, 0))
                layer.group_of.append(len(layer.bases))
                layer.bases.append(layer.k_rank2(c, last, epsilon)[0])
            elif task == 0:  # the last pair stands for the whole group
                for _, other in similar:
                    assert other < number
                    pair = np.concatenate([c, classes[other]], axis=1)
                    layer.bases[layer.group_of[other]] = layer.k_rank1(pair, epsilon)
                layer.group_of.append(layer.group_of[similar[-1][1]])
            else:  # every group with a similar class is extended
                for group in dict.fromkeys(layer.group_of[other] for _, other in similar):
                    _, k = layer.k_rank2(c, layer.bases[group], epsilon)
                    new = layer.from_joint_list(c, layer.bases[group], k)
                    layer.bases[group] = layer.extend(layer.bases[group], new)
                layer.group_of.append(layer.group_of[similar[-1][1]])
    for basis in layer.bases:
        layer.basis = layer.extend(layer.basis, basis)
    return layer


def in_turn(gradient: np.ndarray, bases: list[np.ndarray]) -> np.ndarray:
    """g (I - B_1 B_1ᵀ) (I - B_2 B_2ᵀ) ..., one matrix product after another."""
    for basis in bases:
        gradient = gradient @ (np.eye(len(basis)) - basis @ basis.T)
    return gradient


ORACLES = {"algorithm": algorithm, "text": text, "released": released}
