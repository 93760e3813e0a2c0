"""Jobs on a Ray cluster: each a task, in a process on whatever machine has room for it.

The folders of all jobs are on storage that all machines share, and this process has the locks on
them while they run. So a job whose machine is gone needs no lock that died with it: it is started
again, on another machine, and resumes from its last checkpoint. Ray is not left to do that, as it
would not say so.
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

from classgrad.checkpoints import Lock
from classgrad.errors import UserError, shown
from classgrad.experiments.executors.pool import TICK, Options, Pool, Show
from classgrad.experiments.executors.worker import carry_out, to_json
from classgrad.experiments.jobs import Job, Status
from classgrad.runs.record import versions

# Ray reads these when it is imported: it reports to nobody, and leaves the terminal to classgrad.
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

CONNECTION = 5.0  # seconds to get one
LOOK = 180.0  # seconds for a machine to start a process and import torch
TO_SAVE = 120.0  # seconds for all to save their states, after which they are killed
MAIL = 10.0  # seconds for the mailbox to answer


@dataclass
class RayTask:
    """A job that was given to the cluster, and the lock on its folder."""

    status: Status
    number: int
    lock: Lock
    ref: "ray.ObjectRef[dict[str, Any]]"
    machine: str = ""  # where it runs
    mail: list[Mapping[str, Any]] = field(default_factory=list)
    ended: bool = False

    def messages(self) -> Iterator[Mapping[str, Any]]:
        """Yield what came by mail, and the end when it has ended."""
        yield from self.mail
        self.mail = []
        if self.ended:
            self.lock.release()
            yield self._end()

    def _end(self) -> Mapping[str, Any]:
        reason = ""
        try:
            end = ray.get(self.ref)
        except RayTaskError as error:
            end = crash(str(error))
        except RayError as error:  # its process or its machine is gone, or it was cancelled
            end, reason = {"end": "stopped"}, f" (Ray: {type(error).__name__})"
        if end.get("end", "stopped") != "stopped":
            return end
        where = f" on {self.machine}" if self.machine else ""
        return {"end": "gone", "why": f"its process{where} is gone{reason}"}

    def stop(self) -> None:
        """Ask it to save its state and end, or not to begin."""
        ray.cancel(self.ref)  # is Ctrl-C to its process, for which it listens

    def kill(self) -> None:
        """End it at once."""
        ray.cancel(self.ref, force=True)
        self.lock.release()


class RayPool(Pool[RayTask]):
    """Some jobs on a cluster."""

    starts_at_most = 5  # machines may be lent, and be taken back at any time

    def __init__(self, jobs: Iterable[Job], options: Options, show: Show) -> None:
        jobs = [replace(job, folder=job.folder.absolute()) for job in jobs]
        super().__init__(jobs, options, show)
        self.mailbox = new_mailbox()
        needed = resources(options)
        # A process for each run, as without a cluster: its memory ends with it.
        self.remote = ray.remote(
            num_cpus=needed["CPU"], num_gpus=needed.get("GPU", 0), max_retries=0, max_calls=1
        )(attempt)
        self.until: float | None = None  # when states should be saved

    def start(self, status: Status) -> RayTask:
        """Give a job to the cluster."""
        number = sum(status.starts for status in self.statuses)
        lock = Lock(status.job.folder).__enter__()
        text = to_json(status.job, self.options, locked=True)
        return RayTask(status, number, lock, self.remote.remote(text, number, self.mailbox))

    def wait(self) -> None:
        """Wait until a task has ended, for a moment at most; collect the mail."""
        refs = [task.ref for task in self.running]
        ended = ray.wait(refs, timeout=TICK)[0] if refs else []
        mail: list[tuple[int, dict[str, Any]]] = []
        with suppress(RayError):  # the mailbox is slow, or was killed and starts again
            mail = ray.get(self.mailbox.take.remote(), timeout=MAIL)
        for task in self.running:
            task.ended = task.ref in ended
            task.mail += [message for number, message in mail if number == task.number]
        if self.asked is not None:
            self.until = self.until or time.monotonic() + TO_SAVE
            if time.monotonic() >= self.until:
                self.kill_all()

    def hear(self, one: RayTask, message: Mapping[str, Any]) -> None:
        """Note and show what a message says; the first is from where it runs."""
        if "machine" in message:
            one.machine = message["machine"]
            self.begin(one.status)
        super().hear(one, message)

    def kill_all(self) -> None:
        """End what has not ended long after it was asked to."""
        for task in list(self.running):
            task.kill()
            why = "it did not end in time; its last saved state is kept"
            self.hear(task, {"end": "stopped", "why": why})


def attempt(job: bytes, number: int, mailbox: Any) -> dict[str, Any]:
    """Do a job, in a process of the cluster, and return the message on its end.

    Others go into the mailbox, with the number. One that gets lost is no harm: only the end counts.
    """
    end: dict[str, Any] = {}

    def send(message: dict[str, Any]) -> None:
        if "end" in message:
            end.update(message)
        else:
            mailbox.put.remote(number, message)

    send({"machine": socket.gethostname()})
    try:
        carry_out(job, send)
    except Exception:
        return crash(traceback.format_exc())
    return end


def crash(trace: str) -> dict[str, Any]:
    """Return the message on a crash."""
    return {"end": "crashed", "why": trace.strip().splitlines()[-1], "trace": trace}


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


@contextmanager
def connected(address: str, options: Options) -> Iterator[int]:
    """Be connected to a cluster while the block runs; yield how many runs it has room for.

    `auto` is the cluster of RAY_ADDRESS or one of this machine, else a new one of this machine
    alone, which ends with the block.
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
        # numpy reads it when a process starts, which is too late for a run to say so itself.
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
    except (OSError, RuntimeError, ValueError) as error:  # of another version, for example
        raise refusal(address, error) from None


