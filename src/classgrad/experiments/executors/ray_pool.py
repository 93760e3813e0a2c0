"""Jobs on a Ray cluster: each a task, in a process on whatever machine has room for it.

The folders of all jobs are on storage that all machines share, and this process has the locks on
them while they run. So a job whose machine is gone needs no lock that died with it: it is started
again, on another machine, and goes on from its last checkpoint. Ray is not left to do that, as it
would not say so.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError, TaskCancelledError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from classgrad.checkpoints import Lock
from classgrad.checkpoints.lock import InUse
from classgrad.errors import UserError
from classgrad.experiments.executors.pool import (
    TICK,
    Options,
    Pool,
    crash_file,
    crashed,
    described,
)
from classgrad.experiments.executors.ray_task import attempt
from classgrad.experiments.executors.status import Show, Status
from classgrad.experiments.jobs import Job

PATIENCE = 120.0  # seconds for all to save their states, after which they are killed
ANSWER = 10.0  # seconds for the mailbox to answer


def execute(jobs: Sequence[Job], options: Options, show: Show) -> list[Status]:
    """Run jobs to their ends and return how each ended; a failed one does not stop the others.

    Asked to stop, all save their states and `Stopped` is raised; asked twice, they are killed.
    """
    return Tasks([Status(job) for job in jobs], options, show).go()


@dataclass
class Task:
    """A job that was given to the cluster, and the lock on its folder."""

    status: Status
    number: int
    lock: Lock
    ref: "ray.ObjectRef[dict[str, Any]]"
    machine: str = ""  # where it runs

    def stop(self) -> None:
        """Ask it to save its state and end, or not to begin."""
        ray.cancel(self.ref)  # is Ctrl-C to its process, for which it listens

    def kill(self) -> None:
        """End it at once."""
        ray.cancel(self.ref, force=True)
        self.unlock()

    def unlock(self) -> None:
        """Let others have the folder."""
        self.lock.__exit__(None, None, None)


class Tasks(Pool[Task]):
    """Some jobs on a cluster."""

    starts_at_most = 5  # machines may be lent, and be taken back at any time

    def __init__(self, statuses: list[Status], options: Options, show: Show) -> None:
        super().__init__(statuses, options, show)
        self.mailbox = new_mailbox()
        # A process for each run, as without a cluster: its memory ends with it.
        needed = options.resources()
        self.remote = ray.remote(
            num_cpus=needed["CPU"], num_gpus=needed.get("GPU", 0), max_retries=0, max_calls=1
        )(attempt)
        self.until: float | None = None  # when states should be saved

    def start(self, status: Status) -> None:
        """Give a job to the cluster."""
        job = replace(status.job, folder=status.job.folder.absolute())
        lock = Lock(job.folder)
        try:
            lock.__enter__()
        except UserError as error:
            status.end("busy" if isinstance(error, InUse) else "failed", str(error))
            self.show.ended(status)
            return
        crash_file(job).unlink(missing_ok=True)
        number = sum(self.starts.values())
        text = described(job, self.options, locked=True)
        ref = self.remote.remote(text, number, self.mailbox)
        self.running.append(Task(status, number, lock, ref))

    def wait(self) -> None:
        """Hear what the tasks have to say, and see which have ended."""
        refs = [task.ref for task in self.running]
        ended = ray.wait(refs, timeout=TICK)[0] if refs else []
        for number, message in self.messages():
            for task in self.running:  # not one that was started again since
                if task.number == number:
                    self.take(task, message)
        for task in list(self.running):
            if task.ref in ended:
                self.running.remove(task)
                task.unlock()
                self.close(task)
        self.lose_patience()

    def messages(self) -> list[tuple[int, dict[str, Any]]]:
        """Return what has come since the last time."""
        with suppress(RayError):  # it is slow, or was killed and starts again
            found: list[tuple[int, dict[str, Any]]] = ray.get(
                self.mailbox.take.remote(), timeout=ANSWER
            )
            return found
        return []

    def take(self, task: Task, message: Mapping[str, Any]) -> None:
        """Take over a message of a task; the first says that it has begun."""
        if "machine" in message:
            task.machine = message["machine"]
            task.status.begin()
            self.show.begun(task.status)
        self.hear(task.status, message)

    def close(self, task: Task) -> None:
        """See how a task ended."""
        status = task.status
        try:
            end = ray.get(task.ref)
        except RayTaskError as error:
            end = {"trace": str(error)}
        except RayError as error:  # its process or its machine is gone, or it was cancelled
            stopped = isinstance(error, TaskCancelledError) or self.asked is not None
            end = {"end": "stopped"} if stopped else {"gone": type(error).__name__}
        if "trace" in end:
            line = end["trace"].strip().splitlines()[-1]
            status.end("failed", crashed(status.job, line, end["trace"]), crash=True)
        elif self.asked is None and end.get("end", "stopped") == "stopped":
            where = f" on {task.machine}" if task.machine else ""
            why = f" (Ray: {end['gone']})" if "gone" in end else ""
            if self.again(status, f"its process{where} is gone{why}; it goes on in another"):
                return
            status.end("failed", f"its process was killed {self.starts_at_most} times{why}")
        else:
            self.hear(status, end)
        self.show.ended(status)

    def lose_patience(self) -> None:
        """Kill what has not ended long after it was asked to."""
        if self.asked is None:
            return
        self.until = self.until or time.monotonic() + PATIENCE
        if time.monotonic() < self.until:
            return
        for task in self.running:
            task.kill()
            task.status.end("stopped", "it did not end in time; its last saved state is kept")
            self.show.ended(task.status)
        self.running.clear()


def new_mailbox() -> Any:
    """Return where tasks leave their messages: a process beside this one, as machines may go.

    Ray sends a class within a function as it is, so that its process does not import torch.
    """

    class Mailbox:
        """Messages that were not taken yet."""

        def __init__(self) -> None:
            self.messages: list[tuple[int, dict[str, Any]]] = []

        def put(self, number: int, message: dict[str, Any]) -> None:
            """Leave a message."""
            self.messages.append((number, message))

        def take(self) -> list[tuple[int, dict[str, Any]]]:
            """Return all messages, and keep none."""
            taken, self.messages = self.messages, []
            return taken

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    kind: Any = ray.remote(num_cpus=0, max_restarts=-1)(Mailbox)
    return kind.options(scheduling_strategy=here).remote()
