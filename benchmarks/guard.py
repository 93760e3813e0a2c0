"""What a guard costs in a user's own training loop, after ten tasks."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad import networks
from classgrad.core.subspace import Subspace
from classgrad.guard.attach import Guard, attach
from classgrad.methods import GPM

BATCH, WIDTH, CLASSES = 64, 2048, 10
SHARE = 0.1  # of every layer's directions, protected by ten tasks
BOUNDS = {"SGD": Bound(1.10), "AdamW": Bound(1.25)}


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    """Return two layers of 2048 units with a head, and a batch."""
    model = nn.Sequential(
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, CLASSES),
    )
    return model, torch.randn(BATCH, WIDTH)


def resnet() -> tuple[nn.Module, torch.Tensor]:
    """Return ResNet18 for small images with a head, and a batch."""
    net = networks.build("resnet18", (3, 32, 32))
    x = torch.randn(BATCH, 3, 32, 32)
    return nn.Sequential(net.trunk, nn.Linear(net.embedding, CLASSES)), x


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "2 x 2048 MLP": perceptron,
    "ResNet18": resnet,
}


def protected(model: nn.Module, optimizer: torch.optim.Optimizer) -> Guard:
    """Return a guard that protects a share of every layer."""
    guard = attach(model, GPM(), optimizer)
    state = guard.method.state_dict()
    for name, site in guard.method.projector.sites.items():
        rank = max(1, round(SHARE * site.dimension))
        basis = torch.linalg.qr(torch.randn(site.dimension, rank, dtype=torch.float64))[0]
        state["bases"][name] = Subspace(basis).basis
    guard.method.load_memory({**state, "learnt": 10})
    guard._protect()  # as after loading
    return guard


def measure(bench: Bench) -> list[Row]:
    """Time steps of two models, with and without a guard, with SGD and AdamW."""
    rows = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for label, make in MODELS.items():
            for name in BOUNDS:
                calls = {}
                for guarded in (True, False):
                    model, x = make()
                    optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-4)
                    guard = protected(model, optimizer) if guarded else None
                    calls["guarded" if guarded else "plain"] = Step(model, x, optimizer, guard)
                timings = bench.alternate(calls, rounds=10)
                rows.append(
                    Row.share(
                        f"step of a {label} with {name}: guarded / plain",
                        Quantity.of(timings["guarded"]),
                        Quantity.of(timings["plain"]),
                        bound=BOUNDS[name],
                        note=f"{SHARE:.0%} of the directions of every layer are protected",
                    )
                )
    return rows


class Step:
    """An ordinary training step; the guard, if any, works by its hooks."""

    def __init__(
        self,
        model: nn.Module,
        x: torch.Tensor,
        optimizer: torch.optim.Optimizer,
        guard: Guard | None,
    ) -> None:
        self.model, self.x, self.optimizer, self.guard = model, x, optimizer, guard
        self.y = torch.arange(len(x)) % CLASSES

    def __call__(self) -> None:
        """Take the step."""
        self.optimizer.zero_grad()
        functional.cross_entropy(self.model(self.x), self.y).backward()
        self.optimizer.step()
