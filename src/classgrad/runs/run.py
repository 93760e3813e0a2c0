"""A run: learn the tasks of a stream one after another, measure after each, keep a record."""

import glob
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import replace
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

from classgrad import benchmarks, devices, networks
from classgrad.benchmarks.base import renormalise
from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.errors import raising_bad_checkpoint
from classgrad.checkpoints.lock import lock_above
from classgrad.checkpoints.manager import FOLDER, ONE_FOLDER, locking
from classgrad.distributed import process_device, restart_count, world
from classgrad.errors import UserError, shown
from classgrad.methods import METHODS, own
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
from classgrad.runs import kept, stability
from classgrad.runs.commit import package_commit
from classgrad.runs.events import Events, has_curves
from classgrad.runs.held import add_held, held_of
from classgrad.runs.kept import Keep, Result
from classgrad.runs.record import (
    FILE_NAME,
    SCHEMA_VERSION,
    ClassResult,
    Curve,
    Layer,
    NewerRecord,
    RunRecord,
    Seconds,
    WithinTask,
    rows,
    versions,
)
from classgrad.runs.spec import Plan, identity, make_plan
from classgrad.tasks import Split, Task, TaskStream
from classgrad.training import metrics
from classgrad.training.config import Training
from classgrad.training.log import TrainingLog, note
from classgrad.training.loop import LossNotFinite, Observer, Progress, SampleNotFinite
from classgrad.training.session import Session

# Names of accuracies in saved states, and in `Score`.
SAVED_SCORES = {"given": "task_known", "confident": "by_confidence", "nearest": "by_prototype"}


@overload
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
    keep: None = None,
) -> RunRecord: ...


