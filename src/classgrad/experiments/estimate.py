"""How long runs will take, about: by runs that have ended, else by a few training steps."""

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.nn import functional

from classgrad import networks, seeds
from classgrad.errors import UserError
from classgrad.experiments.checks import Facts
from classgrad.experiments.jobs import Job
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.runs.spec import Plan

WARM_UP = 2  # steps before those that count
TIMED = 1.0  # seconds of steps for each kind of network and batch
START = 3.0  # seconds that a process takes before it learns: to import torch, to load the data


class Estimate:
    """Estimates of runs on this machine, from records and, where there are none, from steps.

    `facts` tells what the stream of a plan is like; the steps are taken with so many `threads`.
    """

    def __init__(
        self, records: Sequence[RunRecord], facts: Callable[[Plan], Facts], threads: int | None
    ) -> None:
        self.facts, self.threads = facts, threads
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
        facts = self.facts(plan)
        rounds = plan.method.rounds(facts.last)
        epochs = getattr(plan.method, "child_epochs", plan.training.epochs)  # RCL's, in each round
        copies = 2 if getattr(plan.method, "contrast", 0) > 0 else 1
        return float(facts.images * rounds * epochs * copies)

    def step(self, plan: Plan) -> float:
        """Return the seconds a plain training step takes."""
        shape = self.facts(plan).input_shape
        key = repr((plan.network, plan.network_options, shape, plan.training.batch_size))
        if key not in self._steps:
            before = torch.get_num_threads()
            torch.set_num_threads(self.threads or before)
            try:
                self._steps[key] = timed_step(plan, self.facts(plan))
            finally:
                torch.set_num_threads(before)
        return self._steps[key]


def in_all(seconds: Sequence[float], count: int) -> float:
    """Return how long jobs take together, so many at once.

    >>> in_all([4, 2, 2], count=2), in_all([9, 2, 2], count=2)
    (4.0, 9)
    """
    return max(sum(seconds) / count, max(seconds, default=0.0))


def timed_step(plan: Plan, facts: Facts) -> float:
    """Take some plain steps on random images; return the seconds of one."""
    options = plan.network_options.model_dump()
    net = networks.build(plan.network, facts.input_shape, plan.seed, **options)
    net.add_task(facts.last.classes)
    chance = seeds.generator(plan.seed, "estimate")
    net.set_generator(chance)
    net.train()
    images = torch.rand(plan.training.batch_size, *facts.input_shape, generator=chance)
    labels = torch.arange(plan.training.batch_size) % facts.last.classes
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
    found = []
    for path in sorted(out.glob(f"*/{FILE_NAME}")):
        try:
            record = RunRecord.load(path)
        except UserError:  # it is of no use for an estimate
            continue
        alike = record.device.partition(":")[0] == device.partition(":")[0]
        if record.complete and alike and record.processes == 1:
            found.append(record)
    return found


def plan_of(record: RunRecord) -> Plan | None:
    """Return the plan of a record, if it is one of this version."""
    try:
        return Plan.from_dict(record.model_dump())
    except (UserError, KeyError):
        return None
