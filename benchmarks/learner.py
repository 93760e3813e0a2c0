"""AlexNet-5 in the middle of a stream: some tasks learnt and protected, and one to learn."""

from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.images import CLASSES, random_task
from benchmarks.timing import Call
from classgrad import networks
from classgrad.devices import PRECISIONS
from classgrad.methods import SGP, TRGP
from classgrad.methods.projection.base import Projected
from classgrad.networks import Network
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan
from classgrad.tasks import batches
from classgrad.training.loop import Loop

BATCH = 64
TASKS = 10  # of the recorded stream
RECORDS = Path(__file__).parent.parent / "results" / "split-cifar100"


@cache
def ranks_after(tasks: int) -> dict[str, tuple[int, int]]:
    """Return dimension and rank of each layer after some tasks of the recorded CIFAR-100 run."""
    path = next(RECORDS.glob("split-cifar100-cgp-seed1-*/record.json"))
    layers = RunRecord.load(path).layers
    return {layer.name: (layer.dimension, layer.ranks[tasks - 1]) for layer in layers}


def random_basis(dimension: int, rank: int, seed: int = 0) -> Tensor:
    """Return random orthonormal columns (d x r, float64)."""
    rng = torch.Generator().manual_seed(seed)
    columns = torch.randn(dimension, rank, generator=rng, dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(columns).Q
    return basis


class Learner:
    """A network, a method and an optimiser as in the recipe `fast`, and a task of ten batches.

    It has learnt `learnt` tasks. Without `protect`, its steps are the same without projection.
    """

    def __init__(
        self,
        method: str,
        learnt: int = TASKS,
        *,
        protect: bool = True,
        precision: str = "float32",
    ) -> None:
        values: dict[str, Any] = {"epochs": 1, "warmup": 0}
        if method == "cgp":
            values["reading"] = "algorithm"  # one projection, as in guards and learners
        plan = make_plan("split-cifar100", method, values=values)
        self.plan, self.method = plan, plan.method
        self.task = random_task(learnt, per_class=BATCH)
        self.net = networks.build(plan.network, (3, 32, 32), **plan.network_options.model_dump())
        for _ in range(learnt):
            self.net.add_task(CLASSES)
        if isinstance(self.method, Projected):
            self.method.attach(self.net.protected())
            if protect:
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


def state_after(learnt: int, method: Projected, net: Network) -> dict[str, Any]:
    """Return the state of a method that has learnt some tasks, with random bases."""
    bases = {name: random_basis(*size) for name, size in ranks_after(learnt).items()}
    frozen = method.projector.non_matrix_parameters(net.modules())
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


def flops(call: Call) -> int:
    """Count the floating-point operations of the matrix products and convolutions in a call."""
    with FlopCounterMode(display=False) as counter:
        call()
    total: int = counter.get_total_flops()
    return total
