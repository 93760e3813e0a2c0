"""Before the first run: check every plan against its data, and estimate how long it will take."""

import copy
import json
import statistics
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from classgrad import networks, seeds
from classgrad.errors import UserError
from classgrad.experiments.jobs import Job
from classgrad.networks import Network
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.runs.run import load_stream
from classgrad.runs.spec import Plan
from classgrad.tasks import Task, TaskStream

WARM_UP = 2  # steps that are not timed
TIMED_SECONDS = 1.0  # of steps for each kind of network and batch
START_SECONDS = 3.0  # that a process takes to import torch and load the data


@dataclass(frozen=True)
class StreamSummary:
    """What an estimate needs of a stream, so that the stream itself need not be kept."""

    images: int  # for training, of all tasks
    input_shape: tuple[int, ...]
    classes: int  # of the first task
    last: Task


class Workload:
    """Streams and networks of runs, each made once: seeds do not matter for checks and estimates.

    Only summaries of streams are kept.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self._summaries: dict[str, StreamSummary] = {}
        self._networks: dict[str, Network] = {}

    def check(self, jobs: Iterable[Job]) -> None:
        """Raise a `UserError` for the first job whose data are missing or do not fit it."""
        streams: dict[str, list[Plan]] = {}
        for job in jobs:
            streams.setdefault(stream_key(job.plan), []).append(job.plan)
        for plans in streams.values():
            stream = self._load(plans[0])
            for plan in plans:
                if plan.seed == plans[0].seed:  # another seed cannot make a plan invalid
                    plan.method.replace().wrap(self.network(plan), stream, plan.seed)

    def summary(self, plan: Plan) -> StreamSummary:
        """Return the summary of the stream of a plan."""
        if stream_key(plan) not in self._summaries:
            self._load(plan)
        return self._summaries[stream_key(plan)]

    def network(self, plan: Plan) -> Network:
        """Return a copy of the network of a plan, with a head for the first task."""
        summary, options = self.summary(plan), plan.network_options.model_dump()
        key = repr((plan.network, options, summary.input_shape))
        if key not in self._networks:
            self._networks[key] = networks.build(
                plan.network, summary.input_shape, plan.seed, **options
            )
        net = copy.deepcopy(self._networks[key])
        net.add_task(summary.classes)
        return net

    def _load(self, plan: Plan) -> TaskStream:
        stream = load_stream(plan, self.data_dir)
        images = sum(len(task.train) for task in stream)
        summary = StreamSummary(images, stream.input_shape, stream[0].classes, stream[-1])
        self._summaries[stream_key(plan)] = summary
        return stream


def stream_key(plan: Plan) -> str:
    """Return a key that is the same for streams that differ only in their seed."""
    return json.dumps([plan.benchmark, plan.benchmark_options], sort_keys=True)


class Estimate:
    """Estimates of run times on this machine, from records or, where there are none, timed steps.

    The steps are timed with `threads` threads.
    """

    def __init__(
        self, workload: Workload, records: Sequence[RunRecord] = (), threads: int | None = None
    ) -> None:
        self.workload, self.threads = workload, threads
        self._known = [(record, plan) for record in records if (plan := plan_of(record))]
        self._steps: dict[str, float] = {}

    def of_job(self, job: Job) -> float:
        """Return the seconds the rest of a job will take."""
        record = job.record()
        learnt = len(record.accuracy_matrix) / len(record.tasks) if record and record.tasks else 0.0
        return START_SECONDS + (1 - learnt) * self.of_plan(job.plan)

    def of_plan(self, plan: Plan) -> float:
        """Return the seconds a whole run will take."""
        nearest = self.nearest(plan)
        if nearest:
            record, other = nearest
            return record.seconds.total * self.work(plan) / self.work(other)
        return self.work(plan) * self.step(plan) / plan.training.batch_size

    def nearest(self, plan: Plan) -> tuple[RunRecord, Plan] | None:
        """Return the finished run that is most like a plan, of its benchmark and network."""

        def likeness(known: tuple[RunRecord, Plan]) -> tuple[bool, bool]:
            other = known[1]
            same_method = other.method.name == plan.method.name
            return same_method, other.benchmark_options == plan.benchmark_options

        candidates = [
            known
            for known in self._known
            if (known[1].benchmark, known[1].network) == (plan.benchmark, plan.network)
        ]
        return max(candidates, key=likeness, default=None)

    def work(self, plan: Plan) -> float:
        """Return the number of images a run trains on, counted once for each time."""
        summary = self.workload.summary(plan)
        rounds = plan.method.rounds(summary.last)
        epochs = getattr(plan.method, "child_epochs", plan.training.epochs)  # RCL's, in each round
        epochs *= getattr(plan.method, "epoch_factor", 1)  # multitask's
        copies = 2 if getattr(plan.method, "contrast", 0) > 0 else 1
        return float(summary.images * rounds * epochs * copies)

    def step(self, plan: Plan) -> float:
        """Return the seconds a plain training step takes."""
        shape = self.workload.summary(plan).input_shape
        key = repr((plan.network, plan.network_options, shape, plan.training.batch_size))
        if key not in self._steps:
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads or before)
            try:
                self._steps[key] = timed_step(plan, self.workload.network(plan), shape)
            finally:
                torch.set_num_threads(before)
        return self._steps[key]


def total_seconds(seconds: Sequence[float], count: int) -> float:
    """Return how long jobs take together, with `count` of them in parallel.

    >>> total_seconds([4, 2, 2], count=2), total_seconds([9, 2, 2], count=2)
    (4.0, 9)
    """
    return max(sum(seconds) / count, max(seconds, default=0.0))


def timed_step(plan: Plan, net: Network, shape: tuple[int, ...]) -> float:
    """Time some plain training steps on random images; return the median seconds of a step."""
    rng = seeds.generator(plan.seed, "estimate")
    net.set_generator(rng)
    net.train()
    images = torch.rand(plan.training.batch_size, *shape, generator=rng)
    labels = torch.zeros(plan.training.batch_size, dtype=torch.long)
    optimizer = plan.training.optimizer_for(list(net.parameters()))
    taken: list[float] = []
    while len(taken) <= WARM_UP or sum(taken) < TIMED_SECONDS:
        began = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(net(images, 0), labels).backward()
        optimizer.step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM_UP:])


def finished_records(out: Path, device: str = "cpu") -> list[RunRecord]:
    """Return the complete records in a folder that one process made on this type of device."""
    records = []
    for path in sorted(out.glob(f"*/{FILE_NAME}")):
        try:
            record = RunRecord.load(path)
        except UserError:  # an unreadable record is of no use for an estimate
            continue
        same_device = record.device.partition(":")[0] == device.partition(":")[0]
        if record.complete and same_device and record.processes == 1:
            records.append(record)
    return records


def plan_of(record: RunRecord) -> Plan | None:
    """Return the plan of a record, or None if this version cannot read it."""
    try:
        return Plan.from_dict(record.model_dump())
    except (UserError, KeyError):
        return None
