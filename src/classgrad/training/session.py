"""A network and a method that learn tasks one after another.

The life cycle of a task, and the order in which state is restored, are defined here and nowhere
else. A `Run` is a session with a stream and a record, a `Learner` one with a user's images and a
folder.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from classgrad import seeds
from classgrad.checkpoints import CheckpointManager
from classgrad.data.augment import augmentation, refuse_unfit
from classgrad.errors import UserError
from classgrad.methods.base import Fit, Method
from classgrad.methods.saved_state import complete_state
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import ClassPrototypes
from classgrad.tasks import Task
from classgrad.training.config import Training
from classgrad.training.loop import Curve, Observer, Progress, fit

State = dict[str, Any]


class Clock:
    """Seconds of wall-clock time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since: tuple[str, float] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time the block takes to a phase, and not to another one that it is part of."""
        outer = self._since
        self.seconds = self.so_far()
        self._since = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds = self.so_far()
            self._since = None if outer is None else (outer[0], time.perf_counter())

    def so_far(self) -> dict[str, float]:
        """Return the seconds of every phase, including the current one so far."""
        if self._since is None:
            return self.seconds
        name, since = self._since
        spent = self.seconds.get(name, 0.0) + time.perf_counter() - since
        return {**self.seconds, name: spent}


class Session:
    """A network and a method, with what they have learnt so far.

    `net` must have no head yet; `classes` is the number of classes of the first task. `stream` has
    all tasks, where they are known in advance. With `precision` the trunk multiplies in that type;
    weights, updates and bases keep their own.
    """

    def __init__(
        self,
        net: Network,
        method: Method,
        training: Training,
        *,
        seed: int,
        classes: int,
        stream: Sequence[Task] = (),
        precision: torch.dtype | None = None,
    ) -> None:
        net.add_task(classes)
        self.method = method
        self.training, self.seed = training, seed
        self.augment = augmentation(training.augment)
        self.net = method.wrap(net, [self._augmenting(task) for task in stream], seed)
        self.net.precision = precision
        self.tasks = 0  # how many were learnt
        self.prototypes = ClassPrototypes()
        self.clock = Clock()
        self.curves: list[Curve] = []  # of the fits of the last task
        self.unfinished: State | None = None  # state of the training loop, to resume a task from

    def add_task(self, classes: int) -> None:
        """Add the head and other parts of the next task to the network, unless it has them."""
        if len(self.net.heads) == self.tasks:
            self.net.add_task(classes)

    def _augmenting(self, task: Task) -> Task:
        """Return a task whose images are augmented as the settings say."""
        if self.augment is None:
            return task
        refuse_unfit(task.train.images, self.training.augment)
        return replace(task, augment=self.augment)

    def learn_task(
        self,
        task: Task,
        *,
        observer: Observer | None = None,
        checkpoints: CheckpointManager | None = None,
        full_state: Callable[[State], State] = lambda state: state,
    ) -> None:
        """Learn the next task, or the rest of one whose state was loaded.

        With `checkpoints` the state is saved during training; `full_state` turns the state of the
        training loop into all that is to be saved.
        """
        task = self._augmenting(task)
        self.add_task(task.classes)
        begin = self.method.continue_task if self.unfinished else self.method.begin_task
        begin(self.net, task)
        try:
            with self.clock.phase("train"):
                loop = self.training_loop(task, observer, checkpoints, full_state)
                self.method.fit_task(self.net, task, loop)
                self.method.processes.broadcast_(p.data for p in self.net.parameters())
            with self.clock.phase("memory"):
                rng = seeds.generator(self.seed, "samples", task.id)
                self.method.end_task(self.net, task, rng)
        finally:
            self.method.close()
        self.tasks += 1

    def training_loop(
        self,
        task: Task,
        observer: Observer | None = None,
        checkpoints: CheckpointManager | None = None,
        full_state: Callable[[State], State] = lambda state: state,
    ) -> Fit:
        """Return a function that fits the network; a method may call it several times per task."""
        rounds = self.method.rounds(task)
        numbers = itertools.count(self.unfinished["round"] if self.unfinished else 0)
        # States of earlier versions have no curves.
        earlier = self.unfinished.get("curves", []) if self.unfinished else []
        curves = self.curves = list(map(Curve.from_dict, earlier))

        def fit_round(tasks: Sequence[Task], epochs: int | None = None, *, factor: int = 1) -> None:
            number = next(numbers)
            training = self.training.replace(epochs=factor * (epochs or self.training.epochs))
            resumed, self.unfinished = self.unfinished, None

            def observe(at: Progress) -> None:
                """Report the progress of the whole task, not of this round."""
                assert observer is not None
                done = min(number, rounds - 1) * at.steps + at.step
                observer(replace(at, step=done, steps=rounds * at.steps))

            with checkpoints.deferred_signals() if checkpoints else nullcontext():
                curve = fit(
                    self.net,
                    self.method,
                    tasks,
                    training,
                    seed=self.seed,
                    observer=observe if observer else None,
                    checkpoints=checkpoints,
                    full_state=lambda loop: full_state(
                        {**loop, "round": number, "curves": [one.as_dict() for one in curves]}
                    ),
                    resumed=resumed,
                )
            curves.append(curve)

        return fit_round

    def state_dict(self, unfinished: State | None = None) -> State:
        """Return everything but the settings; `unfinished` is the state of the training loop.

        `tasks` counts those that have a head; `net` is None where the loop's state has the weights.
        """
        return {
            "tasks": len(self.net.heads),
            "net": None if unfinished else self.net.state_dict(),
            "method": complete_state(self.method, self.net),
            "unfinished": unfinished,
        }

    def load_state_dict(self, state: Mapping[str, Any], classes: Sequence[int]) -> None:
        """Restore a state; `classes` has the number of classes of each of its tasks."""
        for number in range(len(self.net.heads), state["tasks"]):
            self.net.add_task(classes[number])
        self.unfinished = state["unfinished"]
        # The method before the weights, because it gives layers their sizes.
        self.method.restore(state["method"], self.net)
        weights = (self.unfinished or state)["net"]
        refuse_other_layers(self.net, weights)
        self.net.load_state_dict(weights)
        self.tasks = state["tasks"] - bool(self.unfinished)


def refuse_other_layers(net: Network, weights: Mapping[str, Any]) -> None:
    """Refuse weights of another network; the message names the first layer that differs."""
    expected = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    saved = {name: tuple(value.shape) for name, value in weights.items()}
    for name in {**saved, **expected}:
        if expected.get(name) != saved.get(name):
            given = f"has shape {expected[name]}" if name in expected else "is missing"
            before = f"had shape {saved[name]}" if name in saved else "did not exist"
            raise UserError(
                f"the network is not the one that was saved: '{name}' {given}, and {before} when "
                "saved"
            )
