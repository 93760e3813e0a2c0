"""Locks: a file in a folder says which process uses it, and keeps others out."""

import hashlib
import json
import logging
import math
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

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
# A lock expires if it was not renewed for so many seconds, of which the process that takes it over
# watches it for a quarter: two renewals and a half.
EXPIRES_AFTER = 600
LONGEST = 86_400  # that any lock may take to expire
RENEWED_EVERY = EXPIRES_AFTER / 10
LOOK_EVERY = 1.0  # seconds between two looks at a lock that is watched

logger = logging.getLogger("classgrad")


class InUse(UserError):
    """Another process uses the folder."""


class LockLost(InUse):
    """Another process uses the folder, which this one had locked before."""


@dataclass(frozen=True)
class Owner:
    """A process: its pid, its host, and when it started, because pids are reused.

    `expires_after` has the seconds after which its lock expires unless it is renewed; None for one
    that does not expire, like those of earlier releases.
    """

    pid: int
    host: str
    started: str
    expires_after: int | None = None

    def runs_here(self) -> bool:
        """Tell whether the process is known to run on this host."""
        here = self.host == socket.gethostname()
        return here and self.started != "" and start_of(self.pid) == self.started


class Seen(NamedTuple):
    """A lock as it was found: its content is different for each lock, its time for each renewal."""

    content: bytes
    time: int  # of the last change, in nanoseconds


HELD: dict[Path, "Lock"] = {}  # by this process, by their folders


