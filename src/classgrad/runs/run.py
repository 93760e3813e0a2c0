"""A run: learn the tasks of a stream one after another, measure after each, keep a record."""

import glob
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from classgrad import benchmarks, devices, networks
from classgrad.benchmarks.base import renormalise
from classgrad.checkpoints import CheckpointManager, Lock
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.manager import FOLDER
from classgrad.distributed import env_count, restart_count, world
from classgrad.errors import UserError, shown
from classgrad.methods import METHODS
from classgrad.methods.base import Method
from classgrad.methods.saved_state import refuse_stateless
from classgrad.networks import frozen
from classgrad.networks.frozen import FrozenOutputs
from classgrad.networks.network import Network
from classgrad.prediction.accuracy import (
    ClassPrototypes,
    Score,
    accuracy,
    class_statistics,
    evaluate,
    evaluate_task_free,
)
from classgrad.prediction.statistics import ClassStatistics
from classgrad.runs.events import Events
from classgrad.runs.record import (
    FILE_NAME,
    SCHEMA_VERSION,
    ClassResult,
    Layer,
    NewerRecord,
    RunRecord,
    Seconds,
    rows,
    versions,
)
from classgrad.runs.spec import Plan, identity, make_plan
from classgrad.tasks import Split, Task, TaskStream
from classgrad.training import metrics
from classgrad.training.config import Training
from classgrad.training.loop import LossNotFinite, Observer, Progress
from classgrad.training.session import Session

ONE_FOLDER = "give a folder for results that all of them see"
FILE_TIMEOUT = 60.0  # seconds until a file of one process is visible to others
# Names of accuracies in saved states, and in `Score`.
SAVED_SCORES = {"given": "task_known", "confident": "by_confidence", "nearest": "by_prototype"}


class Tell(Protocol):
    """Tells the user something."""

    def __call__(self, line: str, hint: str | None = None) -> None:
        """Print a line; `hint` is for the command line, as in `UserError`."""


