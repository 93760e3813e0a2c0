"""What can be known before the first run: the data are there, and every plan fits them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from classgrad.experiments.jobs import Job
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import Plan
from classgrad.tasks import Task, TaskStream


@dataclass(frozen=True)
class Facts:
    """What a stream is like: training images in all, shape of an input, its last task."""

    images: int
    input_shape: tuple[int, ...]
    last: Task


class Streams:
    """What streams are like; each is loaded once, whatever the seed, and let go again."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self._facts: dict[str, Facts] = {}

    def facts(self, plan: Plan) -> Facts:
        """Return what the stream of a plan is like."""
        key = key_of(plan)
        if key not in self._facts:
            self._note(key, load_stream(plan, self.data_dir))
        return self._facts[key]

    def refuse_what_cannot_run(self, jobs: Sequence[Job]) -> None:
        """Raise a `UserError` for the first job whose data are not there or do not suit it."""
        groups: dict[str, list[Plan]] = {}
        for job in jobs:
            groups.setdefault(key_of(job.plan), []).append(job.plan)
        for key, plans in groups.items():
            stream = load_stream(plans[0], self.data_dir)
            self._note(key, stream)
            for plan in plans:
                if plan.seed == plans[0].seed:  # what others differ in cannot be wrong
                    Run(plan, stream)

    def _note(self, key: str, stream: TaskStream) -> None:
        images = sum(len(task.train) for task in stream)
        self._facts[key] = Facts(images, stream.input_shape, stream[-1])


def key_of(plan: Plan) -> str:
    """Return what streams that differ in the seed only have in common."""
    return json.dumps([plan.benchmark, plan.benchmark_options], sort_keys=True)
