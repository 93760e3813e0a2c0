"""Jobs of which so many run at once, wherever that is; asked to stop, they save their states."""

import json
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

from classgrad.checkpoints.signals import heard_by
from classgrad.errors import Stopped, UserError, shown
from classgrad.experiments.executors.status import Show, Status
from classgrad.experiments.jobs import CRASH_FILE, Job
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

    def resources(self) -> dict[str, int]:
        """Return what a run needs of a machine of a cluster, in Ray's words."""
        graphics = {"GPU": 1} if self.device.startswith("cuda") else {}
        return {"CPU": self.threads or 1, **graphics}


class Running(Protocol):
    """A job that has been started."""

    def stop(self) -> None:
        """Ask it to save its state and end."""

    def kill(self) -> None:
        """End it at once."""


R = TypeVar("R", bound=Running)


class Pool(ABC, Generic[R]):
    """Some jobs, of which so many run at once."""

    starts_at_most = 2  # what is killed, for example for want of memory, is started once more

    def __init__(self, statuses: list[Status], options: Options, show: Show) -> None:
        self.statuses, self.options, self.show = statuses, options, show
        self.waiting = deque(statuses)
        self.running: list[R] = []
        self.starts = {id(status): 0 for status in statuses}
        self.asked: int | None = None  # the signal that came, if one did
        self.told_to_stop = False

    @abstractmethod
    def start(self, status: Status) -> None:
        """Start a job, which is then one of those that run; or note why that is not possible."""

    @abstractmethod
    def wait(self) -> None:
        """Hear for a moment what those that run have to say, and see which have ended."""

    def go(self) -> list[Status]:
        """Run all, and return how they ended."""
        with heard_by(self._hear):
            try:
                while self.running or (self.waiting and self.asked is None):
                    self.begin_some()
                    self.wait()
                    self.show.tick(self.statuses)
            finally:
                for one in self.running:
                    one.kill()
        if self.asked is not None:
            raise Stopped(self.asked)
        return self.statuses

    def begin_some(self) -> None:
        """Start as many as may run; or tell those that run to stop."""
        if self.asked is not None:
            if not self.told_to_stop:
                self.told_to_stop = True
                self.show.say("stopping; a second Ctrl-C does not wait for states to be saved")
                for one in self.running:
                    one.stop()
            return
        while self.waiting and len(self.running) < self.options.count and self.asked is None:
            status = self.waiting.popleft()
            self.starts[id(status)] += 1
            self.start(status)

    def hear(self, status: Status, message: Mapping[str, Any]) -> None:
        """Take over a message, and show what it has to say."""
        status.hear(message)
        if "tell" in message:
            self.show.told(status, message["tell"])

    def again(self, status: Status, line: str) -> bool:
        """Let a job that was killed wait for another start, unless it had them all; tell which."""
        if self.starts[id(status)] >= self.starts_at_most:
            return False
        self.show.told(status, line)
        status.state = "waiting"
        self.waiting.appendleft(status)
        return True

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again = self.asked is not None
        self.asked = number
        if again:
            raise Stopped(number)


def described(job: Job, options: Options, *, locked: bool = False) -> bytes:
    """Return a job as the worker reads it; `locked` says that its folder is locked for it."""
    values = {
        "plan": job.plan.as_dict(),
        "folder": str(job.folder),
        "url": job.url,
        "data_dir": None if options.data_dir is None else str(options.data_dir),
        "save_minutes": options.save_minutes,
        "threads": options.threads,
        "device": options.device,
        "locked": locked,
    }
    return json.dumps(values).encode()


def crash_file(job: Job) -> Path:
    """Return where the trace of a crash is kept."""
    return job.folder / CRASH_FILE


def crashed(job: Job, reason: str, errors: str) -> str:
    """Keep what a job wrote before it crashed; say in one line what happened."""
    path, place = crash_file(job), str(crash_file(job))
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        path.write_text(errors, encoding="utf-8")
        if job.url is not None:
            Remote(job.url).put(path, CRASH_FILE)
            place = f"{job.url}/{CRASH_FILE}"
    except (OSError, UserError):  # a full disk, perhaps: what matters is in the line
        return shown(reason)
    return f"{shown(reason)}; see '{place}'"