def run(
    benchmark: str | TaskStream = "permuted-digits",
    method: str | Method = "cgp",
    *,
    network: str | nn.Module | Callable[[], nn.Module] | None = None,
    training: Training | None = None,
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
    Where a method or `training` is given as an object, the recipe fills in what that leaves to its
    defaults. A network of your own is a trunk from inputs to (n, embedding), or a function that
    makes one; it is copied. With `out` the record and the state are also written to a new folder
    inside it; the same call again resumes a run that was cut short, and returns the record of one
    that was finished. A run can be resumed on any `device`.
    """
    plan = make_plan(
        benchmark,
        method,
        network=network,
        training=training,
        recipe=recipe,
        seed=seed,
        values=values,
    )
    stream = benchmark if isinstance(benchmark, TaskStream) else load_stream(plan, data_dir)
    if out is None:
        return Run(plan, stream, device=device).execute(observer)
    return Run(plan, stream, run_folder(out, plan), device=device).resume(observer)


def load_stream(plan: Plan, data_dir: Path | str | None = None) -> TaskStream:
    """Return the stream of a plan whose benchmark is in the table."""
    root = None if data_dir is None else Path(data_dir)
    return benchmarks.load(plan.benchmark, root, plan.seed, **plan.benchmark_options)


def for_network(stream: TaskStream, network: str) -> TaskStream:
    """Return a stream with the normalisation that a network was pretrained with, if it was."""
    kind = networks.NETWORKS.get(network)
    if kind is None or kind.normalisation is None:
        return stream
    mean, deviation = kind.normalisation
    return stream.with_transforms(partial(renormalise, mean=mean, deviation=deviation))


def run_folder(out: Path | str, plan: Plan, *, same_values: bool = False) -> Path:
    """Return the folder of a run inside `out`; it is made when something is written to it.

    A run that was started with other defaults is found, too, except with `same_values`.
    """
    is_of_plan = plan.has_values if same_values else plan.describes
    for place in (Path(out), *Path(out).parents):
        if place.exists():
            if not place.is_dir():
                raise UserError(f"'{place}' is a file: give a folder for the results")
            break
    named = Path(out) / plan.folder_name()
    if has_saved_state(named):
        return named
    # A run started by an earlier version may have another name for the same settings.
    for folder in sorted(Path(out).glob(f"{glob.escape(plan.folder_prefix())}*")):
        if has_saved_state(folder) and is_of_plan(saved_settings(folder)):
            return folder
    return named


def saved_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the run in a folder; an empty dict if they cannot be read."""
    with suppress(UserError):
        if (folder / FILE_NAME).is_file():
            return _record_settings(folder / FILE_NAME, (folder / FILE_NAME).stat().st_mtime_ns)
        loaded = CheckpointManager(folder).load()
        plan = loaded.state.get("plan") if loaded else None
        return plan if isinstance(plan, dict) else {}
    return {}


@lru_cache(maxsize=1000)
def _record_settings(file: Path, changed: int) -> dict[str, Any]:
    """Return the settings in a record; cached, because a sweep reads the same ones many times."""
    return RunRecord.load(file).settings()


def has_saved_state(folder: Path) -> bool:
    """Tell whether a folder has a record or checkpoints of a run."""
    return (folder / FOLDER).is_dir() or (folder / FILE_NAME).is_file()


class Run:
    """A session with a stream and a record.

    With a folder the state is saved there, and a run that was cut short is resumed from it; with
    `tensorboard` curves are written there too.
    """

    def __init__(
        self,
        plan: Plan,
        stream: TaskStream,
        folder: Path | None = None,
        checkpoints: CheckpointManager | None = None,
        *,
        device: torch.device | str = "cpu",
        tensorboard: bool = False,
    ) -> None:
        self.device = process_device(device)
        self.stream, self.folder = for_network(stream, plan.network).to(self.device), folder
        if folder is not None:
            refuse_stateless(type(plan.method))
        self.checkpoints = checkpoints
        if folder is not None and checkpoints is None:
            self.checkpoints = CheckpointManager(folder)
        self.tensorboard = tensorboard
        self.events: Events | None = None
        self.observer: Observer | None = None
        self._begin(plan)

    def _begin(self, plan: Plan) -> None:
        """Set up a run of this plan that has learnt nothing yet."""
        self.plan = plan
        refuse_several_processes(plan, self.stream)
        precision = devices.resolve_precision(plan.training.precision, self.device)
        if world().size > 1:
            same = {
                "the settings": plan.as_dict(),
                "the data": self.fingerprint,
                "the precision": precision,
            }
            world().refuse_differences({**compared_versions(), **same})
        options = plan.network_options.model_dump()
        if plan.weights is not None:
            options["weights"] = plan.weights
        shape = self.stream.input_shape
        if plan.trunk is not None:
            net = networks.build_own(plan.trunk, shape, plan.seed, **options)
        else:
            net = networks.build(plan.network, shape, plan.seed, **options)
        self.trunk_size = sum(p.numel() for p in net.trunk.parameters())
        self.embedding = net.embedding
        self.session = Session(
            net.to(self.device),
            plan.method.replace(),
            plan.training,
            seed=plan.seed,
            classes=self.stream[0].classes,
            stream=self.stream,
            precision=devices.PRECISIONS[precision],
        )
        # Found before a state is loaded, which may freeze more: a resumed run has the same ones.
        self.frozen_layers = self.net.frozen_layers()
        self.steps = 0  # of training, in all tasks so far
        self.scores: list[list[Score]] = []
        # Of the classes so far; None if they are not comparable or not needed.
        self.statistics: ClassStatistics | None = None
        comparable = not self.net.task_dependent and not self.net.batch_dependent
        if comparable and plan.training.task_free != "never":
            self.statistics = ClassStatistics.empty(0, self.net.embedding)
        # With a shared head: accuracy on each task but the first, right before it is learnt, and
        # before anything is learnt.
        self.before: list[float] = []
        self.untrained: list[float] = []
        self.record = RunRecord(
            **plan.as_dict(),
            tasks=[task.name for task in self.stream],
            data_notes=list(self.stream.notes),
            precision=precision,
            task_free_batches="mixed",
            versions=versions(),
        )

    @property
    def net(self) -> Network:
        """The network, with the heads of the tasks so far."""
        return self.session.net

    @property
    def method(self) -> Method:
        """The method, with its state after the tasks so far."""
        return self.session.method

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the data."""
        return self.stream.fingerprint()

    def resume(
        self,
        observer: Observer | None = None,
        *,
        tell: Tell = lambda line, hint=None: None,
        locked: bool = False,
    ) -> RunRecord:
        """Learn the remaining tasks, and save the state in the folder; return the record.

        The record of a finished run is returned as it is. `tell` is called with a line for
        everything a user should know, and sometimes a hint, as errors have them. `locked` means
        that another process, which waits for this one, has locked the folder.
        """
        assert self.folder is not None
        assert self.checkpoints is not None
        with nullcontext() if locked else locking(self.folder):
            finished = self._finished_record(tell)
            seen = {f"whether '{self.folder}' holds a record": bool(finished)}
            world().refuse_differences(seen, ONE_FOLDER)
            if finished:
                tell(f"{self.method.name}: finished before", "fresh")
                self.checkpoints.clear()  # a run killed right at its end leaves some
                return finished
            loaded = self.checkpoints.load()
            counter = loaded and loaded.counter
            world().refuse_differences({f"checkpoints in '{self.folder}'": counter}, ONE_FOLDER)
            if loaded:
                for warning in loaded.warnings:
                    tell(f"{warning}; resuming from the one before")
                with raising_bad_checkpoint(f"the state in '{self.folder}'"):
                    self.load_state_dict(loaded.state)
                tell(f"{self.method.name}: resuming with task {len(self.scores) + 1}")
            record = self.execute(observer)
            self.checkpoints.clear()
            return record

    def execute(self, observer: Observer | None = None) -> RunRecord:
        """Learn the remaining tasks; return the record."""
        self.observer = observer
        self.record.data = self.fingerprint
        self.record.device, self.record.processes = str(self.device), world().size
        if self.tensorboard and world().is_main_process:
            assert self.folder is not None
            self.events = Events(self.folder, self.steps)
        self.net.frozen_outputs = self.frozen_table()
        try:
            # Those of learnt tasks again, in the same order: a method may have kept images of them,
            # and an image that returns in a later task keeps the bits of the first time.
            for task in self.stream[: len(self.scores)]:
                self.add_frozen_outputs(task)
            for number in range(len(self.scores), len(self.stream)):
                self.add_frozen_outputs(self.stream[number])
                self.learn(number)
                self.record.complete = number == len(self.stream) - 1
                # Before anything is saved, because a method may refuse an incomplete state.
                saving = self.checkpoints is not None and not self.record.complete
                state = self.state_dict() if saving else {}
                self.save_record()
                if self.events:
                    self.events.task(self.steps, self.record)
                if saving and self.checkpoints:
                    self.checkpoints.save(state)
        except LossNotFinite:
            self.save_record()
            raise
        finally:
            self.net.frozen_outputs = None
            self.method.close()
            if self.events:
                self.events.close()
        return self.record

    def learn(self, number: int) -> None:
        """Learn one task, and measure all tasks learnt so far."""
        task, session = self.stream[number], self.session
        if not session.unfinished:
            session.add_task(task.classes)
            if self.net.shared_head and not self.method.joint:
                self.measure_before_learning(number)
        session.learn_task(
            task, observer=self.observe, checkpoints=self.checkpoints, full_state=self.state_dict
        )
        with session.clock.phase("evaluate"):
            last = number == len(self.stream) - 1
            for learnt in self.newly_learnt(task, last):
                session.prototypes.add_task(self.net, learnt)
                self.add_statistics(learnt)
            measured = range(number + 1) if last or not self.method.joint else range(0)
            when = self.plan.training.task_free
            task_free = when == "every" or (when == "end" and last)
            self.scores.append(self.measure(measured, task_free))
        self.update_record()

    def frozen_table(self) -> FrozenOutputs | None:
        """Return an empty table for what frozen layers make of all images, if there is room.

        Only on the CPU: inputs are found by their bytes.
        """
        if not self.frozen_layers or self.device.type != "cpu":
            return None
        count = sum(len(split) for task in self.stream for split in self.splits(task))
        table = FrozenOutputs(self.frozen_layers, count)
        return table if table.nbytes(self.stream.input_shape) <= frozen.LIMIT else None

    def add_frozen_outputs(self, task: Task) -> None:
        """Compute once what frozen layers make of the images of a task.

        Every process does so for all images, in the same batches, so that all have the same bits.
        """
        with self.session.clock.phase("train"):
            for split in self.splits(task):
                self.net.add_frozen_outputs(split, task.transform)

    def splits(self, task: Task) -> tuple[Split, ...]:
        """Return the data of a task that are used: only one schedule looks at validation data."""
        valid = [task.valid] if self.plan.training.schedule == "plateau" else []
        return task.train, *valid, self.stream.test(task.id)

    def observe(self, at: Progress) -> None:
        """Count a step of training, and pass it to the events and the observer."""
        self.steps += 1
        if self.events:
            self.events.step(self.steps, at)
        if self.observer:
            self.observer(at)

    def share_done(self, at: Progress) -> float:
        """Return the share of the whole run that is done, from 0 to 1."""
        share = at.step / at.steps
        return share if self.method.joint else (at.task + share) / len(self.stream)

    def newly_learnt(self, task: Task, last: bool) -> Sequence[Task]:
        """Return the tasks learnt with this one: itself, or all at the end of a joint method."""
        if not self.method.joint:
            return [task]
        return self.stream if last else []

    # What is measured.

    def add_statistics(self, task: Task) -> None:
        """Add the class statistics of a task that was just learnt."""
        if self.statistics is not None:
            grown = self.net.embedding != self.statistics.sums.shape[1]
            if grown or self.net.task_dependent:  # features can no longer be compared
                self.statistics = None
            else:
                self.statistics.append(class_statistics(self.net, task))

    def measure(self, numbers: Sequence[int], task_free: bool) -> list[Score]:
        """Measure tasks that were learnt."""
        tasks, tests = [self.stream[j] for j in numbers], [self.stream.test(j) for j in numbers]
        scores = [evaluate(self.net, *one) for one in zip(tasks, tests, strict=True)]
        if not task_free or not scores:
            return scores
        prototypes, statistics = self.session.prototypes, self.statistics
        without = evaluate_task_free(self.net, prototypes, tasks, tests, statistics)
        return [
            replace(score, **more._asdict()) for score, more in zip(scores, without, strict=True)
        ]

    def measure_before_learning(self, number: int) -> None:
        """Measure a task before it is learnt, as a shared head allows, for forward transfer."""
        with self.session.clock.phase("evaluate"):
            if number == 0:
                self.untrained = [
                    accuracy(self.net, 0, self.stream[j], self.stream.test(j))
                    for j in range(1, len(self.stream))
                ]
            else:
                task, test = self.stream[number], self.stream.test(number)
                self.before.append(accuracy(self.net, 0, task, test))

    def update_record(self) -> None:
        """Update the record with what was measured."""
        record = self.record
        task_known = self.matrix("task_known")
        record.accuracy_matrix = rows(task_known)
        record.average_accuracy = metrics.average_accuracy(task_known)
        record.backward_transfer = metrics.backward_transfer(task_known)
        record.forgetting = metrics.forgetting(task_known)
        record.forward_transfer = metrics.forward_transfer(
            self.before, self.untrained[: len(self.before)]
        )
        if self.plan.training.task_free != "never":
            by_confidence, by_prototype = self.matrix("by_confidence"), self.matrix("by_prototype")
            record.accuracy_matrix_task_free = rows(by_confidence)
            record.accuracy_matrix_task_free_prototypes = rows(by_prototype)
            record.average_accuracy_task_free = metrics.average_accuracy(by_confidence)
            record.average_accuracy_task_free_prototypes = metrics.average_accuracy(by_prototype)
            by_statistics = self.matrix("by_statistics")
            comparable = self.statistics is not None
            record.accuracy_matrix_task_free_statistics = rows(by_statistics) if comparable else []
            record.average_accuracy_task_free_statistics = (
                metrics.average_accuracy(by_statistics) if comparable else None
            )
        record.classes = self.class_results()
        record.memory_bytes = self.method.memory_bytes()
        record.parameters = sum(p.numel() for p in self.net.parameters())
        stored = self.method.stored_parameters(self.net)
        record.capacity = 100 * stored / self.base_parameters()
        layers = {layer.name: layer for layer in record.layers}
        for entry in self.method.layer_ranks():
            layer = layers.setdefault(entry.name, Layer(name=entry.name, dimension=entry.dimension))
            layer.ranks.append(entry.rank)
            layer.groups, layer.cosines = list(entry.groups), list(entry.cosines)
            if entry.units is not None:
                layer.units.append(entry.units)
            if entry.switched is not None:
                layer.switched.append(entry.switched)
        record.layers = list(layers.values())

    def base_parameters(self) -> int:
        """Return the size of the network as it was built, with heads for the tasks so far."""
        classes = [task.classes for task in self.stream][: len(self.scores)]
        if self.plan.network_options.heads == "shared":
            classes = classes[:1]
        return self.trunk_size + self.embedding * sum(classes)

    def matrix(self, kind: str) -> Tensor:
        """Return one kind of accuracy as A[i, j] so far, with NaN where nothing was measured."""
        size = len(self.scores)
        matrix = torch.full((size, size), math.nan, dtype=torch.float64)
        for i, row in enumerate(self.scores):
            for j, score in enumerate(row):
                matrix[i, j] = getattr(score, kind)
        return matrix

    def class_results(self) -> list[ClassResult]:
        """Return the accuracy of every class when learnt and now."""
        results = []
        for j, now in enumerate(self.scores[-1]):
            then = (self.scores[j] or self.scores[-1])[j].by_class
            results.append(
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
        return results

    # Saving and loading.

    def state_dict(self, unfinished: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the state of a run; `unfinished` is that of the training loop, within a task."""
        if self.events:
            self.events.flush()  # curves on disk must reach as far as the state
        session, names = self.session, {new: old for old, new in SAVED_SCORES.items()}
        seconds = Seconds(**session.clock.so_far())
        return {
            "plan": self.plan.as_dict(),
            "data": self.fingerprint,
            **session.state_dict(unfinished),
            "judge": vars(session.prototypes),
            "statistics": None if self.statistics is None else vars(self.statistics),
            "scores": [
                [
                    {names.get(name, name): value for name, value in vars(score).items()}
                    for score in row
                ]
                for row in self.scores
            ],
            "before": self.before,
            "untrained": self.untrained,
            "steps": self.steps,
            "record": {**self.record.model_dump(), "seconds": seconds.model_dump()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a saved state, with its settings, in a run that has not started."""
        self._refuse_others(state["plan"], state["data"])
        saved = Plan.from_dict(state["plan"], type(self.plan.method))
        saved = replace(saved, trunk=self.plan.trunk, weights=self.plan.weights)
        if saved.as_dict() != self.plan.as_dict():
            self._begin(saved)
        session = self.session
        session.load_state_dict(state, [task.classes for task in self.stream])
        session.prototypes = ClassPrototypes(**devices.to_device(state["judge"], self.device))
        statistics = state.get("statistics")  # states of earlier versions have none
        self.statistics = None if statistics is None else ClassStatistics(**statistics)
        self.scores = [
            [
                Score(**{SAVED_SCORES.get(name, name): value for name, value in score.items()})
                for score in row
            ]
            for row in state["scores"]
        ]
        self.before, self.untrained = list(state["before"]), list(state["untrained"])
        self.steps = state.get("steps", 0)  # states of earlier versions do not count them
        self.record = RunRecord.model_validate(state["record"])
        self.record.schema_version = SCHEMA_VERSION
        self.net.precision = devices.PRECISIONS[self.record.precision]  # not that of this machine
        session.clock.seconds = self.record.seconds.model_dump()

    def _finished_record(self, tell: Tell) -> RunRecord | None:
        """Return the record in the folder, if it is complete."""
        assert self.folder is not None
        if not (self.folder / FILE_NAME).exists():
            return None
        try:
            record = RunRecord.load(self.folder)
        except NewerRecord:
            raise
        except UserError as error:
            tell(f"{error}; it will be replaced")
            return None
        self._refuse_others(record.settings(), record.data)
        return record if record.complete else None

    def _refuse_others(self, values: Mapping[str, Any], data: str) -> None:
        """Refuse a folder that holds a run with other settings or other data."""
        differences = []
        if not self.plan.describes(values):
            other = identity(values, type(self.plan.method))
            names = [name for name, _, _ in nested_differences(other, self.plan.identity())]
            differences = [
                f"{name} {there} there, {here} here"
                for name, there, here in nested_differences(values, self.plan.as_dict())
                if name in names
            ]
        if data and data != self.fingerprint:
            differences.append(f"data {data} there, {self.fingerprint} here")
        if differences:
            more = f" and {len(differences) - 4} more" if len(differences) > 4 else ""
            raise UserError(
                f"'{self.folder}' holds another run: {shown(', '.join(differences[:4]))}{more}; "
                "give another folder, or start afresh",
                hint="other_run",
            )

    def save_record(self) -> None:
        """Write the record, if the run has a folder."""
        self.record.seconds = Seconds(**self.session.clock.so_far())
        if self.folder is not None:
            world().on_main_process(partial(write, self.record, self.folder))


def nested_differences(
    there: Mapping[str, Any], here: Mapping[str, Any], name: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield dotted names and both values where nested dicts differ; None for a missing value."""
    for key in {**there, **here}:
        label, old, new = f"{name}.{key}" if name else key, there.get(key), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from nested_differences(old, new, label)
        elif old != new:
            yield label, old, new


def write(record: RunRecord, folder: Path) -> None:
    """Write a record, and make its folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        record.save(folder)
    except OSError as error:
        raise UserError(f"the record cannot be written to '{folder}': {error}") from None


def remove_runs(folders: Iterable[Path]) -> None:
    """Remove records and checkpoints of runs, so that they start from the beginning.

    Not if torchrun has restarted the processes: it repeats the same command line, and what they
    have learnt since is not to be lost.
    """
    if restart_count():
        return
    with ExitStack() as locks:
        folders = list(folders)
        for folder in folders:
            locks.enter_context(locking(folder))
        for folder in folders:
            world().on_main_process(partial(_unlink, folder / FILE_NAME))
            CheckpointManager(folder).clear()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot start again in '{path.parent}': {error.strerror}") from None


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """Lock a folder while the block runs; the main process does it for all."""
    lock = Lock(folder)
    world().on_main_process(lock.__enter__)
    try:
        if world().size > 1:
            visible = {f"whether they see '{folder}'": wait_for_file(lock.path)}
            world().refuse_differences(visible, ONE_FOLDER)
        yield
    finally:
        lock.release()


def wait_for_file(path: Path) -> bool:
    """Tell whether a file exists; wait, because a network filesystem may show it late."""
    end = time.monotonic() + FILE_TIMEOUT
    while True:
        with suppress(OSError):
            if path.name in os.listdir(path.parent):  # not cached, as a lookup of the name may be
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


# Several processes.


def process_device(name: torch.device | str) -> torch.device:
    """Return the device of this name; with several processes, each gets its own GPU."""
    device = devices.resolve_device(name)
    if world().size == 1 or device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise UserError(
            f"device '{name}' is for one process: give cpu, or cuda for one GPU per process"
        )
    local, count = env_count("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if local > count:
        raise UserError(f"{local} processes for {count} GPUs on this machine: start one per GPU")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(own)
    return own


def refuse_several_processes(plan: Plan, stream: TaskStream) -> None:
    """Refuse a run that several processes cannot train together; one process always can."""
    size = world().size
    if size == 1:
        return
    if not plan.method.parallel:
        able = ", ".join(name for name, kind in METHODS.items() if kind.parallel)
        raise UserError(
            f"method '{plan.method.name}' cannot be trained by several processes: start one, or "
            f"choose among {able}"
        )
    if plan.training.batch_size < size:
        raise UserError(
            f"batch_size={plan.training.batch_size} is less than the {size} processes: give at "
            "least one sample for each"
        )
    for task in stream:
        if len(task.train) < size:
            raise UserError(
                f"task '{task.name}' has {len(task.train)} training samples for {size} processes: "
                "start fewer"
            )


def refuse_other_processes(plans: list[Plan], options: Mapping[str, object]) -> None:
    """Refuse processes that differ in their plans, their options or their versions."""
    settings = [plan.as_dict() for plan in plans]
    world().refuse_differences({**compared_versions(), "the settings": settings, **options})


def compared_versions() -> dict[str, str]:
    """Return the versions that must be the same in all processes."""
    installed = versions()
    return {f"the version of {name}": installed[name] for name in ("python", "classgrad", "torch")}