class Lock:
    """Keep other processes out of a folder while the `with` block runs.

    The lock is a complete file that gets its name by a hard link. It excludes other hosts on every
    network filesystem, where kernel locks may not, but the file outlives a killed process. So the
    owner also holds a kernel lock on the file, which ends with the process: another process on the
    same host that gets the kernel lock may replace the file.

    Processes on other hosts cannot be inspected. So the owner renews its lock every minute: it sets
    the time of the file. If that did not change for ten minutes, a process on another host may
    replace the file. Clocks are not compared: how long ago it was is told from the time that the
    filesystem gives to a file of one's own, and because on some that is the time of the host that
    writes, the lock is then watched for the last minutes.

    An owner that was only paused, or cut off, may wake up later. It finds a file that is not its
    own (`refuse_lost`) and must not write. That question and the writing are two things, between
    which it can be paused, too: see `Store`. With that, nothing is overwritten whatever times and
    clocks are: if they are wrong, an owner has to stop that need not have.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self.path = self.folder / FILE_NAME
        self.token = uuid.uuid4().hex  # in no other lock
        self.fenced: set[Path] = set()  # folders in which earlier owners can finish nothing
        self._content = b""
        self._place = Path()  # the folder, wherever the working directory is later
        self._handle: int | None = None  # the open file
        self._using_handle = threading.Lock()
        self._released = threading.Event()

    def __enter__(self) -> "Lock":
        part = self.folder / f".{FILE_NAME}-{uuid.uuid4().hex}"
        try:
            make_folder(self.folder)
            self._handle = os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            self._content = _fill(self._handle, self.token)
            # Neither is possible while another process is creating, removing or replacing the file.
            end = time.monotonic() + PATIENCE
            while not (self._create(part) or self._take_over(part, end)):
                time.sleep(0.01)
            self._hold()
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
        self._released.set()
        with self._using_handle:
            if self._handle is None:
                return
            if HELD.get(self._place) is self:
                del HELD[self._place]
            # If the file cannot be removed, it belongs to a dead process once this one has ended.
            with suppress(OSError):
                if self._is_own():
                    self.path.unlink()
            os.close(self._handle)
            self._handle = None

    def renew(self) -> None:
        """Show other hosts that this process is alive."""
        # By the open file: if another process has replaced the lock, that one is not renewed.
        with self._using_handle, suppress(OSError):
            if self._handle is not None:
                os.utime(self._handle)

    def refuse_lost(self) -> None:
        """Refuse to go on if another process has taken the folder over."""
        if self._is_own():
            return
        try:
            owner = owner_in(self.path, self._look().content)
        except (FileNotFoundError, UserError):
            raise LockLost(
                f"the lock of this process, '{self.path}', was taken over, removed or damaged: "
                "nothing was overwritten; start again if no other process uses the folder"
            ) from None
        raise LockLost(
            f"process {shown(owner.pid)} on '{shown(owner.host)}' has taken over '{self.folder}', "
            "as this process did not renew its lock in time: nothing was overwritten; start again "
            "when that process has ended"
        )

    def _hold(self) -> None:
        """Begin to renew the lock, which this process has now."""
        self._place = self.folder.resolve()
        HELD[self._place] = self
        threading.Thread(target=self._keep_renewing, daemon=True, name="classgrad lock").start()
        for leftover in self.folder.glob(f".{FILE_NAME}-*"):  # of processes that were killed
            with suppress(OSError):
                if abs(self._age(leftover.stat().st_mtime_ns)) > LONGEST:
                    leftover.unlink()

    def _keep_renewing(self) -> None:
        while not self._released.wait(RENEWED_EVERY):
            self.renew()

    def _is_own(self) -> bool:
        """Tell whether the lock is that of this process."""
        # By its content, since an inode can be used again. Opening a file makes network filesystems
        # ask the server whether it is still the same.
        try:
            return self._look().content == self._content
        except FileNotFoundError:
            return False

    def _look(self) -> Seen:
        with open(self.path, "rb") as file:
            return Seen(file.read(LARGEST), os.fstat(file.fileno()).st_mtime_ns)

    def _create(self, part: Path) -> bool:
        """Give the complete file its name, unless another has it."""
        try:
            os.link(part, self.path)
        except FileExistsError:
            # A network filesystem may repeat a request whose reply was lost: the link is ours.
            return self._is_own()
        return True

    def _take_over(self, part: Path, end: float) -> bool:
        """Replace the file of an owner that is gone by the complete file."""
        try:
            with open(self.path, "rb+") as old:
                seen = Seen(old.read(LARGEST), os.fstat(old.fileno()).st_mtime_ns)
                owner, free = owner_in(self.path, seen.content), _lock(old.fileno())
                if not _is_at(old.fileno(), self.path):
                    return False
                here = owner.host == socket.gethostname()
                if here and owner.runs_here():
                    raise self._refusal(owner)
                if here and free:
                    return self._replace(part, seen)
                if here and time.monotonic() < end:
                    return False
            self._refuse_renewed(owner, seen)
            return self._stays_the_same(owner, seen) and self._replace(part, seen)
        except FileNotFoundError:
            return self._is_own()  # if a reply was lost

    def _refuse_renewed(self, owner: Owner, seen: Seen) -> None:
        """Refuse a lock that does not expire, or was renewed a short time ago."""
        age = self._age(seen.time)
        # A time in the future is that of another clock, which tells as little as one long ago.
        if owner.expires_after is None or abs(age) < 0.75 * owner.expires_after:
            raise self._refusal(owner, max(age, 0))

    def _age(self, time_ns: int) -> float:
        """Return how many seconds ago a file was changed, by the clock of the filesystem."""
        self.renew()  # this file of our own is not a lock yet, or it is one anyway
        assert self._handle is not None
        return (os.fstat(self._handle).st_mtime_ns - time_ns) / 1e9

    def _stays_the_same(self, owner: Owner, seen: Seen) -> bool:
        """Tell whether a lock stays while it is watched, and refuse it if it is renewed."""
        assert owner.expires_after is not None
        seconds = owner.expires_after / 4
        logger.warning(
            f"'{self.folder}' is locked by process {shown(owner.pid)} on '{shown(owner.host)}', "
            f"which does not renew its lock any more: taking over in {seconds:.0f} seconds"
        )
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(LOOK_EVERY)
            now = self._look()
            if now.content != seen.content:
                return False
            if now != seen:
                raise self._refusal(owner)
        return True

    def _replace(self, part: Path, seen: Seen) -> bool:
        """Replace a lock by the complete file, unless another process does, or it was renewed."""
        claim = self.folder / f".{FILE_NAME}-{hashlib.sha256(seen.content).hexdigest()[:32]}"
        end = time.monotonic() + PATIENCE
        while not self._claim(part, claim):
            if time.monotonic() >= end:
                raise InUse(
                    f"'{self.folder}' is just being taken over by another process: wait until it "
                    "ends, or stop it"
                )
            time.sleep(0.01)
        try:
            if self._look() != seen:
                return False
            os.replace(part, self.path)
        finally:
            claim.unlink(missing_ok=True)
        return True

    def _claim(self, part: Path, claim: Path) -> bool:
        """Get the right to replace a lock, which one process can have at a time."""
        self.renew()  # the time of the claim
        try:
            os.link(part, claim)
        except FileExistsError:
            with suppress(FileNotFoundError):
                if abs(self._age(claim.stat().st_mtime_ns)) > EXPIRES_AFTER:
                    claim.unlink()  # of a process that was killed
            return False
        return True

    def _refusal(self, owner: Owner, age: float = 0) -> InUse:
        remedy = "wait until it ends, or stop it"
        if not owner.runs_here():
            remedy = f"if that process is gone, remove '{self.path}'"
            if owner.expires_after is not None:
                minutes = math.ceil((owner.expires_after - age) / 60)
                remedy = (
                    f"wait until it ends, or stop it; if it is gone, try again in {minutes} "
                    f"minutes, or remove '{self.path}'"
                )
        return InUse(
            f"'{self.folder}' is in use by process {shown(owner.pid)} on '{shown(owner.host)}': "
            f"{remedy}"
        )


def lock_above(folder: Path) -> Lock | None:
    """Return the lock of this process on the nearest folder above, if it has one."""
    if not HELD:
        return None
    return next((HELD[place] for place in folder.resolve().parents if place in HELD), None)


def owner_in(path: Path, content: bytes) -> Owner:
    """Return the owner named in the content of a lock file."""
    with suppress(BadCheckpoint):
        match parse_json(content):
            case {"pid": int(pid), "host": str(host), "started": str(started), **others}:
                return Owner(pid, host, started, _sound(others.get("expires_after")))
    raise UserError(f"'{path}' is not a lock of classgrad: remove it if no process uses the folder")


def _sound(seconds: object) -> int | None:
    """Return after how long a lock expires, if it says so: a damaged one may say anything."""
    if isinstance(seconds, int) and EXPIRES_AFTER <= seconds <= LONGEST:
        return seconds
    return None


def in_use(folder: Path) -> bool:
    """Tell whether a process uses a folder; on another host, a lock that has not expired does.

    Whether it has is told by the clock of this host, as nothing is written to find it out.
    """
    path = folder / FILE_NAME
    try:
        with open(path, "rb") as lock:
            owner = owner_in(path, lock.read(LARGEST))
            if owner.host != socket.gethostname():
                age = abs(time.time() - os.fstat(lock.fileno()).st_mtime)
                return owner.expires_after is None or age < owner.expires_after
            return owner.runs_here() or not _lock(lock.fileno(), shared=True)
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


def _fill(handle: int, token: str) -> bytes:
    """Write this process as the owner into a new file, get the kernel lock, return the content."""
    try:
        os.utime(handle)
        expires_after = EXPIRES_AFTER
    except OSError:  # the filesystem does not keep times, so the lock could not be renewed
        expires_after = None
    owner = Owner(os.getpid(), socket.gethostname(), start_of(os.getpid()), expires_after)
    content = json.dumps({**asdict(owner), "token": token}, indent=1).encode() + b"\n"
    os.write(handle, content)
    os.fsync(handle)
    _lock(handle)
    return content


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
