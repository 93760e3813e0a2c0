"""Jobs on a Ray cluster: each is a Ray task, in a process on any machine with enough resources.

The folders of all jobs are on storage that all machines share, and this process holds their locks
while they run. So no lock is lost with a machine: its job is started again on another one, and
resumes from its last checkpoint. Ray's own retries are off, as they would not be reported.
"""

import logging
import os
import socket
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from classgrad.checkpoints import Lock
from classgrad.errors import Stopped, UserError, shown
from classgrad.experiments.executors.pool import TICK, Display, Options, Pool
from classgrad.experiments.jobs import (
    Job,
    Send,
    Status,
    done_message,
    end_message,
    resume_with_messages,
)
from classgrad.experiments.remote import checkpoints_at
from classgrad.runs.record import RunRecord, versions
from classgrad.runs.run import Run, load_stream

# Ray reads these when it is imported: no usage statistics, and no output on the terminal.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
except ImportError:
    raise UserError("Ray is not installed: pip install 'classgrad[ray]'") from None

CONNECT_TIMEOUT = 5.0  # seconds
PROBE_TIMEOUT = 180.0  # seconds for a machine to start a process and import torch
SAVE_TIMEOUT = 120.0  # seconds for all jobs to save their states before they are killed
MAILBOX_TIMEOUT = 10.0  # seconds


@dataclass
class RayTask:
    """A job that was submitted to the cluster, and the lock of its folder."""

    status: Status
    number: int
    lock: Lock
    ref: "ray.ObjectRef[dict[str, Any]]"
    machine: str = ""  # name of the machine it runs on
    received: list[Mapping[str, Any]] = field(default_factory=list)
    ended: bool = False

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """Yield the messages received since the last call, and the end once it has ended."""
        yield from self.received
        self.received = []
        if self.ended:
            self.lock.release()
            yield self._end()

    def _end(self) -> Mapping[str, Any]:
        reason = ""
        try:
            end = ray.get(self.ref)
        except RayTaskError as error:
            end = crash_message(str(error))
        except RayError as error:  # its process or its machine is gone, or it was cancelled
            end, reason = {"end": "stopped"}, f" (Ray: {type(error).__name__})"
        if end.get("end", "stopped") != "stopped":
            return end
        where = f" on {self.machine}" if self.machine else ""
        return {"end": "gone", "why": f"its process{where} is gone{reason}"}

    def stop(self) -> None:
        """Ask it to save its state and end, or not to begin."""
        ray.cancel(self.ref)  # sends SIGINT, which the worker handles

    def kill(self) -> None:
        """Kill it without saving its state."""
        ray.cancel(self.ref, force=True)
        self.lock.release()


class RayPool(Pool[RayTask]):
    """A pool of jobs on a cluster."""

    max_starts = 5  # preemptible machines may go at any time

    def __init__(self, jobs: Iterable[Job], options: Options, display: Display) -> None:
        jobs = [replace(job, folder=job.folder.absolute()) for job in jobs]
        super().__init__(jobs, options, display)
        self.mailbox = new_mailbox()
        needed = resources(options)
        # max_calls=1: a process for each run, so that its memory is freed when it ends.
        self.remote = ray.remote(
            num_cpus=needed["CPU"], num_gpus=needed.get("GPU", 0), max_retries=0, max_calls=1
        )(attempt)
        self.kill_time: float | None = None  # when jobs that were asked to stop are killed

    def start(self, status: Status) -> RayTask:
        """Submit a job to the cluster."""
        number = sum(status.starts for status in self.statuses)
        lock = Lock(status.job.folder).__enter__()
        ref = self.remote.remote(status.job, self.options, number, self.mailbox)
        return RayTask(status, number, lock, ref)

    def wait(self) -> None:
        """Wait until a task has ended, for at most `TICK` seconds; collect all messages."""
        refs = [task.ref for task in self.running]
        ended = ray.wait(refs, timeout=TICK)[0] if refs else []
        received: list[tuple[int, dict[str, Any]]] = []
        with suppress(RayError):  # the mailbox is slow, or was killed and restarts
            received = ray.get(self.mailbox.take.remote(), timeout=MAILBOX_TIMEOUT)
        for task in self.running:
            task.ended = task.ref in ended
            task.received += [message for number, message in received if number == task.number]
        if self.stop_signal is not None:
            self.kill_time = self.kill_time or time.monotonic() + SAVE_TIMEOUT
            if time.monotonic() >= self.kill_time:
                self.kill_all()

    def handle(self, job: RayTask, message: Mapping[str, Any]) -> None:
        """Update the status of a job from a message; the first message names its machine."""
        if "machine" in message:
            job.machine = message["machine"]
            self.begin(job.status)
        super().handle(job, message)

    def kill_all(self) -> None:
        """Kill jobs that did not end in time after they were asked to."""
        for task in list(self.running):
            task.kill()
            why = "it did not end in time; its last saved state is kept"
            self.handle(task, {"end": "stopped", "why": why})


