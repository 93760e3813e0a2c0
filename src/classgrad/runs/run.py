"""A whole run: the tasks of a stream one after another, measured after each, and its record."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from classgrad import benchmarks, networks, seeds
from classgrad.checkpoints import Keeper
from classgrad.distributed import world
from classgrad.errors import UserError
from classgrad.methods.base import Fit, Method
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import Judge, Score, accuracy, evaluate
from classgrad.runs import parallel as run_parallel
from classgrad.runs import state as run_state
from classgrad.runs.events import Events
from classgrad.runs.record import ClassResult, Layer, RunRecord, rows, versions
from classgrad.runs.spec import Plan, make_plan
from classgrad.tasks import Task, TaskStream
from classgrad.training import metrics
from classgrad.training.loop import LossNotFinite, Observer, Progress
from classgrad.training.rounds import fits


def run(
    benchmark: str | TaskStream = "permuted-digits",
    method: str | Method = "cgp",
    *,
    network: str | None = None,
    recipe: str = "fast",
    seed: int = 1,
    values: Mapping[str, Any] | None = None,
    data_dir: Path | str | None = None,
    out: Path | str | None = None,
    observer: Observer | None = None,
    device: torch.device | str = "cpu",
) -> RunRecord:
    """Learn a stream of tasks with a method and return the record.

    Names are looked up in the tables, and their settings come from the recipe and from `values`.
    A stream or a method that you made yourself is used as it is. With `out` the record and the
    state are also written to a folder of their own below it; the same call again goes on with a run
    that was cut short, and returns the record of one that was finished. `device` is where to
    compute; a run goes on on any.
    """
    plan = make_plan(benchmark, method, network=network, recipe=recipe, seed=seed, values=values)
    stream = benchmark if isinstance(benchmark, TaskStream) else load_stream(plan, data_dir)
    if out is None:
        return Run(plan, stream, device=device).go(observer)
    return run_state.go_on(Run(plan, stream, run_folder(out, plan), device=device), observer)


def load_stream(plan: Plan, data_dir: Path | str | None = None) -> TaskStream:
    """Return the stream of a plan whose benchmark is in the table."""
    root = None if data_dir is None else Path(data_dir)
    return benchmarks.load(plan.benchmark, root, plan.seed, **plan.benchmark_options)


def run_folder(out: Path | str, plan: Plan) -> Path:
    """Return the folder of a run below `out`; it is made when there is something to write."""
    for place in (Path(out), *Path(out).parents):
        if place.exists():
            if not place.is_dir():
                raise UserError(f"'{place}' is a file: give a folder for the results")
            break
    return Path(out) / plan.folder_name()


class Run:
    """A run, and its state between tasks.

    With a folder its state is kept there, and a run that was cut short goes on from it; with
    `tensorboard` curves are written there too.
    """

    def __init__(
        self,
        plan: Plan,
        stream: TaskStream,
        folder: Path | None = None,
        keeper: Keeper | None = None,
        *,
        device: torch.device | str = "cpu",
        tensorboard: bool = False,
    ) -> None:
        self.device = run_parallel.device(device)
        self.plan, self.stream, self.folder = plan, stream.to(self.device), folder
        run_parallel.check(self)
        self.keeper = Keeper(folder) if folder is not None and keeper is None else keeper
        self.tensorboard = tensorboard
        self.events: Events | None = None
        self.observer: Observer | None = None
        self.steps = 0  # of training, in all tasks so far
        self.method = plan.method.replace()
        options = plan.network_options.model_dump()
        net = networks.build(plan.network, stream.input_shape, plan.seed, **options)
        self.trunk_size = sum(p.numel() for p in net.trunk.parameters())
        self.embedding = net.embedding
        net.to(self.device).add_task(stream[0].classes)
        self.net: Network = self.method.wrap(net, self.stream, plan.seed)
        self.judge = Judge()
        self.scores: list[list[Score]] = []
        self.before: list[float] = []  # on each task right before it is learnt, one head for all
        self.untrained: list[float] = []  # on each task before anything is learnt, likewise
        self.record = RunRecord(
            **plan.as_dict(),
            tasks=[task.name for task in stream],
            data_notes=list(stream.notes),
            versions=versions(),
        )
        self.started = math.nan  # when the phase at hand began
        self.unfinished: dict[str, Any] | None = None  # a state in the middle of a task

    @cached_property
    def fingerprint(self) -> str:
        """What tells the data from others."""
        return self.stream.fingerprint()

    def go(self, observer: Observer | None = None) -> RunRecord:
        """Learn all tasks that are not learnt yet; return the record."""
        self.observer = observer
        self.record.data = self.fingerprint
        self.record.device, self.record.processes = str(self.device), world().size
        if self.tensorboard and world().is_main_process:
            assert self.folder is not None
            self.events = Events(self.folder, self.steps)
        try:
            for number in range(len(self.scores), len(self.stream)):
                self.learn(number)
                self.record.complete = number == len(self.stream) - 1
                self.save()
                if self.events:
                    self.events.task(self.steps, self.record)
                if self.keeper and not self.record.complete:
                    self.keeper.save(self.taken())
        except LossNotFinite:
            self.save()
            raise
        finally:
            self.method.close()
            if self.events:
                self.events.close()
        return self.record

    def observe(self, at: Progress) -> None:
        """Count a step of training, and tell whoever watches."""
        self.steps += 1
        if self.events:
            self.events.step(self.steps, at)
        if self.observer:
            self.observer(at)

    def share_done(self, at: Progress) -> float:
        """Return how much of the whole run is done."""
        share = at.step / at.steps
        return share if self.method.joint else (at.task + share) / len(self.stream)

    def learn(self, number: int) -> None:
        """Learn one task and measure."""
        task, seed = self.stream[number], self.plan.seed
        if self.unfinished:
            self.method.continue_task(self.net, task)
        else:
            if number:
                self.net.add_task(task.classes)
            if self.net.shared_head and not self.method.joint:
                self.measure_ahead(number)
            self.method.begin_task(self.net, task)
        with self.clock("train"):
            self.method.fit_task(self.net, task, self.fits(self.method.rounds(task)))
            world().broadcast_(p.data for p in self.net.parameters())
        with self.clock("memory"):
            self.method.end_task(self.net, task, seeds.generator(seed, "samples", number))
        self.method.close()
        with self.clock("evaluate"):
            last = number == len(self.stream) - 1
            for learnt in self.learnt_now(task, last):
                self.judge.learn(self.net, learnt)
            seen = range(number + 1) if last or not self.method.joint else range(0)
            task_free = last or self.plan.training.task_free == "every"
            self.scores.append([self.score(j, task_free) for j in seen])
        self.summarise()

    def fits(self, rounds: int) -> Fit:
        """Return the training loop, which a method may run up to `rounds` times for a task."""
        plan = self.plan
        return fits(self, plan.training, plan.seed, rounds, self.observe, self.keeper)

    def taken(self, unfinished: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the state of the run, with that of a round of training in the middle of a task."""
        if self.events:
            self.events.flush()  # what is kept of a run is in its curves
        return run_state.taken(self, unfinished)

    def learnt_now(self, task: Task, last: bool) -> Sequence[Task]:
        """Return the tasks the network knows since this one: all at the end of a joint method."""
        if not self.method.joint:
            return [task]
        return self.stream if last else []

    def score(self, number: int, task_free: bool) -> Score:
        """Measure one of the tasks learnt so far."""
        task, test = self.stream[number], self.stream.test(number)
        return evaluate(self.net, self.judge, task, test, task_free=task_free)

    def measure_ahead(self, number: int) -> None:
        """Measure a task before it is learnt, which a head shared by all tasks allows."""
        with self.clock("evaluate"):
            if number == 0:
                self.untrained = [
                    accuracy(self.net, 0, self.stream[j], self.stream.test(j))
                    for j in range(1, len(self.stream))
                ]
            else:
                here = self.stream[number], self.stream.test(number)
                self.before.append(accuracy(self.net, 0, *here))

    def summarise(self) -> None:
        """Bring the record up to date with what was measured."""
        record = self.record
        given = self.matrix("given")
        record.accuracy_matrix = rows(given)
        record.average_accuracy = metrics.average_accuracy(given)
        record.backward_transfer = metrics.backward_transfer(given)
        record.forgetting = metrics.forgetting(given)
        record.forward_transfer = metrics.forward_transfer(
            self.before, self.untrained[: len(self.before)]
        )
        by_confidence, by_prototype = self.matrix("confident"), self.matrix("nearest")
        record.accuracy_matrix_task_free = rows(by_confidence)
        record.accuracy_matrix_task_free_prototypes = rows(by_prototype)
        record.average_accuracy_task_free = metrics.average_accuracy(by_confidence)
        record.average_accuracy_task_free_prototypes = metrics.average_accuracy(by_prototype)
        record.classes = self.class_results()
        record.memory_bytes = self.method.memory_bytes()
        record.parameters = sum(p.numel() for p in self.net.parameters())
        stored = self.method.stored_parameters(self.net)
        record.capacity = 100 * stored / self.base_parameters()
        layers = {layer.name: layer for layer in record.layers}
        for room in self.method.room():
            layer = layers.setdefault(room.name, Layer(name=room.name, dimension=room.dimension))
            layer.ranks.append(room.rank)
            layer.groups, layer.cosines = list(room.groups), list(room.cosines)
        record.layers = list(layers.values())

    def base_parameters(self) -> int:
        """Return the parameters of the network as it was built, with heads for the tasks so far."""
        classes = [task.classes for task in self.stream][: len(self.scores)]
        if self.plan.network_options.heads == "shared":
            classes = classes[:1]
        return self.trunk_size + self.embedding * sum(classes)

    def matrix(self, kind: str) -> Tensor:
        """Return one kind of accuracy as A[i, j], so far; NaN where nothing was measured."""
        size = len(self.scores)
        matrix = torch.full((size, size), math.nan, dtype=torch.float64)
        for i, row in enumerate(self.scores):
            for j, score in enumerate(row):
                matrix[i, j] = getattr(score, kind)
        return matrix

    def class_results(self) -> list[ClassResult]:
        """Return the accuracy of every class when learnt and now."""
        found = []
        for j, now in enumerate(self.scores[-1]):
            then = (self.scores[j] or self.scores[-1])[j].by_class
            found.append(
                ClassResult(
                    task=self.stream[j].name,
                    classes=list(self.stream[j].class_names),
                    learnt=list(then),
                    final=list(now.by_class),
                    forgetting=[
                        None if a is None or b is None else a - b
                        for a, b in zip(then, now.by_class, strict=True)
                    ],
                )
            )
        return found

    def save(self) -> None:
        """Write the record, if there is a place for it."""
        if self.folder is not None:
            world().on_main_process(partial(run_state.write, self.record, self.folder))

    @contextmanager
    def clock(self, phase: str) -> Iterator[None]:
        """Add the time the block takes to a phase of the record."""
        self.started = time.perf_counter()
        try:
            yield
        finally:
            spent = getattr(self.record.seconds, phase) + time.perf_counter() - self.started
            setattr(self.record.seconds, phase, spent)
