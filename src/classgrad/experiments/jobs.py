"""Which runs there are to do, and how far each of them is: nothing here runs them."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgrad.errors import UserError
from classgrad.experiments.spec import Experiment
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.runs.run import has_saved_state, run_folder
from classgrad.runs.spec import Plan

CRASH_FILE = "crash.txt"  # the trace of a crash, in the folder of a run

State = Literal["done", "cut", "missing"]  # before it is run
Progress = Literal["waiting", "running", "done", "failed", "busy", "stopped"]  # while it is


@dataclass(frozen=True)
class Job:
    """A run, its folder, and the lines of tables it is for; `url` is where its files are, if any.

    With a URL the folder has no more than its record.
    """

    plan: Plan
    folder: Path
    labels: tuple[str, ...]
    url: str | None = None

    @property
    def label(self) -> str:
        """The first line it is for, and how many others share it."""
        more = len(self.labels) - 1
        return f"{self.labels[0]} (+{more})" if more else self.labels[0]

    @property
    def title(self) -> str:
        """What tells it from other jobs, in a sentence."""
        return f"{self.label}, seed {self.plan.seed}"

    def record(self) -> RunRecord | None:
        """Return the record in the folder, if it is one of this run; it may not be complete."""
        if not (self.folder / FILE_NAME).is_file():
            return None
        try:
            record = RunRecord.load(self.folder)
        except UserError:  # the run itself says what is wrong with it
            return None
        return record if self.plan.describes(record.settings()) else None

    def state(self) -> State:
        """Tell what there is to do: nothing, to resume it, or all of it."""
        record = self.record()
        if record is not None and record.complete:
            return "done"
        return "cut" if has_saved_state(self.folder) else "missing"


@dataclass
class Status:
    """How far a job is, by the messages of the process that runs it.

    A message is a JSON object. While the run goes on: `task`, `tasks`, `done` (a share of the
    whole), and `accuracy` and `transfer` of the tasks learnt so far; `tell`, a line for the user.
    The last one has `end`, which is `done`, `failed`, `busy` or `stopped`, and `why`.
    """

    job: Job
    state: Progress = "waiting"
    task: int = 0
    tasks: int = 0
    done: float = 0.0  # share of the whole run
    accuracy: float | None = None
    transfer: float | None = None
    why: str = ""  # it failed
    crash: bool = False  # it failed by a fault of the program
    starts: int = 0  # of its process
    began: float | None = None
    ended: float | None = None
    done_before: float | None = None  # share that was done when it began

    def begin(self) -> None:
        """Start to count the time."""
        self.state, self.began, self.done_before = "running", time.monotonic(), None

    def end(self, state: Progress, why: str = "", *, crash: bool = False) -> None:
        """Note how it ended."""
        self.state, self.why, self.crash = state, why, crash
        self.ended = time.monotonic()

    def hear(self, message: Mapping[str, Any]) -> None:
        """Note what a message says."""
        for name in ("task", "tasks", "done", "accuracy", "transfer"):
            if name in message:
                setattr(self, name, message[name])
        if self.done_before is None and "done" in message:
            self.done_before = self.done
        if "end" in message:
            self.end(message["end"], message.get("why", ""))

    @property
    def seconds(self) -> float:
        """Time since it began."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began

    @property
    def left(self) -> float | None:
        """Time it will still take, if that can be told."""
        if self.state != "running" or self.done_before is None:
            return None
        since = self.done - self.done_before
        return None if since < 0.01 else self.seconds * (1 - self.done) / since


def of_experiments(
    experiments: Sequence[Experiment], recipe: str, seeds: Iterable[int], out: Path
) -> list[Job]:
    """Return the runs of some experiments, each once however many lines it is for.

    All lines come with the first seed, then all with the next: tables are full early.
    """
    several = len(experiments) > 1
    return of_plans(
        (
            (f"{experiment.name}: {label}" if several else label, plan)
            for seed in seeds
            for experiment in experiments
            for label, (plan,) in experiment.plans(recipe, [seed]).items()
        ),
        out,
    )


def of_plans(labelled: Iterable[tuple[str, Plan]], out: Path) -> list[Job]:
    """Return a job for each different plan, with all labels it has."""
    plans: dict[Path, Plan] = {}
    labels: dict[Path, dict[str, None]] = {}
    for label, plan in labelled:
        folder = run_folder(out, plan)
        plans[folder] = plan
        labels.setdefault(folder, {})[label] = None
    return [Job(plan, folder, tuple(labels[folder])) for folder, plan in plans.items()]