def attempt(job: Job, options: Options, number: int, mailbox: Any) -> dict[str, Any]:
    """Run a job, in a process of the cluster, and return its last message.

    Other messages go to the mailbox, with the number of the task; they may get lost without harm.
    """

    def send(message: dict[str, Any]) -> None:
        mailbox.put.remote(number, message)

    send({"machine": socket.gethostname()})
    try:
        return done_message(learn(job, options, send))
    except (UserError, Stopped) as error:
        return end_message(error)
    except Exception:
        return crash_message(traceback.format_exc())


def learn(job: Job, options: Options, send: Send) -> RunRecord:
    """Start or resume the run of a job, whose folder is locked; return its record."""
    torch.set_num_threads(options.threads or 1)
    place = checkpoints_at(job.folder, job.url, minutes=options.save_minutes)
    with place as (folder, checkpoints):
        stream = load_stream(job.plan, options.data_dir)
        run = Run(job.plan, stream, folder, checkpoints, device=options.device)
        with checkpoints.handle_stop_signals():
            return resume_with_messages(run, send, locked=True, verbose=options.verbose)


def crash_message(trace: str) -> dict[str, Any]:
    """Return the last message of a job that crashed."""
    return {"end": "crashed", "why": trace.strip().splitlines()[-1], "trace": trace}


def new_mailbox() -> Any:
    """Start an actor that collects the messages of tasks, on this machine, as others may go.

    Ray sends a class that is defined in a function by value, so its process does not import torch.
    """

    class Mailbox:
        """Messages that were not taken yet."""

        def __init__(self) -> None:
            self.messages: list[tuple[int, dict[str, Any]]] = []

        def put(self, number: int, message: dict[str, Any]) -> None:
            """Add a message."""
            self.messages.append((number, message))

        def take(self) -> list[tuple[int, dict[str, Any]]]:
            """Return all messages, and keep none."""
            taken, self.messages = self.messages, []
            return taken

    this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor: Any = ray.remote(num_cpus=0, max_restarts=-1)(Mailbox)
    return actor.options(scheduling_strategy=this_node).remote()


@contextmanager
def connected(address: str, options: Options) -> Iterator[int]:
    """Connect to a cluster for the block; yield how many runs it can run in parallel.

    `auto` is the cluster at RAY_ADDRESS, else one that runs on this machine, else a new one of this
    machine alone, which ends with the block.
    """
    try:
        _connect(address, options.threads or 1)
        yield slots(resources(options))
    finally:
        ray.shutdown()


def _connect(address: str, threads: int) -> None:
    settings: dict[str, Any] = {
        "log_to_driver": False,
        "logging_level": logging.CRITICAL,
        # numpy reads it when a process starts, before a run could set it.
        "runtime_env": {"env_vars": {"OMP_NUM_THREADS": str(threads)}},
    }
    if address == "auto":
        address = os.environ.get("RAY_ADDRESS") or "auto"
    if address != "auto":
        refuse_unreachable(address)
    try:
        try:
            ray.init(address=address, **settings)
        except ConnectionError:
            if address != "auto":
                raise
            ray.init(address="local", include_dashboard=False, **settings)
    except (OSError, RuntimeError, ValueError) as error:  # another version, for example
        raise cluster_error(address, error) from None


