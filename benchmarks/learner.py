"""AlexNet-5 in the middle of a stream: some tasks learnt and protected, and one to learn."""

from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.images import CLASSES, random_task
from benchmarks.timing import Call
from classgrad import networks
from classgrad.core.subspace import Subspace
from classgrad.devices import PRECISIONS
from classgrad.methods import CGP, OWM, SGP, TRGP
from classgrad.methods.projection.base import Projected
from classgrad.networks import Network
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan
from classgrad.tasks import batches
from classgrad.training.loop import Loop

BATCH = 64
TASKS = 10  # of the recorded stream
RESULTS = Path(__file__).parent.parent / "results"
RECORDS = RESULTS / "split-cifar100"
# A shorter run of the same stream, with `reading=released`.
RELEASED = RESULTS / "tuning/readings/runs/split-cifar100-cgp-seed101-feba28c1/record.json"


@cache
def ranks_after(tasks: int) -> dict[str, tuple[int, int]]:
    """Return dimension and rank of each layer after some tasks of the recorded CIFAR-100 run."""
    path = next(RECORDS.glob("split-cifar100-cgp-seed1-*/record.json"))
    layers = RunRecord.load(path).layers
    return {layer.name: (layer.dimension, layer.ranks[tasks - 1]) for layer in layers}


class Grouped(NamedTuple):
    """A layer whose classes are in groups: its dimension and rank, and the group of each class."""

    dimension: int
    rank: int
    group_of: list[int]

    @property
    def ranks(self) -> list[int]:
        """The rank of each group: the same share of the rank of all, which is what records have.

        Groups overlap, so theirs can be higher. For a step that makes no difference once they add
        up to half of the layer, as they do wherever there are several.
        """
        groups = max(self.group_of) + 1
        return [-(-self.rank // groups)] * groups


@cache
def groups_after(tasks: int) -> dict[str, Grouped]:
    """Return the groups of each layer after some tasks of a recorded run with groups."""
    return {
        layer.name: Grouped(
            layer.dimension, layer.ranks[tasks - 1], layer.groups[: tasks * CLASSES]
        )
        for layer in RunRecord.load(RELEASED).layers
    }


def random_basis(dimension: int, rank: int, seed: int = 0) -> Tensor:
    """Return random orthonormal columns (d x r, float64)."""
    rng = torch.Generator().manual_seed(seed)
    columns = torch.randn(dimension, rank, generator=rng, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


class Learner:
    """A network, a method and an optimiser as in the recipe `fast`, and a task of ten batches.

    It has learnt `learnt` tasks. Without `protect`, its steps are the same without projection. The
    `reading` is CGP's: by default that of guards and learners, while the recipe has `released`.
    """

    def __init__(
        self,
        method: str,
        learnt: int = TASKS,
        *,
        protect: bool = True,
        precision: str = "float32",
        reading: str = "algorithm",
    ) -> None:
        values: dict[str, Any] = {"epochs": 1, "warmup": 0}
        if method == "cgp":
            values["reading"] = reading
        plan = make_plan("split-cifar100", method, values=values)
        self.plan, self.method = plan, plan.method
        self.task = random_task(learnt, per_class=BATCH)
        self.net = networks.build(plan.network, (3, 32, 32), **plan.network_options.model_dump())
        for _ in range(learnt):
            self.net.add_task(CLASSES)
        if isinstance(self.method, Projected):
            self.method.attach(self.net.protected())
        elif isinstance(self.method, OWM):
            self.method.wrap(self.net, [], plan.seed)
        if protect and isinstance(self.method, Projected | OWM):
            self.method.load_state_dict(state_after(learnt, self.method, self.net), self.net)
        self.net.add_task(CLASSES)
        self.net.precision = PRECISIONS[precision]
        self.method.begin_task(self.net, self.task)
        self.loop = Loop(self.net, self.method, [self.task], plan.training, seed=1)
        self.index = cycle(batches(len(self.task.train), BATCH))
        self.net.train()

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimiser of the loop."""
        return self.loop.optimizer

    def step(self) -> None:
        """Take a step of the training loop."""
        self.loop.step(self.task, next(self.index))


def state_after(learnt: int, method: Projected | OWM, net: Network) -> dict[str, Any]:
    """Return the state of a method that has learnt some tasks, with random bases."""
    frozen = method.projector.non_matrix_parameters(net.modules())
    if isinstance(method, CGP) and method.refining().bases_by_group:
        return grouped_state(learnt, frozen)
    bases = {name: random_basis(*size) for name, size in ranks_after(learnt).items()}
    if isinstance(method, OWM):  # P has d x d numbers, whatever was learnt
        shrinking = {name: torch.eye(len(s), dtype=s.dtype) - s @ s.T for name, s in bases.items()}
        return {"matrices": shrinking, "frozen": frozen}
    state = {"learnt": learnt, "bases": bases, "frozen": frozen, "groups": {}}
    if isinstance(method, SGP):  # every direction is used by half
        state["importance"] = {
            name: torch.full((basis.shape[1],), 0.5, dtype=torch.float64)
            for name, basis in bases.items()
        }
    if isinstance(method, TRGP):  # the last two tasks are trusted, each with all directions so far
        ranks = [ranks_after(task) for task in range(1, learnt + 1)]
        state["own"] = {name: [torch.arange(r[name][1]) for r in ranks] for name in bases}
        state["trusted"] = {name: {str(learnt): [learnt - 1, learnt - 2]} for name in bases}
    return state


def grouped_state(learnt: int, frozen: list[str]) -> dict[str, Any]:
    """Return the state of CGP with a random basis for each group of classes.

    Prototypes, which steps do not use, are empty.
    """
    bases, groups = {}, {}
    for name, layer in groups_after(learnt).items():
        own = [random_basis(layer.dimension, rank, seed) for seed, rank in enumerate(layer.ranks)]
        bases[name] = Subspace.empty(layer.dimension).extended(torch.cat(own, dim=1)).basis
        groups[name] = {
            "prototypes": torch.zeros(len(layer.group_of), 0),
            "group_of": layer.group_of,
            "cosines": [1.0] * len(layer.group_of),
            "bases": own,
        }
    return {"learnt": learnt, "bases": bases, "frozen": frozen, "groups": groups}


def flops(call: Call) -> int:
    """Count the floating-point operations of the matrix products and convolutions in a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    total: int = counter.get_total_flops()
    return total
