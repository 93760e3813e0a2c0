"""Projection of the gradients of one step: ours, dense, and group by group."""

from torch import Tensor, nn

from benchmarks.learner import Learner, flops, random_basis, ranks_after
from benchmarks.references import without_groups
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad.core.layers import tap
from classgrad.core.projector import ProjectedForward
from classgrad.methods.projection.base import Projected


class Projection:
    """All work beyond a plain backward pass, on the rows and gradients of a real step.

    For Linear layers with few rows that is projecting the rows and probing the gradients for leaks,
    for convolutions projecting the gradients. Only the call of the custom backward is missing,
    some microseconds; the ratio of whole steps includes it.
    """

    def __init__(self, learner: Learner) -> None:
        assert isinstance(learner.method, Projected)
        self.projector = learner.method.projector
        with tap(self.projector.sites.values()) as seen:
            learner.step()
        self.rows = [
            (layer.forward.projection, seen[layer, 0][0])
            for layer in learner.net.modules()
            if isinstance(layer, nn.Linear) and isinstance(layer.forward, ProjectedForward)
        ]
        self.gradients: dict[str, Tensor] = {
            name: site.matrix(site.weight.grad).clone()
            for name, site in self.projector.sites.items()
            if site.weight.grad is not None
        }

    def __call__(self) -> None:
        """Project."""
        for projection, rows in self.rows:
            projection.project(rows)
            projection.by_rows = True
        self.projector.project_gradients()


def measure(bench: Bench) -> list[Row]:
    """Time the projection of all layers at the ranks after 100 classes."""
    ours = Projection(Learner("gpm"))
    dense = {}
    for name, (dimension, rank) in ranks_after(10).items():
        basis = random_basis(dimension, rank)
        dense[name] = (basis @ basis.T).float()

    def groups(count: int) -> None:
        without_groups(ours.gradients, {name: [p] * count for name, p in dense.items()})

    timings = bench.alternate(
        {
            "ours": ours,
            "dense": lambda: groups(1),
            "10 groups": lambda: groups(10),
        },
        rounds=15,
        turn=3,
        slow={"10 groups": 5},
    )
    timings["100 groups"] = timings["10 groups"].times(10)
    counts = {"ours": flops(ours), "dense": flops(lambda: groups(1))}
    rows = []
    for name, factor, bound in (
        ("dense", 1, Bound(15, at_least=True)),
        ("10 groups", 10, None),
        ("100 groups", 100, Bound(1000, at_least=True)),
    ):
        note = "one dense matrix per layer stands for all groups: the work is the same"
        if name == "100 groups":
            note += "; scaled from 10 groups"
        counted = {"flops_ours": counts["ours"], "flops_reference": counts["dense"] * factor}
        rows.append(
            Row.slower(
                f"projecting gradients: {name} / ours",
                Quantity.of(timings["ours"]),
                Quantity.of(timings[name]),
                bound=bound,
                note="" if name == "dense" else note,
                details=counted,
            )
        )
    return rows
