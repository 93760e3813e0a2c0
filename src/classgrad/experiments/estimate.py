"""Before the first run: whether every plan fits its data, and about how long it will take."""

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

WARM_UP = 2  # steps before those that count
TIMED = 1.0  # seconds of steps for each kind of network and batch
START = 3.0  # seconds that a process takes before it learns: to import torch, to load the data


@dataclass(frozen=True)
class Facts:
    """What a stream is like: training images in all, shape of an input, first and last task."""

    images: int
    input_shape: tuple[int, ...]
    classes: int  # of the first task
    last: Task


class Workload:
    """What runs need: each stream is loaded once, whatever the seed, and let go again.

    Each kind of network is built once.
    """

    def __init__(self, data_dir: Path | None = None) -> None:
        self.data_dir = data_dir
        self._facts: dict[str, Facts] = {}
        self._networks: dict[str, Network] = {}

    def check(self, jobs: Iterable[Job]) -> None:
        """Raise a `UserError` for the first job whose data are not there or do not suit it."""
        streams: dict[str, list[Plan]] = {}
        for job in jobs:
            streams.setdefault(stream_key(job.plan), []).append(job.plan)
        for plans in streams.values():
            stream = self._load(plans[0])
            for plan in plans:
                if plan.seed == plans[0].seed:  # what others differ in cannot be wrong
                    plan.method.replace().wrap(self.network(plan), stream, plan.seed)

    def facts(self, plan: Plan) -> Facts:
        """Return what the stream of a plan is like."""
        if stream_key(plan) not in self._facts:
            self._load(plan)
        return self._facts[stream_key(plan)]

    def network(self, plan: Plan) -> Network:
        """Return a copy of the network of a plan, with a head for the first task."""
        facts, options = self.facts(plan), plan.network_options.model_dump()
        key = repr((plan.network, options, facts.input_shape))
        if key not in self._networks:
            self._networks[key] = networks.build(
                plan.network, facts.input_shape, plan.seed, **options
            )
        net = copy.deepcopy(self._networks[key])
        net.add_task(facts.classes)
        return net

    def _load(self, plan: Plan) -> TaskStream:
        stream = load_stream(plan, self.data_dir)
        images = sum(len(task.train) for task in stream)
        facts = Facts(images, stream.input_shape, stream[0].classes, stream[-1])
        self._facts[stream_key(plan)] = facts
        return stream


def stream_key(plan: Plan) -> str:
    """Return what streams that differ in the seed only have in common."""
    return json.dumps([plan.benchmark, plan.benchmark_options], sort_keys=True)


class Estimate:
    """Estimates of runs on this machine, from records and, where there are none, from steps.

    The steps are taken with so many `threads`.
    """

    def __init__(
        self, workload: Workload, records: Sequence[RunRecord] = (), threads: int | None = None
    ) -> None:
        self.workload, self.threads = workload, threads
        self._known = [(record, plan) for record in records if (plan := plan_of(record))]
        self._steps: dict[str, float] = {}

    def of_job(self, job: Job) -> float:
        """Return the seconds a job will take, from where it is."""
        record = job.record()
        begun = record if record and record.tasks else None  # one without tasks tells nothing
        learnt = len(begun.accuracy_matrix) / len(begun.tasks) if begun else 0.0
        return START + (1 - learnt) * self.of_plan(job.plan)

    def of_plan(self, plan: Plan) -> float:
        """Return the seconds a whole run will take."""
        nearest = self.nearest(plan)
        if nearest:
            record, other = nearest
            return record.seconds.total * self.work(plan) / self.work(other)
        return self.work(plan) * self.step(plan) / plan.training.batch_size

    def nearest(self, plan: Plan) -> tuple[RunRecord, Plan] | None:
        """Return the finished run of the network on the benchmark that is most like a plan."""

        def likeness(known: tuple[RunRecord, Plan]) -> tuple[bool, bool]:
            other = known[1]
            same = other.method.name == plan.method.name
            return same, other.benchmark_options == plan.benchmark_options

        alike = [
            known
            for known in self._known
            if (known[1].benchmark, known[1].network) == (plan.benchmark, plan.network)
        ]
        return max(alike, key=likeness, default=None)

    def work(self, plan: Plan) -> float:
        """Return how many images a run trains on, each as often as it does."""
        facts = self.workload.facts(plan)
        rounds = plan.method.rounds(facts.last)
        epochs = getattr(plan.method, "child_epochs", plan.training.epochs)  # RCL's, in each round
        copies = 2 if getattr(plan.method, "contrast", 0) > 0 else 1
        return float(facts.images * rounds * epochs * copies)

    def step(self, plan: Plan) -> float:
        """Return the seconds a plain training step takes."""
        shape = self.workload.facts(plan).input_shape
        key = repr((plan.network, plan.network_options, shape, plan.training.batch_size))
        if key not in self._steps:
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads or before)
            try:
                self._steps[key] = timed_step(plan, self.workload.network(plan), shape)
            finally:
                torch.set_num_threads(before)
        return self._steps[key]


def in_all(seconds: Sequence[float], count: int) -> float:
    """Return how long jobs take together, so many at once.

    >>> in_all([4, 2, 2], count=2), in_all([9, 2, 2], count=2)
    (4.0, 9)
    """
    return max(sum(seconds) / count, max(seconds, default=0.0))


def timed_step(plan: Plan, net: Network, shape: tuple[int, ...]) -> float:
    """Take some plain steps on random images; return the seconds of one."""
    rng = seeds.generator(plan.seed, "estimate")
    net.set_generator(rng)
    net.train()
    images = torch.rand(plan.training.batch_size, *shape, generator=rng)
    labels = torch.zeros(plan.training.batch_size, dtype=torch.long)
    optimizer = plan.training.optimizer_for(list(net.parameters()))
    taken: list[float] = []
    while len(taken) <= WARM_UP or sum(taken) < TIMED:
        began = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(net(images, 0), labels).backward()
        optimizer.step()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken[WARM_UP:])


def finished_records(out: Path, device: str = "cpu") -> list[RunRecord]:
    """Return the complete records of a folder's runs, by one process on this kind of device."""
    records = []
    for path in sorted(out.glob(f"*/{FILE_NAME}")):
        try:
            record = RunRecord.load(path)
        except UserError:  # it is of no use for an estimate
            continue
        alike = record.device.partition(":")[0] == device.partition(":")[0]
        if record.complete and alike and record.processes == 1:
            records.append(record)
    return records


def plan_of(record: RunRecord) -> Plan | None:
    """Return the plan of a record, if it is one of this version."""
    try:
        return Plan.from_dict(record.model_dump())
    except (UserError, KeyError):
        return None
