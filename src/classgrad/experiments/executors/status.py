"""How far a job is, told by the messages of the process that runs it, and who is shown that.

A message is a JSON object. While the run goes on: `task`, `tasks`, `done` (a share of the whole),
and `accuracy` and `transfer` of the tasks learnt so far; `tell`, a line for the user. In the end:
`end`, which is one of `done`, `failed`, `busy` and `stopped`, and `why`.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from classgrad.experiments.jobs import Job

State = Literal["waiting", "running", "done", "failed", "busy", "stopped"]


@dataclass
class Status:
    """Where one job stands."""

    job: Job
    state: State = "waiting"
    task: int = 0
    tasks: int = 0
    done: float = 0.0  # share of the whole run
    accuracy: float | None = None
    transfer: float | None = None
    why: str = ""  # it failed
    crash: bool = False  # it failed by a fault of the program
    began: float | None = None
    ended: float | None = None
    found: float | None = None  # share that was done when it began

    def begin(self) -> None:
        """Start to count the time."""
        self.state, self.began, self.ended, self.found = "running", time.monotonic(), None, None

    def end(self, state: State, why: str = "", *, crash: bool = False) -> None:
        """Note how it ended."""
        self.state, self.why, self.crash = state, why, crash
        self.ended = time.monotonic()

    def hear(self, message: Mapping[str, Any]) -> None:
        """Take over what a message says."""
        for name in ("task", "tasks", "done", "accuracy", "transfer"):
            if name in message:
                setattr(self, name, message[name])
        if self.found is None and "done" in message:
            self.found = self.done
        if "end" in message:
            self.end(message["end"], message.get("why", ""))

    @property
    def seconds(self) -> float:
        """Time since it began."""
        if self.began is None:
            return 0.0
        return (self.ended or time.monotonic()) - self.began

    @property
    def left(self) -> float | None:
        """Time it will still take, if that can be told."""
        if self.state != "running" or self.found is None or self.done - self.found < 0.01:
            return None
        return self.seconds * (1 - self.done) / (self.done - self.found)


class Show(Protocol):
    """Shows how a list of jobs gets on."""

    def begun(self, status: Status) -> None:
        """Show that a job has started."""

    def told(self, status: Status, line: str) -> None:
        """Show what a job has to say."""

    def ended(self, status: Status) -> None:
        """Show how a job ended."""

    def say(self, line: str) -> None:
        """Show a line that concerns all jobs."""

    def tick(self, statuses: Sequence[Status]) -> None:
        """Show how far all jobs are; called several times in a second."""
