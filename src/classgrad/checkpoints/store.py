"""The checkpoints of a run or learner: numbered folders, of which the last few are kept.

If this process has locked a folder above, it changes nothing unless the lock is still its own. To
ask first is not enough: an owner that is paused for minutes can lose its lock between any two
operations. So an operation that comes too late has to fail by itself:

- A new checkpoint counts once its temporary folder is renamed, whose name has the token of the
  lock. An owner makes that folder, then asks whether the lock is its own, then renames. Whoever
  gets the lock removes all temporary folders before it reads anything. So an owner that made its
  folder before that has nothing left to rename, and one that made it later asks in vain.
- What is to be removed is listed before an owner asks. Numbers only rise, until the whole folder is
  removed; so in a folder that was opened before, they never become those of a later owner.
"""

import errno
import os
import shutil
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgrad.checkpoints import files
from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.checkpoints.lock import Lock, LockLost, lock_above
from classgrad.errors import UserError
from classgrad.files import make_folder, sync_folder

# Prefix of folders that are being written or removed, which are ignored.
PART = ".part-"
KEPT = 2  # checkpoints, by default

REMEDIES = {
    errno.ENOSPC: "free some space; ",
    errno.EDQUOT: "free some space; ",
    errno.EROFS: "give a folder that can be written to; ",
    errno.EACCES: "give a folder that can be written to; ",
    errno.EPERM: "give a folder that can be written to; ",
}


@dataclass(frozen=True)
class Loaded:
    """A state that was loaded, and the checkpoint it is from."""

    state: dict[str, Any]
    counter: int  # of the checkpoint; each has one more than the one before
    code: str  # the version of classgrad that wrote it
    warnings: tuple[str, ...]  # why newer ones could not be used, a line for each


