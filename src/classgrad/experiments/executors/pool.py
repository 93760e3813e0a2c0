"""Jobs of which so many run at once, wherever that is; asked to stop, they save their states."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from classgrad.checkpoints.lock import InUse
from classgrad.checkpoints.manager import on_stop_signal
from classgrad.errors import Stopped, UserError, shown
from classgrad.experiments.jobs import CRASH_FILE, Job, Status
from classgrad.experiments.remote import Remote

TICK = 0.2  # seconds


@dataclass(frozen=True)
class Options:
    """How jobs are run: how many at once, with how many threads each (None: as torch likes).

    And on which device: on a cluster a run on cuda has one to itself.
    """

    count: int = 1
    threads: int | None = None
    data_dir: Path | None = None
    save_minutes: float = 5.0
    device: str = "cpu"


class Show(Protocol):
    """Shows how jobs get on."""

    def changed(self, status: Status) -> None:
        """Show that a job has started or ended."""

    def say(self, line: str, status: Status | None = None) -> None:
        """Show a line that concerns one job, or all."""

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show how far all jobs are; called several times in a second."""


class Running(Protocol):
    """A job that has been started."""

    status: Status

    def messages(self) -> Iterable[Mapping[str, Any]]:
        """Return what has come since the last time, without waiting.

        When it has ended, the last of them has its `end`. That may also be `gone`: its process was
        killed, and can be started again; or `crashed`, with the `trace` of what happened.
        """

    def stop(self) -> None:
        """Ask it to save its state and end."""

    def kill(self) -> None:
        """End it at once."""


R = TypeVar("R", bound=Running)


class Pool(ABC, Generic[R]):
    """Some jobs, of which so many run at once."""

    starts_at_most = 2  # what is killed, for example for want of memory, is started once more

    def __init__(self, jobs: Sequence[Job], options: Options, show: Show) -> None:
        self.statuses, self.options, self.show = [Status(job) for job in jobs], options, show
        self.waiting = deque(self.statuses)
        self.running: list[R] = []
        self.asked: int | None = None  # the signal that came, if one did
        self.told_to_stop = False

    @abstractmethod
    def start(self, status: Status) -> R:
        """Start a job; raise a `UserError` if that is not possible."""

    @abstractmethod
    def wait(self) -> None:
        """Wait until there may be messages, for a moment at most."""

    def execute(self) -> list[Status]:
        """Run all to their ends and return how each ended; a failed one does not stop the others.

        Asked to stop, all save their states and `Stopped` is raised; asked twice, they are killed.
        """
        with on_stop_signal(self._signalled):
            try:
                while self.running or (self.waiting and self.asked is None):
                    if self.asked is None:
                        self.start_some()
                    elif not self.told_to_stop:
                        self.stop_all()
                    self.wait()
                    for one in list(self.running):
                        for message in one.messages():
                            self.hear(one, message)
                    self.show.tick(self.statuses)
            finally:
                for one in self.running:
                    one.kill()
        if self.asked is not None:
            raise Stopped(self.asked)
        return self.statuses

    def start_some(self) -> None:
        """Start as many as may run."""
        while self.waiting and len(self.running) < self.options.count and self.asked is None:
            status = self.waiting.popleft()
            status.starts += 1
            try:
                (status.job.folder / CRASH_FILE).unlink(missing_ok=True)
                self.running.append(self.start(status))
            except UserError as error:
                status.end("busy" if isinstance(error, InUse) else "failed", str(error))
                self.show.changed(status)

    def begin(self, status: Status) -> None:
        """Note and show that the process of a job runs."""
        status.begin()
        self.show.changed(status)

    def stop_all(self) -> None:
        """Ask those that run to stop."""
        self.told_to_stop = True
        self.show.say("stopping; a second Ctrl-C does not wait for states to be saved")
        for one in self.running:
            one.stop()

    def hear(self, one: R, message: Mapping[str, Any]) -> None:
        """Note and show what a message says."""
        status, end = one.status, message.get("end")
        if "tell" in message:
            self.show.say(message["tell"], status)
        if end not in ("gone", "crashed"):
            status.hear(message)
        elif end == "crashed":
            status.end("failed", crashed(status.job, message["why"], message["trace"]), crash=True)
        elif self.asked is not None:
            status.end("stopped")
        elif status.starts < self.starts_at_most:
            self.show.say(f"{message['why']}; it is resumed in another", status)
            status.state = "waiting"
            self.waiting.appendleft(status)
        else:
            why = f"{message['why']} after {status.starts} starts: is memory short?"
            status.end("failed", f"{why} Run fewer at once")
        if end is not None:
            self.running.remove(one)
            if status.state != "waiting":
                self.show.changed(status)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        again = self.asked is not None
        self.asked = number
        if again:
            raise Stopped(number)


def crashed(job: Job, reason: str, trace: str) -> str:
    """Keep what a job wrote before it crashed; say in one line what happened."""
    path = job.folder / CRASH_FILE
    place = str(path)
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(trace, encoding="utf-8")
        if job.url is not None:
            Remote(job.url).put(path, CRASH_FILE)
            place = f"{job.url}/{CRASH_FILE}"
    except (OSError, UserError):  # a full disk, perhaps: what matters is in the line
        return shown(reason)
    return f"{shown(reason)}; see '{place}'"
