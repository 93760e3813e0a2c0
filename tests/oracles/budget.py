"""A limit on the memory of several bases, by loops from its definition: one column at a time."""

from dataclasses import dataclass, field

import numpy as np

from oracles.bases import LayerMemory, energies_along, energy


@dataclass
class Ledger:
    """The bases of some layers and, for every class learnt, its δ_j / E along each column."""

    layers: dict[str, LayerMemory]
    lines: dict[str, list[list[float]]] = field(init=False)
    margins: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = {name: [] for name in self.layers}

    def measure(self, name: str, c: np.ndarray) -> None:
        """Enter a class; what columns that are new since then hold of earlier ones is unknown."""
        line = [float(delta) / energy(c) for delta in energies_along(c, self.layers[name].basis)]
        for earlier in self.lines[name]:
            earlier += [0.0] * (len(line) - len(earlier))
        self.lines[name].append(line)

    def bytes(self) -> int:
        """8 for each number of each basis."""
        return sum(8 * layer.dimension * layer.basis.shape[1] for layer in self.layers.values())

    def fit(self, limit: float) -> int:
        """Drop the weakest column of all, but no layer's last, until the bases fit; how many."""
        dropped = 0
        while self.bytes() > limit:
            strengths = sorted(
                (sum(line[column] for line in self.lines[name]), name, column)
                for name, layer in self.layers.items()
                for column in range(layer.basis.shape[1])
                if layer.basis.shape[1] > 1
            )
            self.margins += [strengths[1][0] - strengths[0][0]]
            self._drop(*strengths[0][1:])
            dropped += 1
        return dropped

    def _drop(self, name: str, column: int) -> None:
        layer = self.layers[name]
        layer.basis = np.delete(layer.basis, column, axis=1)
        for line in self.lines[name]:
            del line[column]

    def held(self) -> list[tuple[str, float]]:
        """Layer and share of each class, layer by layer."""
        return [(name, sum(line)) for name, lines in self.lines.items() for line in lines]
