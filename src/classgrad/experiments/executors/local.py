"""Jobs on this machine: several at once, each in a process of its own that can be stopped."""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from classgrad.experiments.executors.pool import TICK, Options, Pool
from classgrad.experiments.executors.worker import to_json
from classgrad.experiments.jobs import Status


class Worker:
    """The process of one job."""

    def __init__(self, status: Status, options: Options) -> None:
        self.status = status
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process has ended
        self._rest = b""  # of a line that has not come whole
        self._end: dict[str, Any] | None = None  # its last message
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
        self._input, self.output = self.process.stdin, self.process.stdout
        os.set_blocking(self.output.fileno(), False)
        with suppress(BrokenPipeError):  # it ended at once, which shows when it is waited for
            os.write(self._input.fileno(), to_json(status.job, options) + b"\n")

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages that have come since the last time, the end when it has ended."""
        code = self.process.poll()  # before the last messages are read
        with suppress(BlockingIOError):
            while piece := os.read(self.output.fileno(), 2**16):
                *lines, self._rest = (self._rest + piece).split(b"\n")
                for message in map(json.loads, lines):
                    if "end" in message:
                        self._end = message
                    else:
                        yield message
        if code is not None:
            trace = self._close()
            yield self._end or unexpected_end(code, trace)

    def stop(self) -> None:
        """Ask it to save its state and end."""
        self.process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.process.kill()
        self._close()

    def _close(self) -> str:
        """Wait for its end; return what it wrote to standard error."""
        if self._errors.closed:  # a signal came before this was noted
            return ""
        self.process.wait()
        self._input.close()
        self.output.close()
        self._errors.seek(0)
        with self._errors:
            return self._errors.read().decode(errors="replace")


class LocalPool(Pool[Worker]):
    """Some jobs in processes of this machine."""

    def start(self, status: Status) -> Worker:
        """Start the process of a job."""
        worker = Worker(status, self.options)
        self.begin(status)
        return worker

    def wait(self) -> None:
        """Wait until a process has something to say or has ended."""
        select.select([worker.output for worker in self.running], [], [], TICK)


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a process: modules from the same places, so many threads."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if threads is not None:
        found["OMP_NUM_THREADS"] = str(threads)
    return found


def unexpected_end(code: int, trace: str) -> dict[str, Any]:
    """Return how a process ended that did not say so, by its exit code and standard error.

    >>> unexpected_end(1, "a trace\\nKeyError: 1")["why"], unexpected_end(-11, "")["why"]
    ('KeyError: 1', 'ended by SIGSEGV')
    """
    if code == -signal.SIGKILL:
        return {"end": "gone", "why": "its process was killed"}
    if code == -signal.SIGTERM:
        return {"end": "stopped"}  # before it could listen
    name = f"ended by {signal.Signals(-code).name}" if code < 0 else ""
    last = trace.strip().splitlines()[-1:] or [f"ended with code {code}"]
    return {"end": "crashed", "why": name or last[0], "trace": trace}
