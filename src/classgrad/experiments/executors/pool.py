"""A pool of jobs, some of them in parallel; when it is stopped, all jobs save their states."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from classgrad.checkpoints.manager import on_stop_signal
from classgrad.errors import Stopped, UserError, shown
from classgrad.experiments.jobs import CRASH_FILE, Job, Status, end_message
from classgrad.experiments.remote import Remote

TICK = 0.2  # seconds


@dataclass(frozen=True)
class Options:
    """How jobs are run: number in parallel, threads per run, device.

    On a cluster, a run on cuda has a GPU to itself.
    """

    count: int = 1
    threads: int | None = None  # None: PyTorch's default
    data_dir: Path | None = None
    save_minutes: float = 5.0
    device: str = "cpu"
    verbose: bool = False  # whether every epoch has a line


class Display(Protocol):
    """Shows the progress of jobs."""

    def changed(self, status: Status) -> None:
        """Show that a job has started or ended."""

    def print_line(self, line: str, status: Status | None = None, hint: str | None = None) -> None:
        """Print a line about one job, or about all; `hint` as in `UserError`."""

    def logged(self, message: Mapping[str, Any], status: Status) -> None:
        """Show a message of a job that has a line: its `text`."""

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show the progress of all jobs; called several times a second."""


class RunningJob(Protocol):
    """A job that has been started."""

    status: Status

    def messages(self) -> Iterable[Mapping[str, Any]]:
        """Return the messages since the last call, without waiting.

        When the job has ended, the last message has its `end`. Besides those of `jobs.Status` that
        may be `gone`, if its process was killed and can be started again, or `crashed`, with the
        traceback in `trace`.
        """

    def stop(self) -> None:
        """Ask it to save its state and end."""

    def kill(self) -> None:
        """Kill it without saving its state."""


R = TypeVar("R", bound=RunningJob)


class Pool(ABC, Generic[R]):
    """Some jobs, of which `options.count` run in parallel."""

    max_starts = 2  # a job that is killed, for example for lack of memory, is started once more

    def __init__(self, jobs: Sequence[Job], options: Options, display: Display) -> None:
        self.statuses, self.options, self.display = [Status(job) for job in jobs], options, display
        self.waiting = deque(self.statuses)
        self.running: list[R] = []
        self.stop_signal: int | None = None  # number of the signal that stopped the pool
        self.stopping = False  # whether the jobs were asked to stop

    @abstractmethod
    def start(self, status: Status) -> R:
        """Start a job, or raise a `UserError`."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until there may be messages, for about `TICK` seconds at most."""

    def execute(self) -> list[Status]:
        """Run all jobs and return their statuses; a job that fails does not stop the others.

        After a signal, all save their states and `Stopped` is raised; after a second, all are
        killed.
        """
        with on_stop_signal(self._on_signal):
            try:
                while self.running or (self.waiting and self.stop_signal is None):
                    if self.stop_signal is None:
                        self.start_waiting()
                    elif not self.stopping:
                        self.stop_all()
                    self.wait()
                    for job in list(self.running):
                        for message in job.messages():
                            self.handle(job, message)
                    self.display.tick(self.statuses)
            finally:
                for job in self.running:
                    job.kill()
        if self.stop_signal is not None:
            raise Stopped(self.stop_signal)
        return self.statuses

    def start_waiting(self) -> None:
        """Start waiting jobs, as many as may run in parallel."""
        while self.waiting and len(self.running) < self.options.count and self.stop_signal is None:
            status = self.waiting.popleft()
            status.starts += 1
            try:
                (status.job.folder / CRASH_FILE).unlink(missing_ok=True)
                self.running.append(self.start(status))
            except UserError as error:
                status.update(end_message(error))
                self.display.changed(status)

    def begin(self, status: Status) -> None:
        """Mark a job as running, and show it."""
        status.begin()
        self.display.changed(status)

    def stop_all(self) -> None:
        """Ask all running jobs to stop."""
        self.stopping = True
        self.display.print_line("stopping; a second Ctrl-C does not wait for states to be saved")
        for job in self.running:
            job.stop()

    def handle(self, job: R, message: Mapping[str, Any]) -> None:
        """Update the status of a job from a message, and show it."""
        status, end = job.status, message.get("end")
        if "text" in message:
            self.display.logged(message, status)
        if end not in ("gone", "crashed"):
            status.update(message)
        elif end == "crashed":
            reason = save_trace(status.job, message["why"], message["trace"])
            status.end("failed", reason, crash=True)
        elif self.stop_signal is not None:
            status.end("stopped")
        elif status.starts < self.max_starts:
            self.display.print_line(f"{message['why']}; resuming in another process", status)
            status.state = "waiting"
            self.waiting.appendleft(status)
        else:
            why = f"{message['why']} after {status.starts} starts"
            status.end("failed", f"{why}: if memory is short, run fewer jobs in parallel")
        if end is not None:
            self.running.remove(job)
            if status.state != "waiting":
                self.display.changed(status)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        second = self.stop_signal is not None
        self.stop_signal = number
        if second:
            raise Stopped(number)


def save_trace(job: Job, reason: str, trace: str) -> str:
    """Save the traceback of a crashed job; return the reason, with where the traceback is."""
    path = job.folder / CRASH_FILE
    location = str(path)
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(trace, encoding="utf-8")
        if job.url is not None:
            Remote(job.url).put(path, CRASH_FILE)
            location = f"{job.url}/{CRASH_FILE}"
    except (OSError, UserError):  # perhaps the disk is full; the reason matters most
        return shown(reason)
    return f"{shown(reason)}; see '{location}'"
