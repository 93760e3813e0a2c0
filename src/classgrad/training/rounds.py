"""Rounds of training for one task, each of which goes on from a state that was kept of it."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, Protocol

from classgrad.checkpoints import Keeper
from classgrad.errors import Stopped
from classgrad.methods.base import Fit, Method
from classgrad.networks.network import Network
from classgrad.tasks import Task
from classgrad.training.config import Training
from classgrad.training.loop import Observer, Progress, fit


class Owner(Protocol):
    """Whose network and method are trained."""

    unfinished: dict[str, Any] | None  # the state of a round that was cut short

    @property
    def net(self) -> Network:
        """The network."""

    @property
    def method(self) -> Method:
        """The method."""

    def taken(self, unfinished: dict[str, Any]) -> dict[str, Any]:
        """Return all that has to be kept, with the state of a round."""


def fits(
    owner: Owner,
    training: Training,
    seed: int,
    rounds: int,
    observer: Observer | None,
    keeper: Keeper | None,
) -> Fit:
    """Return the training loop, which a method may run up to `rounds` times for a task."""
    done = itertools.count(owner.unfinished["round"] if owner.unfinished else 0)

    def once(tasks: Sequence[Task], epochs: int | None = None) -> None:
        number = next(done)
        chosen = training if epochs is None else training.replace(epochs=epochs)

        def whole(at: Progress) -> None:
            """Say where the whole task stands, not this round of it."""
            assert observer is not None
            passed = min(number, rounds - 1) * at.steps + at.step
            observer(replace(at, step=passed, steps=rounds * at.steps))

        keeping = RoundKeeping(owner, keeper, number) if keeper else None
        with keeper.patience() if keeper else nullcontext():
            fit(
                owner.net,
                owner.method,
                tasks,
                chosen,
                seed=seed,
                observer=whole if observer else None,
                keeping=keeping,
            )

    return once


class RoundKeeping:
    """Keeps the state while one round of training goes on."""

    def __init__(self, owner: Owner, keeper: Keeper, number: int) -> None:
        self.owner, self.keeper, self.number = owner, keeper, number

    def take(self) -> dict[str, Any] | None:
        """Return the state of the loop that was cut short, once."""
        state, self.owner.unfinished = self.owner.unfinished, None
        return state

    def after_step(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save if it is time to, and stop if that was asked for."""
        if self.keeper.due():
            self.save(state())

    def at_end(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save before the base update, which can take long, and stop if that was asked for."""
        if self.keeper.worth_saving():
            self.save(state())

    def save(self, loop: dict[str, Any]) -> None:
        """Save, and stop if that was asked for."""
        self.keeper.save(self.owner.taken({**loop, "round": self.number}))
        if self.keeper.asked is not None:
            raise Stopped(self.keeper.asked)
