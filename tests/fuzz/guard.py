"""What reading a file must never do: take much memory or time, warn, run code, write elsewhere."""

import os
import resource
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

MEMORY = 256 * 2**20
SECONDS = 10
STATM = Path("/proc/self/statm")

# Audit events: code that comes from elsewhere, other processes, the network.
RUNS = {
    "compile",
    "exec",
    "import",
    "os.exec",
    "os.fork",
    "os.posix_spawn",
    "os.system",
    "pickle.find_class",
    "socket.connect",
    "subprocess.Popen",
}
# Audit events that change files, and how many of their arguments are paths.
CHANGES = {
    "os.chmod": 1,
    "os.link": 2,
    "os.mkdir": 1,
    "os.rename": 2,
    "os.symlink": 2,
    "os.truncate": 1,
    "shutil.rmtree": 1,
}
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Broken(BaseException):
    """A rule was broken; not an Exception, so that no reader takes it for a damaged file."""


_folder: Path | None = None  # where the read under guard may write; None outside of any


@contextmanager
def guarded(folder: Path) -> Iterator[None]:
    """Turn whatever breaks a rule into an AssertionError; only `folder` may be written to."""
    global _folder
    _install()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with _limited_memory(), _limited_time():
                _folder = folder
                try:
                    yield
                finally:
                    _folder = None
        except Broken as error:
            raise AssertionError(str(error)) from error
    assert not caught, f"warned: {caught[0].message}"


@cache
def _install() -> None:
    """Listen to audit events from now on: the interpreter has no way to stop it again."""
    sys.addaudithook(_listen)


def _listen(event: str, given: tuple[Any, ...]) -> None:
    if _folder is None:
        return
    if event in RUNS:
        raise Broken(f"{event} {given[:2]}")
    if event == "open" and isinstance(given[2], int) and given[2] & WRITING:
        _refuse_elsewhere(event, given[0])
    for path in given[: CHANGES.get(event, 0)]:
        _refuse_elsewhere(event, path)


def _refuse_elsewhere(event: str, path: object) -> None:
    if isinstance(path, int):  # a file that is open already
        return
    place = Path(os.path.abspath(os.fsdecode(path)))  # type: ignore[arg-type]
    if _folder is not None and not place.is_relative_to(_folder):
        raise Broken(f"{event} {place}, outside of {_folder}")


@contextmanager
def _limited_memory() -> Iterator[None]:
    """Leave the process `MEMORY` more than it has; where its size is not known, no limit."""
    if not STATM.exists():
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    size = int(STATM.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextmanager
def _limited_time() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Broken(f"took more than {SECONDS} seconds")

    # The time of the processor, so that a busy machine breaks no rule; waiting does not count.
    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
