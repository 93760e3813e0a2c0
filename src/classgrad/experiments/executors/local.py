"""Jobs on this machine: several at once, each in a process of its own that can be stopped."""

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from classgrad.experiments.executors.pool import (
    TICK,
    Options,
    Pool,
    crash_file,
    crashed,
    described,
)
from classgrad.experiments.executors.status import Show, Status
from classgrad.experiments.jobs import Job


def execute(jobs: Sequence[Job], options: Options, show: Show) -> list[Status]:
    """Run jobs to their ends and return how each ended; a failed one does not stop the others.

    Asked to stop, all save their states and `Stopped` is raised; asked twice, they are killed.
    """
    return Processes([Status(job) for job in jobs], options, show).go()


class Worker:
    """The process of one job."""

    def __init__(self, status: Status, options: Options) -> None:
        self.status = status
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process has ended
        self._rest = b""  # of a line that has not come whole
        crash_file(status.job).unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "classgrad.experiments.executors.worker"],
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


class Processes(Pool[Worker]):
    """Some jobs in processes of this machine."""

    def start(self, status: Status) -> None:
        """Start the process of a job."""
        self.running.append(Worker(status, self.options))
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
                self.hear(worker.status, message)
            if gone:
                self.running.remove(worker)
                self.close(worker)

    def close(self, worker: Worker) -> None:
        """See how a process ended."""
        status, code, errors = worker.status, worker.process.returncode, worker.close()
        if status.state == "running" and self.asked is not None:
            status.end("stopped")
        elif status.state == "running" and code == -signal.SIGKILL:
            if self.again(status, "its process was killed; it goes on in another"):
                return
            status.end("failed", "its process was killed twice: is memory short? Lower --jobs")
        elif status.state == "running" and code == -signal.SIGTERM:
            status.end("failed", "its process was told to end")
        elif status.state == "running":
            status.end("failed", crashed(status.job, reason(code, errors), errors), crash=True)
        self.show.ended(status)


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a process: modules from the same places, so many threads."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def reason(code: int, errors: str) -> str:
    """Return why a process ended, by its exit code and what it wrote last.

    >>> reason(-11, "what came before"), reason(1, "a trace\\nKeyError: 1"), reason(3, "")
    ('ended by SIGSEGV', 'KeyError: 1', 'ended with code 3')
    """
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    lines = errors.strip().splitlines()
    return lines[-1] if lines else f"ended with code {code}"