class Store:
    """The checkpoints in a folder, which one process uses at a time.

    A process that resumes a run loads first. The checkpoint it resumes from is then kept until it
    has saved as many as are kept, even if there is a newer one that is damaged.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder)
        self._last: int | None = None  # the last that this process has loaded or saved
        self._newest: int | None = None  # the newest on disk at that time; it may be damaged
        self._token = uuid.uuid4().hex  # in names of temporary folders, if there is no lock

    def save(self, state: dict[str, Any], keep: int = KEPT, *, replace: bool = False) -> None:
        """Save a state durably; if that fails, the checkpoint before stays intact.

        So many checkpoints are kept, this one included. With `replace`, the one before is not.
        """
        last, part = None, None
        try:
            make_folder(self.folder)
            self._fence()
            self._remove_parts()
            before = self._counters()
            newest = max(before, default=None)
            last = self._last if self._last in before else newest
            counter = 1 if newest is None else newest + 1
            part = self._part(counter)
            files.write(part, counter, state)
            self._refuse_lost()
            os.rename(part, self._path(counter))
            sync_folder(self.folder)
        except OSError as error:
            with suppress(OSError):
                self._refuse_lost()  # the reason why it failed
            raise self._not_saved(error, last) from None
        finally:
            if part is not None:
                shutil.rmtree(part, ignore_errors=True)
        self._last = self._newest = counter
        intact = sorted(counter for counter in before if last is not None and counter <= last)
        intact = intact[:-1] if replace else intact
        with suppress(LockLost):  # it is saved nevertheless; what is next will raise it
            self._remove(set(before) - set(intact[max(len(intact) - keep + 1, 0) :]))

    def load(self) -> Loaded | None:
        """Return the newest state that is intact, or None if there is no checkpoint."""
        self._fence()
        warnings: list[str] = []
        counters = self._counters_to_read()
        self._newest = max(counters, default=None)
        for counter in counters:
            path = self._path(counter)
            try:
                manifest, state = files.read(path, counter)
            except BadCheckpoint as error:
                warnings.append(f"checkpoint '{path}' is damaged: {error}")
            except OSError as error:
                raise UserError(f"checkpoint '{path}' cannot be read: {error.strerror}") from None
            else:
                self._last = counter
                return Loaded(state, counter, manifest.code, tuple(warnings))
        if warnings:
            raise UserError(
                f"no checkpoint in '{self.folder}' can be used: restore the folder from a copy, or "
                f"remove it to start again; {'; '.join(warnings)}"
            )
        return None

    def undo(self, carried: Collection[str] = ()) -> Loaded | None:
        """Return to the state before the newest that is intact, and return it; None if none is.

        It becomes the newest under a new number, so that no process mistakes it for what was
        undone. Keys that are `carried` keep their newest values, and do not make a state another.
        """

        def content(state: dict[str, Any]) -> str:
            return files.fingerprint({n: v for n, v in state.items() if n not in carried})

        newest = self.load()
        if newest is None:
            return None
        current, before = content(newest.state), None
        for counter in [one for one in self._counters_to_read() if one < newest.counter]:
            try:
                manifest, state = files.read(self._path(counter), counter)
            except (BadCheckpoint, OSError):
                continue
            if content(state) == current:
                before = None  # a copy; what lies between was undone, by a process that was killed
            elif before is None:
                before = Loaded(state, counter, manifest.code, ())
        if before is None:
            return None
        before.state.update({n: newest.state[n] for n in carried if n in newest.state})
        counters = self._counters()
        self.save(before.state, keep=len(counters) + 1)
        self._remove({counter for counter in counters if counter >= before.counter})
        return before

    def is_stale(self) -> bool:
        """Tell whether another process has saved here since this one loaded or saved."""
        self._fence()
        return max(self._counters_to_read(), default=None) != self._newest

    def clear(self) -> None:
        """Remove all checkpoints."""
        self._remove(set(self._counters_to_read()))
        with suppress(OSError):
            self.folder.rmdir()

    def _path(self, counter: int) -> Path:
        return self.folder / f"{counter:06d}"

    def _part(self, counter: int) -> Path:
        lock = self._lock()
        return self.folder / f"{PART}{counter:06d}-{lock.token if lock else self._token}"

    def _lock(self) -> Lock | None:
        return lock_above(self.folder)

    def _refuse_lost(self) -> None:
        """Refuse to change anything if this process has lost the lock it had."""
        if (lock := self._lock()) is not None:
            lock.refuse_lost()

    def _fence(self) -> None:
        """Keep earlier owners of the lock from finishing what they have begun."""
        lock, place = self._lock(), self.folder.resolve()
        if lock is None or place in lock.fenced:
            return
        try:
            # Not what this owner has begun: another thread may be asking what is there.
            self._remove_parts(spared=lock.token)
        except OSError as error:
            remedy = REMEDIES.get(error.errno or 0, "")
            raise UserError(
                f"'{self.folder}' cannot be changed: {error.strerror}; {remedy}".rstrip("; ")
            ) from None
        lock.fenced.add(place)

    def _counters(self) -> list[int]:
        names = [name for name in os.listdir(self.folder) if name.isascii() and name.isdigit()]
        return [int(name) for name in names if name == self._path(int(name)).name]

    def _counters_to_read(self) -> list[int]:
        try:
            return sorted(self._counters(), reverse=True)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UserError(f"'{self.folder}' cannot be read: {error.strerror}") from None

    def _remove(self, counters: Collection[int]) -> None:
        """Remove checkpoints if possible; the next save tries again."""
        with suppress(OSError), self._opened() as folder:
            for counter in sorted(counters):
                self._refuse_lost()
                # Renamed first, so that no checkpoint is ever half removed under its number.
                old, new = self._path(counter).name, self._part(counter).name
                with suppress(OSError):
                    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)
            self._remove_parts()

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the folder that is there now: it has no names that a later one of its name has."""
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            yield handle
        finally:
            os.close(handle)

    def _remove_parts(self, spared: str | None = None) -> None:
        """Remove temporary folders, but not those whose names end with the token to be spared."""
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return
        parts = [name for name in names if name.startswith(PART)]
        if spared is not None:
            parts = [name for name in parts if not name.endswith(spared)]
        if not parts:
            return
        self._refuse_lost()
        for name in parts:
            part = self.folder / f"{PART}{uuid.uuid4().hex}"
            # At once, while removing it takes time and can fail.
            with suppress(FileNotFoundError):
                os.rename(self.folder / name, part)
            shutil.rmtree(part, ignore_errors=True)

    def _not_saved(self, error: OSError, last: int | None) -> UserError:
        kept = (
            "there is no earlier checkpoint"
            if last is None
            else f"the checkpoint before, '{self._path(last).name}', is intact"
        )
        remedy = REMEDIES.get(error.errno or 0, "")
        return UserError(f"cannot save to '{self.folder}': {error.strerror}; {remedy}{kept}")