@overload
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
    keep: Keep,
) -> Result: ...


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
    keep: Keep | None = None,
) -> RunRecord | Result:
    """Learn a stream of tasks with a method and return the record.

    Names are looked up in the tables, and their settings come from the recipe and from `values`.
    Where a method or `training` is given as an object, the recipe fills in what that leaves to its
    defaults. A network of your own is a trunk from inputs to (n, embedding), or a function that
    makes one; it is copied. With `out` the record and the state are also written to a new folder
    inside it; the same call again resumes a run that was cut short, and returns the record of one
    that was finished. A run can be resumed on any `device`. The logger `classgrad` of Python's
    `logging` has a line for each task, and for epochs of long ones.

    With `keep` the network and the method are returned with the record, and with `out` they are
    also written beside it: those at the end, "last", or those after every task, "task". `load_run`
    loads them.
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
    folder = None if out is None else run_folder(out, plan)
    running = Run(plan, stream, folder, device=device, keep=keep)
    record = running.execute(observer) if folder is None else running.resume(observer)
    return record if keep is None else running.result(len(stream))


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
    `tensorboard` curves are written there too, and with `keep` what was learnt. `restored` is for a
    run that only loads what another one has kept, see `networks.build`.
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
        keep: str | None = None,
        restored: bool = False,
    ) -> None:
        if keep not in (None, "last", "task"):
            raise UserError(f"keep takes last or task (got {shown(repr(keep))})")
        if keep == "task" and folder is None:
            raise UserError("to keep what was learnt after every task, give a folder for results")
        self.keep, self.restored = keep, restored
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
        self.log = TrainingLog(plan.method.name, len(self.stream))
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
            net = networks.build(plan.network, shape, plan.seed, restored=self.restored, **options)
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
            method_source=own.source(type(plan.method)),
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

    def resume(self, observer: Observer | None = None, *, locked: bool = False) -> RunRecord:
        """Learn the remaining tasks, and save the state in the folder; return the record.

        The record of a finished run is returned as it is. `locked` means that another process,
        which waits for this one, has locked the folder.
        """
        assert self.folder is not None
        assert self.checkpoints is not None
        with nullcontext() if locked else locking(self.folder):
            finished = self._finished_record()
            seen = {f"whether '{self.folder}' holds a record": bool(finished)}
            world().refuse_differences(seen, ONE_FOLDER)
            if finished:
                if self.keep:
                    kept.refuse_missing(self.folder, self.kept_tasks(len(self.stream)))
                    self.load_kept(len(self.stream), finished)
                curves = self.tensorboard and not has_curves(self.folder)
                more = ", so no curves are written" if curves else ""
                note(f"finished before{more}", title=self.log.title, hint="fresh")
                self.checkpoints.clear()  # a run killed right at its end leaves some
                return finished
            loaded = self.checkpoints.load()
            counter = loaded and loaded.counter
            world().refuse_differences({f"checkpoints in '{self.folder}'": counter}, ONE_FOLDER)
            if loaded:
                for warning in loaded.warnings:
                    self._warn(f"{warning}; resuming from the one before")
                with raising_bad_checkpoint(f"the state in '{self.folder}'"):
                    self.load_state_dict(loaded.state)
                kept.refuse_missing(self.folder, self.kept_tasks(len(self.scores)))
                note(f"resuming with task {len(self.scores) + 1}", title=self.log.title)
            record = self.execute(observer)
            self.checkpoints.clear()
            return record

    def _warn(self, text: str) -> None:
        note(text, title=self.log.title, level=logging.WARNING)

    def execute(self, observer: Observer | None = None) -> RunRecord:
        """Learn the remaining tasks; return the record."""
        self.observer = observer
        self.record.data = self.fingerprint
        self.record.device, self.record.processes = str(self.device), world().size
        self.record.threads = torch.get_num_threads()
        if package_commit() not in self.record.commits:
            self.record.commits.append(package_commit())
        self._update_log()
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
                if self.folder is not None and number + 1 in self.kept_tasks(number + 1):
                    learnt = self.session.state_dict()
                    world().on_main_process(partial(kept.write, self.folder, number + 1, learnt))
                # Before anything is saved, because a method may refuse an incomplete state.
                saving = self.checkpoints is not None and not self.record.complete
                state = self.state_dict() if saving else {}
                self.save_record()
                if self.events:
                    self.events.task(self.steps, self.record)
                if saving and self.checkpoints:
                    self.checkpoints.save(state)
        except (LossNotFinite, SampleNotFinite):
            self.save_record()
            raise
        finally:
            self.net.frozen_outputs = None
            self.method.close()
            if self.events:
                self.events.close()
        return self.record

    def kept_tasks(self, learnt: int) -> Sequence[int]:
        """Return after which of the tasks learnt so far what they have left is kept."""
        count = len(self.stream)
        if self.keep == "task" and not self.method.joint:
            return range(1, learnt + 1)
        return [count] if self.keep and learnt == count else []

    def load_kept(self, tasks: int, record: RunRecord) -> None:
        """Load what the run with this record has kept, in one that has not started."""
        assert self.folder is not None
        self._begin_as(record.settings(), record.data)
        with raising_bad_checkpoint(f"'{kept.file_after(self.folder, tasks)}'"):
            state = kept.read(self.folder, tasks)
            self.session.load_state_dict(state, [task.classes for task in self.stream])
            self.net.precision = devices.PRECISIONS[record.precision]
        self.record = record

    def result(self, tasks: int) -> Result:
        """Return the record with what was learnt."""
        return Result(self.record, self.net, self.method, self.stream, tasks)

    def learn(self, number: int) -> None:
        """Learn one task, and measure all tasks learnt so far."""
        task, session = self.stream[number], self.session
        self.log.begin_task()
        if not session.unfinished:
            session.add_task(task.classes)
            if self.net.shared_head and not self.method.joint:
                self.measure_before_learning(number)
            if self.tests_earlier:
                self.record.within_tasks.append(WithinTask())
                if number:
                    self.test_earlier(number, 0)
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
            self.measure_held(number, last)
        self.update_record()
        self._update_log()
        if last or not self.method.joint:
            self.log.end_task(number, task.name, (number + 1) / len(self.stream))

    def _update_log(self) -> None:
        self.log.accuracy = self.record.average_accuracy
        self.log.transfer = self.record.backward_transfer

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
        """Return the data of a task that are used: few schedules look at validation data."""
        valid = [task.valid] if self.plan.training.looks_at_validation else []
        return task.train, *valid, self.stream.test(task.id)

    def observe(self, at: Progress) -> None:
        """Count a step of training, and pass it to the log, the events and the observer."""
        self.steps += 1
        self.log.step(at, self.stream[at.task].name, self.share_done(at))
        count = self.plan.training.stability
        if self.tests_earlier and at.task and at.step in stability.steps(at.steps, count):
            self.test_earlier(at.task, at.step)
        if self.events:
            self.events.step(self.steps, at)
        if self.observer:
            self.observer(at)

    @property
    def tests_earlier(self) -> bool:
        """Whether earlier tasks are tested within a task."""
        return self.plan.training.stability > 0 and not self.method.joint

    def share_done(self, at: Progress) -> float:
        """Return the share of the whole run that is done, from 0 to 1."""
        share = at.step / at.steps
        return share if self.method.joint else (at.task + share) / len(self.stream)

    def progress(self, at: Progress) -> dict[str, Any]:
        """Return the figures of a message on a step."""
        return self.log.values(at, self.stream[at.task].name, self.share_done(at))

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

    def measure_held(self, number: int, last: bool) -> None:
        """Measure the energy held of each class of the newest task; at the end of the run, of all.

        Of training images, and of test images, which no basis was made of.
        """
        projector = self.method.gradient_projector()
        count = self.plan.training.held_images
        if projector is None or not projector.sites or not count:
            return
        known = sum(task.classes for task in self.stream[:number])
        for task in self.stream if last else [self.stream[number]]:
            for images, split in (("train", task.train), ("test", self.stream.test(task.id))):
                shares = held_of(self.net, projector, task, split, count)
                if task.id == number:
                    add_held(self.record, f"learnt_{images}", shares, known)
                if last:
                    add_held(self.record, f"final_{images}", shares)

    def test_earlier(self, number: int, step: int) -> None:
        """Test the tasks before one within it, after some of its steps."""
        with self.session.clock.phase("evaluate"):
            accuracies = stability.test_earlier(self.net, self.stream, number)
        within = self.record.within_tasks[-1]
        within.steps.append(step)
        within.accuracy.append(accuracies)

    def curve(self) -> Curve:
        """Return the losses of the newest task."""
        fits = self.session.curves
        rounds = [len(one.train) for one in fits]
        return Curve(
            epochs=sum(rounds),
            rounds=rounds if len(rounds) > 1 else [],
            train=[figure(value) for one in fits for value in one.train],
            valid=[figure(value) for one in fits for value in one.valid],
            valid_accuracy=[figure(value) for one in fits for value in one.valid_accuracy],
        )

    def update_record(self) -> None:
        """Update the record with what was measured."""
        record = self.record
        task_known = self.matrix("task_known")
        record.accuracy_matrix = rows(task_known)
        record.average_accuracy = metrics.average_accuracy(task_known)
        record.backward_transfer = metrics.backward_transfer(task_known)
        record.forgetting = metrics.forgetting(task_known)
        record.average_incremental_accuracy = metrics.average_incremental_accuracy(task_known)
        record.accuracy_when_learnt = metrics.accuracy_when_learnt(task_known)
        record.lowest_accuracy = metrics.lowest_accuracy(
            task_known, stability.lowest(record.within_tasks, task_known)
        )
        unknown = [Curve(epochs=0)] * (len(self.scores) - 1 - len(record.curves))
        record.curves += [*unknown, self.curve()]
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
            chosen = [one for score in self.scores[-1] if (one := score.chosen_tasks)]
            ways = list(chosen[0]) if chosen else []
            record.task_confusion = {way: [list(one[way]) for one in chosen] for way in ways}
        record.classes = self.class_results()
        record.memory_bytes = self.method.memory_bytes()
        kept = {*self.net.parameters(), *self.net.buffers()}
        record.network_bytes = sum(tensor.nbytes for tensor in kept)
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
        self._begin_as(state["plan"], state["data"])
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

    def _begin_as(self, values: Mapping[str, Any], data: str) -> None:
        """Set up the run again with the settings it was saved with, if they differ from the plan.

        Those of another run, or other data, are refused.
        """
        self._refuse_others(values, data)
        saved = Plan.from_dict(values, type(self.plan.method))
        saved = replace(saved, trunk=self.plan.trunk, weights=self.plan.weights)
        if saved.as_dict() != self.plan.as_dict():
            self._begin(saved)

    def _finished_record(self) -> RunRecord | None:
        """Return the record in the folder, if it is complete."""
        assert self.folder is not None
        if not (self.folder / FILE_NAME).exists():
            return None
        try:
            record = RunRecord.load(self.folder)
        except NewerRecord:
            raise
        except UserError as error:
            self._warn(f"{error}; it will be replaced")
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


def figure(value: float | None) -> float | None:
    """Return a figure of a curve with six digits; None if it is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


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
    """Write a record, and make its folder, unless this process has lost the lock it had on it."""
    if (lock := lock_above(folder / FILE_NAME)) is not None:
        lock.refuse_lost()
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
            world().on_main_process(partial(kept.remove, folder))
            CheckpointManager(folder).clear()


def _unlink(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(f"cannot start again in '{path.parent}': {error.strerror}") from None


# Several processes.


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
