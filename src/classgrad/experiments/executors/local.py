"""Jobs on this machine: several in parallel, each a process of `classgrad run`."""

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
from classgrad.experiments.jobs import Job, Status
from classgrad.methods import own

CHANGED = "its recipe or the installed version has changed meanwhile: repeat the command"


class Worker:
    """The process of one job."""

    def __init__(self, status: Status, options: Options) -> None:
        self.status = status
        self._plan = status.job.plan.folder_name()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed when the process has ended
        self._rest = b""  # the beginning of a line that is not complete yet
        self._end: dict[str, Any] | None = None  # its last message
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "classgrad", "run", *arguments(status.job, options)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(options.threads),
            start_new_session=True,  # Ctrl-C reaches the parent only, which then stops its jobs
        )
        assert self.process.stdout is not None
        self.output = self.process.stdout
        os.set_blocking(self.output.fileno(), False)

    def messages(self) -> Iterator[dict[str, Any]]:
        """Yield the messages since the last call, and the end once the process has ended."""
        code = self.process.poll()  # first: a process that has ended sends no further messages
        with suppress(BlockingIOError):
            while chunk := os.read(self.output.fileno(), 2**16):
                *lines, self._rest = (self._rest + chunk).split(b"\n")
                for message in map(json.loads, lines):
                    if message.get("plan", self._plan) != self._plan:
                        self.process.kill()
                        self._end = {"end": "failed", "why": CHANGED}
                    elif "end" in message:
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
        """Kill it without saving its state."""
        self.process.kill()
        self._close()

    def _close(self) -> str:
        """Wait for the process to end; return what it wrote to standard error."""
        if self._errors.closed:  # a signal interrupted the pool after the first call
            return ""
        self.process.wait()
        self.output.close()
        self._errors.seek(0)
        with self._errors:
            return self._errors.read().decode(errors="replace")


class LocalPool(Pool[Worker]):
    """A pool of jobs in processes of this machine."""

    def start(self, status: Status) -> Worker:
        """Start the process of a job."""
        worker = Worker(status, self.options)
        self.begin(status)
        return worker

    def wait(self) -> None:
        """Wait until a process has sent a message or ended, for at most `TICK` seconds."""
        select.select([worker.output for worker in self.running], [], [], TICK)


def arguments(job: Job, options: Options) -> list[str]:
    """Return the arguments of `classgrad run` for a job."""
    plan = job.plan
    words = {
        "--method": own.source(type(plan.method)) or plan.method.name,
        "--network": plan.network,
        "--recipe": plan.given["recipe"],
        "--seed": plan.seed,
        "--out": job.folder.parent if job.url is None else job.url.rpartition("/")[0],
        "--name": job.folder.name,
        "--data-dir": options.data_dir,
        "--threads": options.threads,
        "--save-minutes": options.save_minutes,
        "--device": options.device,
        "--progress": "json",
    }
    pairs = [(option, str(value)) for option, value in words.items() if value is not None]
    for name, value in plan.given["values"].items():
        pairs.append(("--set", f"{name}={json.dumps(value)}"))
    flags = ["--verbose"] if options.verbose else []
    return [plan.benchmark, *(word for pair in pairs for word in pair), *flags]


def environment(threads: int | None) -> dict[str, str]:
    """Return the environment of a process: the same module paths, and the number of threads."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    if threads is not None:
        variables["OMP_NUM_THREADS"] = str(threads)
    return variables


def unexpected_end(code: int, trace: str) -> dict[str, Any]:
    """Return the last message of a process that sent none, from its exit code and stderr.

    >>> unexpected_end(1, "a trace\\nKeyError: 1")["why"], unexpected_end(-11, "")["why"]
    ('KeyError: 1', 'ended by SIGSEGV')
    """
    if code == -signal.SIGKILL:
        return {"end": "gone", "why": "its process was killed"}
    if code == -signal.SIGTERM:
        return {"end": "stopped"}  # before its signal handler was installed
    by_signal = f"ended by {signal.Signals(-code).name}" if code < 0 else ""
    last = trace.strip().splitlines()[-1:] or [f"ended with code {code}"]
    return {"end": "crashed", "why": by_signal or last[0], "trace": trace}
