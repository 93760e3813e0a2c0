"""A Ray cluster: the way to it, and what has to be the same on all its machines."""

import logging
import os
import socket
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from classgrad.errors import UserError, shown
from classgrad.experiments.executors.pool import Options
from classgrad.experiments.jobs import Job
from classgrad.runs.record import versions

REACH = 5.0  # seconds to get a connection
ANSWER = 180.0  # seconds for a machine to start a process and import torch

# Ray reads these when it is imported: it reports to nobody, and leaves the terminal to classgrad.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".",
}


def refuse_missing() -> None:
    """Refuse to go on without the package."""
    if find_spec("ray") is None:
        raise UserError("--ray needs a package that is not installed: pip install 'classgrad[ray]'")


@contextmanager
def connected(address: str, options: Options) -> Iterator[int]:
    """Be connected to a cluster while the block runs; yield how many runs it has room for.

    `auto` is the cluster of RAY_ADDRESS or one of this machine, else a new one of this machine
    alone, which ends with the block.
    """
    refuse_missing()
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    import ray

    try:
        _connect(address, options.threads or 1)
        yield room(options.resources())
    finally:
        ray.shutdown()


def _connect(address: str, threads: int) -> None:
    import ray

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


def refuse_relative(jobs: Iterable[Job]) -> None:
    """Refuse folders of images that a machine would look for below where its part was started."""
    for benchmark in {job.plan.benchmark for job in jobs}:
        kind, _, path = benchmark.partition(":")
        if kind == "folder" and not Path(path).is_absolute():
            whole = f"folder:{Path(path).absolute()}"
            raise UserError(f"'{shown(benchmark)}' with --ray: give the whole path, {shown(whole)}")


def refuse_unreachable(address: str) -> None:
    """Refuse an address where nothing answers, for which Ray itself waits minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise UserError(
            f"--ray '{shown(address)}' is no address of a cluster: give HOST:PORT as 'ray start' "
            "prints it, on a machine of the cluster, or auto"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH).close()
    except (OSError, OverflowError) as error:
        raise refusal(address, error) from None


def refusal(address: str, error: Exception) -> UserError:
    """Return the error for a cluster that cannot be used."""
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0]
    return UserError(
        f"the Ray cluster at '{shown(address)}' cannot be used: {shown(reason)}; see 'ray status' "
        "there, or give --ray auto"
    )


def room(needed: dict[str, int]) -> int:
    """Return how many runs that need this of a machine the cluster has room for at once."""
    import ray

    found = sum(runs_on(node, needed) for node in ray.nodes())
    if not found:
        wanted = " and ".join(f"{n} {name}{'s' * (n > 1)}" for name, n in needed.items())
        remedy = "lower --threads" + (" or leave out --device" if "GPU" in needed else "")
        raise UserError(f"no machine of the cluster has {wanted} for a run: {remedy}")
    return found


def runs_on(node: dict[str, Any], needed: dict[str, int]) -> int:
    """Return how many runs a machine, as Ray describes it, has room for."""
    if not node["Alive"]:
        return 0
    return min(int(node["Resources"].get(name, 0) // count) for name, count in needed.items())


def refuse_differences(options: Options, out: Path | None) -> None:
    """Refuse machines with other versions, and those that do not see the folder for the results."""
    with token(out) as path:
        found = ask_machines(options.resources(), None if path is None else str(path))
    here = versions()
    for name, answer in found.items():
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
                f"machine {name} does not see '{out}': give a folder that all machines share "
                "with --out"
            )


@contextmanager
def token(out: Path | None) -> Iterator[Path | None]:
    """Have a file in a folder while the block runs; yield its path."""
    if out is None:
        yield None
        return
    path = out.absolute() / f".seen-{uuid.uuid4().hex}"
    try:
        out.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise UserError(f"cannot write to '{out}': {error.strerror}; give another --out") from None
    try:
        yield path
    finally:
        with suppress(OSError):
            path.unlink()


def name_of(node: dict[str, Any]) -> str:
    """Return what tells a machine from others."""
    return f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']}, {node['NodeID'][:6]})"


def ask_machines(needed: dict[str, int], path: str | None) -> dict[str, dict[str, Any]]:
    """Return what a process on each machine finds there, by the machine's name."""
    import ray
    from ray.exceptions import RayError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    found, answers = {}, {}
    look: Any = ray.remote(num_cpus=0, max_retries=0)(question())
    for node in ray.nodes():
        if not runs_on(node, needed):
            continue
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        answers[name_of(node)] = look.options(scheduling_strategy=there).remote(path)
    for name, answer in answers.items():
        try:
            found[name] = ray.get(answer, timeout=ANSWER)
        except RayError as error:
            reason = shown(str(error).partition("\n")[0])
            raise UserError(f"machine {name} does not answer: {reason}") from None
    return found


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
