"""Jobs: the runs that experiments need, and the progress of each. Executors run them."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgrad.checkpoints.lock import InUse
from classgrad.errors import UserError
from classgrad.experiments.spec import Experiment
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.runs.run import Run, has_saved_state, run_folder
from classgrad.runs.spec import Plan
from classgrad.training.loop import Progress

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

    A message is a JSON object. The first of `classgrad run` has `folder`, the
    place of the job, and `plan`, which stands for its settings.
    During the run it has `task`, `tasks`, `done` (a share of the whole), and `accuracy` and
    `transfer` of the tasks learnt so far; or `tell`, a line for the user. The last message has
    `end`, which is `done`, `failed`, `busy` or `stopped`, and `why`.
    """

    job: Job
    state: JobState = "waiting"
    task: int = 0
    tasks: int = 0
    done: float = 0.0  # share of the whole run
    accuracy: float | None = None
    transfer: float | None = None
    why: str = ""  # the reason, if it failed
    crash: bool = False  # whether it failed because of a bug
    starts: int = 0  # times its process was started
    began: float | None = None
    ended: float | None = None
    done_before: float | None = None  # share that was already done when it began

    def begin(self) -> None:
        """Mark it as running, and start its clock."""
        self.state, self.began, self.done_before = "running", time.monotonic(), None

    def end(self, state: JobState, why: str = "", *, crash: bool = False) -> None:
        """Mark it as ended in a certain state."""
        self.state, self.why, self.crash = state, why, crash
        self.ended = time.monotonic()

    def update(self, message: Mapping[str, Any]) -> None:
        """Take over the values of a message."""
        for name in ("task", "tasks", "done", "accuracy", "transfer"):
            if name in message:
                setattr(self, name, message[name])
        if self.done_before is None and "done" in message:
            self.done_before = self.done
        if "end" in message:
            self.end(message["end"], message.get("why", ""))

    @property
    def seconds(self) -> float:
        """Seconds since it began, or that it took."""
        return 0.0 if self.began is None else (self.ended or time.monotonic()) - self.began

    @property
    def left(self) -> float | None:
        """Estimated seconds until it ends; None while there is too little to go by."""
        if self.state != "running" or self.done_before is None:
            return None
        done_since = self.done - self.done_before
        return None if done_since < 0.01 else self.seconds * (1 - self.done) / done_since


def resume_with_messages(run: Run, send: Send, *, locked: bool = False) -> RunRecord:
    """Start or resume a run, and send messages while it runs; return its record."""
    sent = 0.0

    def observer(at: Progress) -> None:
        nonlocal sent
        if time.monotonic() - sent >= MESSAGE_INTERVAL:
            sent = time.monotonic()
            tasks, done = len(run.stream), run.share_done(at)
            send(message(run.record, task=at.task, tasks=tasks, done=done))

    def tell(line: str, hint: str | None = None) -> None:
        send({"tell": line})

    return run.resume(observer, tell=tell, locked=locked)


def message(record: RunRecord, **values: Any) -> dict[str, Any]:
    """Return a message with some values, and with those of a record."""
    return {**values, "accuracy": record.average_accuracy, "transfer": record.backward_transfer}


def end_message(error: BaseException) -> dict[str, Any]:
    """Return the last message of a run that ended with an error, or was stopped."""
    if isinstance(error, UserError):
        return {"end": "busy" if isinstance(error, InUse) else "failed", "why": str(error)}
    return {"end": "stopped"}


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
