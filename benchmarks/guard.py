"""What a guard costs in a user's own training loop, after ten tasks."""

from collections.abc import Callable
from statistics import mean

import torch
from torch import nn
from torch.nn import functional

from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench, Call, Timing
from classgrad import networks
from classgrad.core.subspace import Subspace
from classgrad.guard.attach import Guard, attach
from classgrad.guard.leaks import APART
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
# Model, optimiser and `project_every`: nothing changes with SGD, whose updates are not projected,
# and ResNet18 is within its bound without.
CASES = [
    ("2 x 2048 MLP", "SGD", 1),
    ("2 x 2048 MLP", "AdamW", 1),
    ("2 x 2048 MLP", "AdamW", 16),
    ("ResNet18", "SGD", 1),
    ("ResNet18", "AdamW", 1),
]


def protected(model: nn.Module, optimizer: torch.optim.Optimizer, project_every: int = 1) -> Guard:
    """Return a guard that protects a share of every layer."""
    guard = attach(model, GPM(), optimizer, project_every=project_every)
    state = guard.method.state_dict()
    for name, site in guard.method.projector.sites.items():
        rank = max(1, round(SHARE * site.dimension))
        basis = torch.linalg.qr(torch.randn(site.dimension, rank, dtype=torch.float64))[0]
        state["bases"][name] = Subspace(basis).basis
    guard.method.load_memory({**state, "learnt": 10})
    guard._protect()  # as after loading
    return guard


def measure(bench: Bench) -> list[Row]:
    """Time looks for leaks alone, and steps of two models, with and without a guard."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [looks(bench), *(guarded_steps(bench, *case) for case in CASES)]


def guarded_steps(bench: Bench, label: str, name: str, steps: int) -> Row:
    """Compare steps of a model with a guard and without."""
    calls = {}
    for guarded in (True, False):
        model, x = MODELS[label]()
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=1e-4)
        guard = protected(model, optimizer, steps) if guarded else None
        calls["guarded" if guarded else "plain"] = Steps(model, x, optimizer, guard, steps)
    timings = bench.alternate(calls, rounds=10 if steps == 1 else 4)
    every = "" if steps == 1 else f", project_every={steps}"
    unit = "step" if steps == 1 else f"{steps} steps"
    return Row.share(
        f"{unit} of a {label} with {name}{every}: guarded / plain",
        Quantity.of(timings["guarded"]),
        Quantity.of(timings["plain"]),
        bound=BOUNDS[name],
        note=f"{SHARE:.0%} of the directions of every layer are protected",
    )


def looks(bench: Bench) -> Row:
    """Compare what a guard does at every step to notice leaks with a plain step.

    Each is timed after a plain step: a look takes half the time or less if weights and probes are
    still in the processor's cache.
    """
    model, x = perceptron()
    plain = Steps(model, x, torch.optim.SGD(model.parameters(), lr=1e-4), None)
    other, _ = perceptron()
    monitor = protected(other, torch.optim.SGD(other.parameters(), lr=1e-4))._monitor

    def look() -> None:
        monitor.before_step()
        monitor.after_step()

    # Until every weight had its turn: most steps have no look.
    turns = range(APART * len(monitor.state_dict()))
    calls: dict[str, Call] = {}
    for turn in turns:
        calls |= {f"step {turn}": plain, f"look {turn}": look}
    timings = bench.alternate(calls, rounds=10)
    each = [timings[f"look {turn}"] for turn in turns]
    steps = [timings[f"step {turn}"] for turn in turns]
    return Row.share(
        "looking for leaks at every step / step of a 2 x 2048 MLP with SGD",
        Quantity.of(Timing(mean(one.best for one in each), each[0].repeats)),
        Quantity.of(min(steps, key=lambda one: one.best)),
        bound=Bound(0.01),
        note=f"the mean over steps; one in {APART} has a look",
    )


class Steps:
    """Ordinary training steps; the guard, if any, works by its hooks."""

    def __init__(
        self,
        model: nn.Module,
        x: torch.Tensor,
        optimizer: torch.optim.Optimizer,
        guard: Guard | None,
        steps: int = 1,
    ) -> None:
        self.model, self.x, self.optimizer, self.guard = model, x, optimizer, guard
        self.y = torch.arange(len(x)) % CLASSES
        self.steps = steps

    def __call__(self) -> None:
        """Take the steps."""
        for _ in range(self.steps):
            self.optimizer.zero_grad()
            functional.cross_entropy(self.model(self.x), self.y).backward()
            self.optimizer.step()
