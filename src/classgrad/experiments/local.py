"""Jobs on this machine: several at once, each in a process of its own that can be stopped."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from classgrad.errors import Stopped, shown
from classgrad.experiments.jobs import Job
from classgrad.experiments.status import Show, Status

CRASH_FILE = "crash.txt"
TICK = 0.2  # seconds
STARTS = 2  # a process that is killed, for example for want of memory, is started once more


@dataclass(frozen=True)
class Options:
    """How jobs are run: how many at once, with how many threads each (None: as torch likes)."""

    count: int = 1
    threads: int | None = None
    data_dir: Path | None = None
    save_minutes: float = 5.0


def execute(jobs: Sequence[Job], options: Options, show: Show) -> list[Status]:
    """Run jobs to their ends and return how each ended; a failed one does not stop the others.

    Asked to stop, all save their states and `Stopped` is raised; asked twice, they are killed.
    """
    return Pool([Status(job) for job in jobs], options, show).go()


class Worker:
    """The process of one job."""

    def __init__(self, status: Status, options: Options) -> None:
        self.status = status
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process has ended
        self._rest = b""  # of a line that has not come whole
        crash_file(status.job).unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "classgrad.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(options.threads),
            start_new_session=True,  # Ctrl-C goes to this process alone, which then tells others
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.output, False)
        with suppress(BrokenPipeError):  # it ended at once, which shows when it is waited for
            os.write(self.process.stdin.fileno(), described(status.job, options) + b"\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have come since the last time."""
        with suppress(BlockingIOError):
            while piece := os.read(self.output, 2**16):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                yield from (json.loads(line) for line in lines)

    def stop(self) -> None:
        """Ask it to save its state and end."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self.close()

    def close(self) -> str:
        """Wait for its end; return what it wrote to standard error."""
        self.process.wait()
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self._errors.seek(0)
        with self._errors:
            return self._errors.read().decode(errors="replace")


class Pool:
    """Some jobs, of which so many run at once."""

    def __init__(self, statuses: list[Status], options: Options, show: Show) -> None:
        self.statuses, self.options, self.show = statuses, options, show
        self.waiting = deque(statuses)
        self.running: list[Worker] = []
        self.starts = {id(status): 0 for status in statuses}
        self.asked: int | None = None  # the signal that came, if one did
        self.told_to_stop = False

    def go(self) -> list[Status]:
        """Run all, and return how they ended."""
        with self.listening():
            try:
                while self.running or (self.waiting and self.asked is None):
                    self.begin_some()
                    self.wait()
                    self.show.tick(self.statuses)
            finally:
                for worker in self.running:
                    worker.kill()
        if self.asked is not None:
            raise Stopped(self.asked)
        return self.statuses

    def begin_some(self) -> None:
        """Start as many as may run; or tell those that run to stop."""
        if self.asked is not None:
            if not self.told_to_stop:
                self.told_to_stop = True
                self.show.say("stopping; a second Ctrl-C does not wait for states to be saved")
                for worker in self.running:
                    worker.stop()
            return
        while self.waiting and len(self.running) < self.options.count and self.asked is None:
            status = self.waiting.popleft()
            self.running.append(Worker(status, self.options))
            self.starts[id(status)] += 1
            status.begin()
            self.show.begun(status)

    def wait(self) -> None:
        """Hear what the processes have to say, and see which have ended."""
        with selectors.DefaultSelector() as selector:
            for worker in self.running:
                selector.register(worker.output, selectors.EVENT_READ)
            selector.select(TICK)
        for worker in list(self.running):
            gone = worker.process.poll() is not None  # before the last messages are read
            for message in worker.messages():
                worker.status.hear(message)
                if "tell" in message:
                    self.show.told(worker.status, message["tell"])
            if gone:
                self.running.remove(worker)
                self.close(worker)

    def close(self, worker: Worker) -> None:
        """See how a process ended."""
        status, code, errors = worker.status, worker.process.returncode, worker.close()
        if status.state == "running" and self.asked is not None:
            status.end("stopped")
        elif status.state == "running" and code == -signal.SIGKILL:
            if self.starts[id(status)] < STARTS:
                self.show.told(status, "its process was killed; it goes on in another")
                status.state = "waiting"
                self.waiting.appendleft(status)
                return
            status.end("failed", "its process was killed twice: is memory short? Lower --jobs")
        elif status.state == "running" and code == -signal.SIGTERM:
            status.end("failed", "its process was told to end")
        elif status.state == "running":
            status.end("failed", crashed(status.job, code, errors), crash=True)
        self.show.ended(status)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Note Ctrl-C and a request to end while the block runs."""
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread is told of signals
            return
        before = {n: signal.signal(n, self._hear) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        again = self.asked is not None
        self.asked = number
        if again:
            raise Stopped(number)


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a process: modules from the same places, so many threads."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def described(job: Job, options: Options) -> bytes:
    """Return a job as the worker reads it."""
    values = {
        "plan": job.plan.as_dict(),
        "folder": str(job.folder),
        "data_dir": None if options.data_dir is None else str(options.data_dir),
        "save_minutes": options.save_minutes,
        "threads": options.threads,
    }
    return json.dumps(values).encode()


def crash_file(job: Job) -> Path:
    """Return where the trace of a crash is kept."""
    return job.folder / CRASH_FILE


def crashed(job: Job, code: int, errors: str) -> str:
    """Keep what a process wrote before it crashed; say in one line what happened."""
    lines = errors.strip().splitlines()
    reason = lines[-1] if lines else f"ended with code {code}"
    if code < 0:
        reason = f"ended by {signal.Signals(-code).name}"
    try:
        job.folder.mkdir(parents=True, exist_ok=True)
        crash_file(job).write_text(errors, encoding="utf-8")
    except OSError:  # a full disk, perhaps: what matters is in the line
        return shown(reason)
    return f"{shown(reason)}; see '{crash_file(job)}'"
