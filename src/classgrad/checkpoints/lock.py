"""Locks: a file in a folder says which process uses it, and keeps others out."""

import json
import os
import socket
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.checkpoints.files import parse_json
from classgrad.errors import UserError, shown
from classgrad.files import make_folder

try:
    import fcntl
except ImportError:
    raise UserError("classgrad needs Linux or macOS: this system has no file locks") from None

FILE_NAME = "lock.json"
LARGEST = 2**12
PATIENCE = 1.0  # seconds to wait while another process takes the lock over


class InUse(UserError):
    """Another process uses the folder."""


@dataclass(frozen=True)
class Owner:
    """A process: its pid, its host, and when it started, because pids are reused."""

    pid: int
    host: str
    started: str

    def runs_here(self) -> bool:
        """Tell whether the process is known to run on this host."""
        here = self.host == socket.gethostname()
        return here and self.started != "" and start_of(self.pid) == self.started


class Lock:
    """Keep other processes out of a folder while the `with` block runs.

    The lock is a complete file that gets its name by a hard link. It excludes other hosts on every
    network filesystem, where kernel locks may not, but the file outlives a killed process. So the
    owner also holds a kernel lock on the file, which ends with the process: another process on the
    same host that gets the kernel lock may replace the file, and only one can get it. Processes on
    other hosts cannot be inspected, so their file stays until the user removes it.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        self._handle: int | None = None  # the open file

    def __enter__(self) -> "Lock":
        part = self.folder / f".{FILE_NAME}-{uuid.uuid4().hex}"
        try:
            make_folder(self.folder)
            self._handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            _fill(self._handle)
            # Neither is possible while another process is creating, removing or replacing the file.
            end = time.monotonic() + PATIENCE
            while not (self._create(part) or self._take_over(part, end)):
                time.sleep(0.01)
        except OSError as error:
            self.release()
            remedy = "give a folder that can be written to"
            raise UserError(f"cannot lock '{self.folder}': {error.strerror}; {remedy}") from None
        except BaseException:  # Ctrl-C, too
            self.release()
            raise
        finally:
            with suppress(OSError):
                part.unlink()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def release(self) -> None:
        """Let other processes use the folder, if this one holds the lock."""
        if self._handle is None:
            return
        # If the file cannot be removed, it belongs to a dead process once this one has ended.
        with suppress(OSError):
            if _is_at(self._handle, self.path):
                self.path.unlink()
        os.close(self._handle)
        self._handle = None

    def _create(self, part: Path) -> bool:
        """Give the complete file its name, unless another has it."""
        try:
            os.link(part, self.path)
        except FileExistsError:
            # A network filesystem may repeat a request whose reply was lost: the link is ours.
            return part.stat().st_nlink == 2
        return True

    def _take_over(self, part: Path, end: float) -> bool:
        """Replace the file of a dead owner by the complete file."""
        try:
            with open(self.path, "rb+") as old:
                owner, free = owner_in(self.path, old.read(LARGEST)), _lock(old.fileno())
                if not _is_at(old.fileno(), self.path):
                    return False
                if owner.host != socket.gethostname() or owner.runs_here():
                    raise self._refusal(owner)
                if not free and time.monotonic() < end:
                    return False
                if not free:
                    raise self._refusal(owner)
                os.replace(part, self.path)
        except FileNotFoundError:
            return False
        return True

    def _refusal(self, owner: Owner) -> InUse:
        remedy = "wait until it ends, or stop it"
        if not owner.runs_here():
            remedy = f"if that process is gone, remove '{self.path}'"
        return InUse(
            f"'{self.folder}' is in use by process {shown(owner.pid)} on '{shown(owner.host)}': "
            f"{remedy}"
        )


def owner_in(path: Path, content: bytes) -> Owner:
    """Return the owner named in the content of a lock file."""
    with suppress(BadCheckpoint):
        match parse_json(content):
            case {"pid": int(pid), "host": str(host), "started": str(started)}:
                return Owner(pid, host, started)
    raise UserError(f"'{path}' is not a lock of classgrad: remove it if no process uses the folder")


def in_use(folder: Path) -> bool:
    """Tell whether a process uses a folder; on another host, a lock file counts as in use."""
    path = folder / FILE_NAME
    try:
        with open(path, "rb") as lock:
            owner = owner_in(path, lock.read(LARGEST))
            elsewhere = owner.host != socket.gethostname()
            return elsewhere or owner.runs_here() or not _lock(lock.fileno(), shared=True)
    except (OSError, UserError):
        return False


def start_of(pid: int) -> str:
    """Return what distinguishes a process from others with the same pid; "" if it does not run.

    Also "" on systems without /proc, where only the kernel lock can tell.
    """
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
    # The second field is the name of the program in brackets, which may contain anything.
    fields = status[status.rindex(b")") + 1 :].decode().split()
    state, started = fields[0], fields[19]
    # A killed process is listed as a zombie until its parent waits for it.
    return "" if state in ("Z", "X") else f"{boot} {started}"


def _fill(handle: int) -> None:
    """Write this process as the owner into a new file, and get the kernel lock on it."""
    owner = Owner(os.getpid(), socket.gethostname(), start_of(os.getpid()))
    os.write(handle, json.dumps(asdict(owner), indent=1).encode() + b"\n")
    os.fsync(handle)
    _lock(handle)


def _lock(handle: int, *, shared: bool = False) -> bool:
    """Get the kernel lock on an open file; tell whether that was possible."""
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError:
        return False  # another process has it, or the filesystem has no locks
    return True


def _is_at(handle: int, path: Path) -> bool:
    """Tell whether an open file is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False
