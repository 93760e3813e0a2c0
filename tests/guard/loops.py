"""A model, tasks and training loops for the tests of the guard, and how far a guard leaks."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.guard.attach import Guard
from classgrad.methods import GPM
from oracles.models import built, in_turn, normal

Optimizer = torch.optim.Optimizer


def small() -> nn.Module:
    """Return three layers with room for two tasks."""

    def make() -> nn.Module:
        return nn.Sequential(
            nn.Linear(30, 40), nn.LayerNorm(40), nn.ReLU(), nn.Linear(40, 40), nn.Linear(40, 6)
        )

    return built(make).float()


def everything() -> GPM:
    """Return a method that protects all a task shows."""
    return GPM(epsilon=1.0)


def task(number: int, count: int = 8) -> tuple[Tensor, Tensor]:
    """Return samples of two new classes, in float32."""
    y = in_turn(count, 2)
    x = normal(2, 30, seed=10 + number)[y] + 0.3 * normal(count, 30, seed=20 + number)
    return x.float(), y + 2 * number


def loss_of(model: nn.Module, number: int) -> Tensor:
    """Return the loss on a task."""
    x, y = task(number)
    return functional.cross_entropy(model(x), y)


def train(model: nn.Module, optimizer: Optimizer, number: int, steps: int = 10) -> None:
    """Take ordinary steps."""
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, number).backward()
        optimizer.step()


class Moves:
    """How far weights move from now on, and how much of that lies along protected directions."""

    def __init__(self, guard: Guard) -> None:
        self.guard = guard
        self.before = {name: matrix.clone() for name, matrix in self._matrices()}

    def _matrices(self) -> Iterator[tuple[str, Tensor]]:
        for name, site in self.guard.method.projector.sites.items():
            yield name, site.matrix(site.weight.detach()).double()

    def moved(self) -> float:
        """Return the length of the shortest move of a layer."""
        return min(float((m - self.before[name]).norm()) for name, m in self._matrices())

    def leak(self) -> float:
        """Return the largest share of a layer's move that lies along protected directions."""
        shares = []
        for name, matrix in self._matrices():
            move = matrix - self.before[name]
            inside = move @ self.guard.method.subspaces[name].basis
            shares.append(float(inside.norm() / move.norm()))
        return max(shares)


def second_task_leaks(
    guard: Guard, model: nn.Module, learn: Callable[[], None]
) -> tuple[float, float]:
    """Protect a first task, learn a second; return how far weights moved, and how they leaked."""
    guard.end_task([task(0)])
    moves = Moves(guard)
    learn()
    return moves.moved(), moves.leak()
