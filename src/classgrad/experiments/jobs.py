"""Jobs: the runs that experiments need, and the progress of each. Executors run them."""

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgrad.checkpoints.lock import InUse
from classgrad.errors import Diverged, UserError
from classgrad.experiments.spec import Experiment
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.runs.run import Run, has_saved_state, run_folder
from classgrad.runs.spec import Plan
from classgrad.training.log import as_message, handled, seconds_left
from classgrad.training.loop import Observer, Progress

CRASH_FILE = "crash.txt"  # the trace of a crash, in the folder of a run
MESSAGE_INTERVAL = 0.2  # seconds between two messages on progress

State = Literal["done", "cut", "missing"]  # on disk, before a pool runs it
JobState = Literal["waiting", "running", "done", "failed", "busy", "stopped"]  # in a pool
Send = Callable[[dict[str, Any]], None]  # sends a message, see `Status`


@dataclass(frozen=True)
class Job:
    """A run, its folder, and the labels of the lines it is for.

    With a `url` its files are there, and the folder has only a copy of its record.
    """

    plan: Plan
    folder: Path
    labels: tuple[str, ...] = ()
    url: str | None = None

    @property
    def place(self) -> str:
        """Where its files are: its URL or its folder."""
        return self.url or str(self.folder)

    @property
    def label(self) -> str:
        """The first of its labels, and the number of others."""
        more = len(self.labels) - 1
        return f"{self.labels[0]} (+{more})" if more else self.labels[0]

    @property
    def title(self) -> str:
        """Its label and seed, which tell it from other jobs."""
        return f"{self.label}, seed {self.plan.seed}"

    def record(self) -> RunRecord | None:
        """Return the record in the folder, complete or not, if it belongs to this run."""
        if not (self.folder / FILE_NAME).is_file():
            return None
        try:
            record = RunRecord.load(self.folder)
        except UserError:  # the run itself will report what is wrong with it
            return None
        return record if self.plan.has_values(record.settings()) else None

    def state(self) -> State:
        """Return whether it is done, was cut short and can be resumed, or has not begun."""
        record = self.record()
        if record is not None and record.complete:
            return "done"
        return "cut" if has_saved_state(self.folder) else "missing"


@dataclass
class Status:
    """The progress of a job, from the messages of the process that runs it.

    A message is a JSON object; docs/reproduce.md describes all. A hint is for the command line, as
    in `UserError`; often it is None.
    """

    job: Job
    state: JobState = "waiting"
    task: int = 0
    tasks: int = 0
    done: float = 0.0  # share of the whole run
    accuracy: float | None = None
    transfer: float | None = None
    why: str = ""  # the reason, if it failed
    hint: str | None = None  # for the command line, beside the reason
    crash: bool = False  # whether it failed because of a bug
    diverged: bool = False  # whether it failed because training diverged
    starts: int = 0  # times its process was started
    began: float | None = None
    ended: float | None = None
    done_before: float | None = None  # share that was already done when it began

    def begin(self) -> None:
        """Mark it as running, and start its clock."""
        self.state, self.began, self.done_before = "running", time.monotonic(), None

    def end(
        self, state: JobState, why: str = "", *, hint: str | None = None, crash: bool = False
    ) -> None:
        """Mark it as ended in a certain state."""
        self.state, self.why, self.hint, self.crash = state, why, hint, crash
        self.ended = time.monotonic()

    def update(self, message: Mapping[str, Any]) -> None:
        """Take over the values of a message."""
        for name in ("task", "tasks", "done", "accuracy", "transfer"):
            if name in message:
                setattr(self, name, message[name])
        if self.done_before is None and "done" in message:
            self.done_before = self.done
        if "end" in message:
            self.end(message["end"], message.get("why", ""), hint=message.get("hint"))
            self.diverged = message.get("diverged", False)

    @property
    def seconds(self) -> float:
        """Seconds since it began, or that it took."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began

    @property
    def left(self) -> float | None:
        """Estimated seconds until it ends; None while there is too little to go by."""
        if self.state != "running" or self.done_before is None:
            return None
        return seconds_left(self.seconds, self.done, self.done_before)


def resume_with_messages(
    run: Run, send: Send, *, locked: bool = False, verbose: bool = False
) -> RunRecord:
    """Start or resume a run, and send what it logs and its progress; return its record."""
    with handled(
        lambda record: send(as_message(record)), logging.DEBUG if verbose else logging.INFO
    ):
        return run.resume(progress_sender(run, send), locked=locked)


def progress_sender(run: Run, send: Send) -> Observer:
    """Return an observer that sends messages on the progress of a run, a few times a second."""
    sent = 0.0

    def observer(at: Progress) -> None:
        nonlocal sent
        if time.monotonic() - sent >= MESSAGE_INTERVAL:
            sent = time.monotonic()
            send({"event": "progress", **run.progress(at)})

    return observer


def end_message(error: BaseException) -> dict[str, Any]:
    """Return the last message of a run that ended with an error, or was stopped."""
    if isinstance(error, UserError):
        end = "busy" if isinstance(error, InUse) else "failed"
        diverged = isinstance(error, Diverged)
        return {"end": end, "why": str(error), "hint": error.hint, "diverged": diverged}
    return {"end": "stopped"}


def done_message(record: RunRecord) -> dict[str, Any]:
    """Return the last message of a run that came to its end."""
    figures = {"accuracy": record.average_accuracy, "transfer": record.backward_transfer}
    return {"end": "done", "done": 1.0, **figures}


def jobs_of_experiments(
    experiments: Sequence[Experiment], recipe: str, seeds: Iterable[int], out: Path
) -> list[Job]:
    """Return the jobs of some experiments, each once even if several lines need it.

    All lines come with the first seed, then all with the next, so that tables fill up early.
    """
    several = len(experiments) > 1
    return jobs_of_plans(
        (
            (f"{experiment.name}: {label}" if several else label, plan)
            for seed in seeds
            for experiment in experiments
            for label, (plan,) in experiment.plans(recipe, [seed]).items()
        ),
        out,
    )


def jobs_of_plans(labelled: Iterable[tuple[str, Plan]], out: Path) -> list[Job]:
    """Return a job for each distinct plan, with all its labels."""
    plans: dict[Path, Plan] = {}
    labels: dict[Path, dict[str, None]] = {}
    for label, plan in labelled:
        folder = run_folder(out, plan, same_values=True)
        plans[folder] = plan
        labels.setdefault(folder, {})[label] = None
    return [Job(plan, folder, tuple(labels[folder])) for folder, plan in plans.items()]