def refuse_unreachable(address: str) -> None:
    """Refuse an address where nothing answers, for which Ray itself waits minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise UserError(
            f"'{shown(address)}' is no address of a Ray cluster: give HOST:PORT as 'ray start' "
            "prints it, on a machine of the cluster, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECTION).close()
    except (OSError, OverflowError) as error:
        raise refusal(address, error) from None


def refusal(address: str, error: Exception) -> UserError:
    """Return the error for a cluster that cannot be used."""
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return UserError(
        f"the Ray cluster at '{shown(address)}' cannot be used: {shown(reason)}; see 'ray status' "
        "there, or give auto"
    )


def refuse_relative(jobs: Iterable[Job]) -> None:
    """Refuse folders of images that a machine would look for below where its part was started."""
    for benchmark in {job.plan.benchmark for job in jobs}:
        kind, _, path = benchmark.partition(":")
        if kind == "folder" and not Path(path).is_absolute():
            whole = f"folder:{Path(path).absolute()}"
            raise UserError(
                f"'{shown(benchmark)}' on a cluster: give the whole path, {shown(whole)}"
            )


def resources(options: Options) -> dict[str, int]:
    """Return what a run needs of a machine, in Ray's words."""
    gpu = {"GPU": 1} if options.device.startswith("cuda") else {}
    return {"CPU": options.threads or 1, **gpu}


def slots(needed: dict[str, int]) -> int:
    """Return how many runs that need this of a machine the cluster has room for at once."""
    count = sum(slots_of(node, needed) for node in ray.nodes())
    if not count:
        wanted = " and ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in needed.items())
        remedy = "give a run fewer threads" + (", or another device" if "GPU" in needed else "")
        raise UserError(f"no machine of the cluster has {wanted} for a run: {remedy}")
    return count


def slots_of(node: dict[str, Any], needed: dict[str, int]) -> int:
    """Return how many runs a machine, as Ray describes it, has room for."""
    if not node["Alive"]:
        return 0
    return min(int(node["Resources"].get(name, 0) // count) for name, count in needed.items())


def refuse_differences(options: Options, out: Path | None) -> None:
    """Refuse machines with other versions, and those that do not see the folder for the results."""
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
        answers = ask_machines(resources(options), path)
    here = versions()
    for name, answer in answers.items():
        if "missing" in answer:
            reason = shown(answer["missing"])
            raise UserError(f"machine {name} has no classgrad that works: {reason}; install it")
        for package in ("classgrad", "torch", "numpy", "scikit-learn"):
            there = answer["versions"][package]
            if there != here[package]:
                raise UserError(
                    f"machine {name} has {package} {shown(there)}, here it is {here[package]}: "
                    "install the same on all machines"
                )
        if not answer["seen"]:
            raise UserError(
                f"machine {name} does not see '{out}': give a folder that all machines share"
            )


def ask_machines(needed: dict[str, int], path: str | None) -> dict[str, dict[str, Any]]:
    """Return what a process on each machine finds there, by the machine's name."""
    look: Any = ray.remote(num_cpus=0, max_retries=0)(question())
    asked, answers = {}, {}
    for node in ray.nodes():
        if slots_of(node, needed):
            host, address, number = (
                node[key] for key in ("NodeManagerHostname", "NodeManagerAddress", "NodeID")
            )
            there = look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(number, False))
            asked[f"{host} ({address}, {number[:6]})"] = there.remote(path)
    for name, answer in asked.items():
        try:
            answers[name] = ray.get(answer, timeout=LOOK)
        except RayError as error:
            reason = shown(str(error).partition("\n")[0])
            raise UserError(f"machine {name} does not answer: {reason}") from None
    return answers


def question() -> Callable[[str | None], dict[str, Any]]:
    """Return what looks at a machine.

    Ray sends a function within a function as it is, so this works where there is no classgrad.
    """

    def look(path: str | None) -> dict[str, Any]:
        import os

        try:
            from classgrad.runs.record import versions
        except ImportError as error:
            return {"missing": str(error)}
        return {"versions": versions(), "seen": path is None or os.path.exists(path)}

    return look
