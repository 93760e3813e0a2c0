"""A Linear layer with the bases of many simulated classes: steps, and adding another class."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.references import without_groups
from benchmarks.timing import Bench, Call
from classgrad.core.projector import Projector
from classgrad.core.selection import plain
from classgrad.core.subspace import Representation, Subspace

BATCH = 64
SAMPLES = 125
ENERGY = 0.97
POWER = 1.25  # variances of the inputs fall as 1 / k^POWER
CLASSES = (10, 30, 100, 300, 1000)
DIMENSION = 1024
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)
GRAM_WIDTH = 1024  # the widest layer whose C Cᵀ is decomposed, which takes O(d³)
REFERENCE_GROUPS = 10


class LayerStep:
    """A training step of a square Linear layer in the middle of a network, with a projector.

    Without a subspace, it is the same step without projection.
    """

    def __init__(self, dimension: int, subspace: Subspace | None = None) -> None:
        rng = torch.Generator().manual_seed(0)
        self.layer = nn.utils.skip_init(nn.Linear, dimension, dimension, bias=False)
        nn.init.normal_(self.layer.weight, std=dimension**-0.5, generator=rng)
        self.x = torch.randn(BATCH, dimension, generator=rng).requires_grad_()
        self.above = torch.randn(BATCH, dimension, generator=rng) / BATCH
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.001, fused=True)
        self.projector = Projector(nn.Sequential(self.layer))
        self.subspaces = {} if subspace is None else {"0": subspace}
        self.protect()

    def protect(self) -> None:
        """Protect the subspaces, as is done once after every task."""
        self.projector.protect(self.subspaces)
        self.projector.install()

    def __call__(self) -> None:
        """Take a step."""
        self.x.grad = None
        self.optimizer.zero_grad()
        self.layer(self.x).backward(self.above)
        self.projector.before_step(self.optimizer)
        self.optimizer.step()
        self.projector.after_step()


def simulated_class(label: int, dimension: int) -> Tensor:
    """Return inputs (n x d) of a class: its mean and its variances have the same falling spectrum.

    The axes of the spectrum are the coordinate axes: rotating them would change no figure.
    """
    rng = torch.Generator().manual_seed(label)
    deviation = torch.arange(1, dimension + 1) ** (-POWER / 2)
    mean = torch.randn(dimension, generator=rng)
    return (mean + torch.randn(SAMPLES, dimension, generator=rng)) * deviation


def add_class(subspace: Subspace, rows: Tensor) -> Subspace:
    """Add a class as CGP does without base refining."""
    inputs = Representation.of(rows)
    return subspace.extended(plain(subspace.basis, inputs, ENERGY).new)


def subspaces_after(counts: Sequence[int], dimension: int) -> dict[int, Subspace]:
    """Return the subspaces after each of these numbers of classes."""
    subspaces = {}
    subspace = Subspace.empty(dimension)
    for label in range(max(counts)):
        subspace = add_class(subspace, simulated_class(label, dimension))
        if label + 1 in counts:
            subspaces[label + 1] = subspace
    return subspaces


def reflected_basis(dimension: int, rank: int) -> Tensor:
    """Return orthonormal columns (d x r, float64), cheaply: those of I, reflected three times."""
    rng = torch.Generator().manual_seed(0)
    basis = torch.eye(dimension, rank, dtype=torch.float64)
    for _ in range(3):
        axis = torch.randn(dimension, 1, generator=rng, dtype=torch.float64)
        axis /= axis.norm()
        basis -= 2 * axis @ (axis.T @ basis)
    return basis


def sizes(subspace: Subspace) -> dict[str, int]:
    """Return rank, bytes of the basis and of the side a step uses, and operations to project."""
    d, r = subspace.dimension, subspace.rank
    narrow = min(r, d - r)
    return {
        "rank": r,
        "basis_bytes": 4 * d * r,
        "side_bytes": 4 * d * narrow,
        "projection_flops": 4 * BATCH * d * narrow,
    }


def measure_classes(
    bench: Bench, counts: Sequence[int] = CLASSES, dimension: int = DIMENSION
) -> list[dict[str, Any]]:
    """Time a layer after each number of classes, and one without projection."""
    subspaces = subspaces_after(counts, dimension)
    guarded = {str(count): LayerStep(dimension, s) for count, s in subspaces.items()}
    # One dense matrix stands for those of all classes: the work is the same.
    rng = torch.Generator().manual_seed(0)
    gradient, dense = torch.rand(2, dimension, dimension, generator=rng)
    groups = {"0": [dense] * REFERENCE_GROUPS}
    calls: dict[str, Call] = {
        "bare": LayerStep(dimension),
        **guarded,
        "reference": lambda: without_groups({"0": gradient}, groups),
    }
    steps = bench.alternate(calls, rounds=40, turn=3, slow={"reference": 5})
    rows = simulated_class(max(counts), dimension)
    add = bench.alternate(
        {str(count): partial(add_class, s, rows) for count, s in subspaces.items()}, rounds=10
    )
    protect = bench.alternate({name: step.protect for name, step in guarded.items()}, rounds=5)
    return [
        {
            "classes": count,
            **sizes(subspace),
            "reference_flops": 2 * count * dimension**3,
            "bare_seconds": steps["bare"].best,
            "step_seconds": steps[str(count)].best,
            "step_repeats": steps[str(count)].repeats,
            "add_seconds": add[str(count)].best,
            "add_repeats": add[str(count)].repeats,
            "protect_seconds": protect[str(count)].best,
            "protect_repeats": protect[str(count)].repeats,
            "reference_seconds": steps["reference"].best if count == REFERENCE_GROUPS else None,
            "reference_repeats": steps["reference"].repeats if count == REFERENCE_GROUPS else None,
        }
        for count, subspace in subspaces.items()
    ]


def measure_widths(bench: Bench, widths: Sequence[int] = WIDTHS) -> list[dict[str, Any]]:
    """Time square layers with bases of an eighth and of half of their width."""
    return [row for width in widths for row in measure_width(bench, width)]


def measure_width(bench: Bench, width: int) -> list[dict[str, Any]]:
    """Time one width, with random rows: nearly each adds a direction, the most a class can cost."""
    subspaces = {str(r): Subspace(reflected_basis(width, r)) for r in (width // 8, width // 2)}
    guarded = {rank: LayerStep(width, s) for rank, s in subspaces.items()}
    rounds = 30 if width < 4096 else 5
    steps = bench.alternate({"bare": LayerStep(width), **guarded}, rounds=rounds, turn=2)
    rng = torch.Generator().manual_seed(1)
    few = torch.randn(SAMPLES, width, generator=rng)
    add = bench.alternate(
        {rank: partial(add_class, s, few) for rank, s in subspaces.items()},
        rounds=10 if width < 4096 else 2,
    )
    gram = {}
    if width <= GRAM_WIDTH:
        many = torch.randn(2 * width, width, generator=rng)
        calls = {rank: partial(add_class, s, many) for rank, s in subspaces.items()}
        gram = bench.alternate(calls, rounds=3)
    return [
        {
            "width": width,
            **sizes(subspace),
            "weight_bytes": 4 * width**2,
            "bare_seconds": steps["bare"].best,
            "step_seconds": steps[rank].best,
            "step_repeats": steps[rank].repeats,
            "add_seconds": add[rank].best,
            "add_repeats": add[rank].repeats,
            "gram_seconds": gram[rank].best if gram else None,
            "gram_repeats": gram[rank].repeats if gram else None,
        }
        for rank, subspace in subspaces.items()
    ]