def refuse_unreachable(address: str) -> None:
    """Refuse an address where nothing answers: Ray itself would wait for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise UserError(
            f"'{shown(address)}' is not the address of a Ray cluster: give HOST:PORT as printed by "
            "'ray start' on a machine of the cluster, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()
    except (OSError, OverflowError) as error:
        raise cluster_error(address, error) from None


def cluster_error(address: str, error: Exception) -> UserError:
    """Return the error for a cluster that cannot be used."""
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return UserError(
        f"the Ray cluster at '{shown(address)}' cannot be used: {shown(reason)}; see 'ray status' "
        "there, or give auto"
    )


def refuse_relative(jobs: Iterable[Job]) -> None:
    """Refuse relative folders of images: each machine has its own working directory."""
    for benchmark in {job.plan.benchmark for job in jobs}:
        kind, _, path = benchmark.partition(":")
        if kind == "folder" and not Path(path).is_absolute():
            absolute = f"folder:{Path(path).absolute()}"
            raise UserError(
                f"'{shown(benchmark)}' on a cluster: give the absolute path, {shown(absolute)}"
            )


def resources(options: Options) -> dict[str, int]:
    """Return the resources that a run needs, by Ray's names."""
    gpu = {"GPU": 1} if options.device.startswith("cuda") else {}
    return {"CPU": options.threads or 1, **gpu}


def slots(needed: dict[str, int]) -> int:
    """Return how many runs with these needs fit the cluster in parallel."""
    count = sum(slots_of(node, needed) for node in ray.nodes())
    if not count:
        amounts = " and ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in needed.items())
        remedy = "give a run fewer threads" + (", or another device" if "GPU" in needed else "")
        raise UserError(f"no machine of the cluster has {amounts} for a run: {remedy}")
    return count


def slots_of(node: dict[str, Any], needed: dict[str, int]) -> int:
    """Return how many runs with these needs fit a machine, as described by `ray.nodes`."""
    if not node["Alive"]:
        return 0
    return min(int(node["Resources"].get(name, 0) // count) for name, count in needed.items())


def refuse_differences(options: Options, out: Path | None) -> None:
    """Refuse machines with other versions, and those that do not see the folder of results."""
    path = None
    with ExitStack() as stack:
        if out is not None:
            try:
                out.mkdir(parents=True, exist_ok=True)
                path = stack.enter_context(
                    tempfile.NamedTemporaryFile(prefix=".seen-", dir=out.absolute())
                ).name
            except OSError as error:
                reason = f"{error.strerror}; give another folder"
                raise UserError(f"cannot write to '{out}': {reason}") from None
        answers = probe_machines(resources(options), path)
    local_versions = versions()
    for name, answer in answers.items():
        if "missing" in answer:
            reason = shown(answer["missing"])
            raise UserError(f"machine {name} cannot import classgrad: {reason}; install it there")
        for package in ("classgrad", "torch", "numpy"):
            version = answer["versions"][package]
            if version != local_versions[package]:
                raise UserError(
                    f"machine {name} has {package} {shown(version)}, this one "
                    f"{local_versions[package]}: install the same version on all machines"
                )
        if not answer["seen"]:
            raise UserError(
                f"machine {name} does not see '{out}': give a folder that all machines share"
            )


def probe_machines(needed: dict[str, int], path: str | None) -> dict[str, dict[str, Any]]:
    """Return versions, and whether a path exists, for each machine that can run jobs, by name."""
    probe: Any = ray.remote(num_cpus=0, max_retries=0)(machine_probe())
    pending, answers = {}, {}
    for node in ray.nodes():
        if slots_of(node, needed):
            host, address, number = (
                node[key] for key in ("NodeManagerHostname", "NodeManagerAddress", "NodeID")
            )
            on_node = NodeAffinitySchedulingStrategy(number, False)
            ref = probe.options(scheduling_strategy=on_node).remote(path)
            pending[f"{host} ({address}, {number[:6]})"] = ref
    for name, ref in pending.items():
        try:
            answers[name] = ray.get(ref, timeout=PROBE_TIMEOUT)
        except RayError as error:
            reason = shown(str(error).partition("\n")[0])
            raise UserError(f"machine {name} does not answer: {reason}") from None
    return answers


def machine_probe() -> Callable[[str | None], dict[str, Any]]:
    """Return the function that is called on each machine.

    Ray sends a function that is defined in a function by value, so the machine needs no classgrad.
    """

    def probe(path: str | None) -> dict[str, Any]:
        import os

        try:
            from classgrad.runs.record import versions
        except ImportError as error:
            return {"missing": str(error)}
        return {"versions": versions(), "seen": path is None or os.path.exists(path)}

    return probe
