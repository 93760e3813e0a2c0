"""A network and a method that learn tasks one after another.

The life of a task, and the order in which its state is restored, are written here and nowhere else:
a `Run` is a session with a stream and a record, a `Learner` one with a user's images and a folder.
"""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from classgrad import seeds
from classgrad.checkpoints import CheckpointManager
from classgrad.errors import UserError
from classgrad.methods.base import Fit, Method
from classgrad.methods.saved_state import complete_state
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import ClassPrototypes
from classgrad.tasks import Task
from classgrad.training.config import Training
from classgrad.training.loop import Observer, Progress, fit

State = dict[str, Any]


class Clock:
    """Seconds of wall-clock time by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since: tuple[str, float] | None = None

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time the block takes to a phase."""
        self._since = name, time.perf_counter()
        try:
            yield
        finally:
            self.seconds = self.so_far()
            self._since = None

    def so_far(self) -> dict[str, float]:
        """Return the seconds of every phase, with those of one that is not over."""
        if self._since is None:
            return self.seconds
        name, since = self._since
        spent = self.seconds.get(name, 0.0) + time.perf_counter() - since
        return {**self.seconds, name: spent}


class Session:
    """A network and a method, with what they have learnt so far.

    The network has no head yet; `classes` is how many classes the first task has. `stream` holds
    all tasks in advance, where they are known.
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
    ) -> None:
        net.add_task(classes)
        self.method = method
        self.net = method.wrap(net, stream, seed)
        self.training, self.seed = training, seed
        self.tasks = 0  # that were learnt
        self.prototypes = ClassPrototypes()
        self.clock = Clock()
        self.unfinished: State | None = None  # of the training loop, in the middle of a task

    def add_task(self, classes: int) -> None:
        """Give the network what the next task owns, unless it has that already."""
        if len(self.net.heads) == self.tasks:
            self.net.add_task(classes)

    def learn_task(
        self,
        task: Task,
        *,
        observer: Observer | None = None,
        checkpoints: CheckpointManager | None = None,
        whole_state: Callable[[State], State] = lambda state: state,
    ) -> None:
        """Learn the next task, or the rest of one whose state was loaded.

        With `checkpoints` the state is saved on the way: what `whole_state` makes of that of the
        training loop.
        """
        self.add_task(task.classes)
        begin = self.method.continue_task if self.unfinished else self.method.begin_task
        begin(self.net, task)
        try:
            with self.clock.phase("train"):
                loop = self.training_loop(task, observer, checkpoints, whole_state)
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
        whole_state: Callable[[State], State] = lambda state: state,
    ) -> Fit:
        """Return the training loop, which a method may run several times for a task."""
        rounds = self.method.rounds(task)
        numbers = itertools.count(self.unfinished["round"] if self.unfinished else 0)

        def fit_round(tasks: Sequence[Task], epochs: int | None = None) -> None:
            number = next(numbers)
            training = self.training if epochs is None else self.training.replace(epochs=epochs)
            resumed, self.unfinished = self.unfinished, None

            def observe(at: Progress) -> None:
                """Tell where the whole task stands, not this round of it."""
                assert observer is not None
                done = min(number, rounds - 1) * at.steps + at.step
                observer(replace(at, step=done, steps=rounds * at.steps))

            with checkpoints.patience() if checkpoints else nullcontext():
                fit(
                    self.net,
                    self.method,
                    tasks,
                    training,
                    seed=self.seed,
                    observer=observe if observer else None,
                    checkpoints=checkpoints,
                    whole_state=lambda loop: whole_state({**loop, "round": number}),
                    resumed=resumed,
                )

        return fit_round

    def state_dict(self, unfinished: State | None = None) -> State:
        """Return everything but the settings, with the state of the loop in the middle of a task.

        `tasks` are those that have a head, `net` the weights unless the loop has them.
        """
        return {
            "tasks": len(self.net.heads),
            "net": None if unfinished else self.net.state_dict(),
            "method": complete_state(self.method, self.net),
            "unfinished": unfinished,
        }

    def load_state_dict(self, state: Mapping[str, Any], classes: Sequence[int]) -> None:
        """Continue from a state; `classes` are the numbers of classes of its tasks."""
        for number in range(len(self.net.heads), state["tasks"]):
            self.net.add_task(classes[number])
        self.unfinished = state["unfinished"]
        # The method first: it gives layers their sizes.
        self.method.restore(state["method"], self.net)
        weights = (self.unfinished or state)["net"]
        refuse_other_layers(self.net, weights)
        self.net.load_state_dict(weights)
        self.tasks = state["tasks"] - bool(self.unfinished)


def refuse_other_layers(net: Network, weights: Mapping[str, Any]) -> None:
    """Refuse weights that are of another network, by the name of a layer."""
    here = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    there = {name: tuple(value.shape) for name, value in weights.items()}
    for name in {**there, **here}:
        if here.get(name) != there.get(name):
            own = f"of shape {here[name]}" if name in here else "missing"
            saved = f"{there[name]}" if name in there else "none"
            raise UserError(
                f"the network is not the one that was saved: '{name}' is {own}, and the saved one "
                f"has {saved}"
            )
