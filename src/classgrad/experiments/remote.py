"""Results at a URL: a run works in a folder of its machine, which is copied there at every save.

A checkpoint counts there if it has a manifest. That is the last file of one to be copied and the
first to be removed, and old ones are removed after the new one is there. So whenever copying is cut
short, there is a state to go on from on any other machine.
"""

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from classgrad.checkpoints import CheckpointManager
from classgrad.checkpoints.files import MANIFEST, STATE, TENSORS
from classgrad.checkpoints.manager import FOLDER
from classgrad.errors import UserError, shown
from classgrad.experiments.jobs import CRASH_FILE, Job
from classgrad.runs.record import FILE_NAME

# What there is of a run. Whatever else is there is not touched, and not copied to a machine, as its
# name may lead anywhere.
KNOWN = re.compile(
    rf"{FILE_NAME}|{CRASH_FILE}|{FOLDER}/[0-9]+/({STATE}|{TENSORS}|{MANIFEST})".replace(".", r"\.")
)


class Remote:
    """The folder of a run at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self.telling("used"):
            import fsspec

            self.files, self.root = fsspec.core.url_to_fs(url)

    def fetch(self, folder: Path) -> None:
        """Copy the record and all whole checkpoints to a folder."""
        with self.telling("read"):
            names = self.names()
            for name in names:
                if name == FILE_NAME or parent(name) in whole(names):
                    self._get(name, folder)

    def look(self, folder: Path) -> None:
        """Copy the record to a folder, and make one for checkpoints if there are any."""
        with self.telling("read"):
            names = self.names()
            if FILE_NAME in names:
                self._get(FILE_NAME, folder)
            if whole(names):
                (folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def push(self, folder: Path) -> None:
        """Copy the record and all checkpoints of a folder, and remove what is gone from it."""
        paths = [path for path in (folder / FOLDER).glob("[0-9]*/*") if path.is_file()]
        here = [path.relative_to(folder).as_posix() for path in paths]
        if (folder / FILE_NAME).is_file():
            here.append(FILE_NAME)
        with self.telling("written"):
            there = self.names()
            done = whole(there)
            new = [name for name in here if parent(name) not in done]
            for name in sorted(new, key=is_manifest):
                self.put(folder / name, name)
            old = set(there) - set(here)
            for name in sorted(old, key=is_manifest, reverse=True):
                self.files.rm_file(f"{self.root}/{name}")

    def put(self, path: Path, name: str) -> None:
        """Copy one file."""
        with self.telling("written"):
            place = f"{self.root}/{name}"
            self.files.makedirs(parent(place), exist_ok=True)
            self.files.put_file(str(path), place)

    def names(self) -> list[str]:
        """Return the names of all files of the run."""
        self.files.invalidate_cache()
        names = [path[len(self.root) :].lstrip("/") for path in self.files.find(self.root)]
        return [name for name in names if KNOWN.fullmatch(name)]

    def _get(self, name: str, folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        self.files.get_file(f"{self.root}/{name}", str(folder / name))

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """Turn errors into one line: every kind of storage has its own."""
        try:
            yield
        except UserError:
            raise
        except ImportError as error:
            raise UserError(
                f"'{self.url}' needs a package that is not installed: {shown(error)}; "
                "pip install 'classgrad[remote]'"
            ) from None
        except Exception as error:
            reason = shown(str(error) or type(error).__name__)
            raise UserError(f"'{self.url}' cannot be {what}: {reason}") from None


def parent(name: str) -> str:
    """Return the folder of a file; "." if it is in none."""
    return str(PurePosixPath(name).parent)


def is_manifest(name: str) -> bool:
    """Tell whether a file is what makes a checkpoint count."""
    return PurePosixPath(name).name == MANIFEST


def whole(names: Sequence[str]) -> set[str]:
    """Return the checkpoints that count.

    >>> whole(["record.json", "checkpoints/000001/manifest.json", "checkpoints/000002/state.json"])
    {'checkpoints/000001'}
    """
    return {parent(name) for name in names if is_manifest(name)}


class CopyingKeeper(CheckpointManager):
    """Keeps the checkpoints of a run, and copies them to a URL."""

    def __init__(self, folder: Path, remote: Remote, *, minutes: float) -> None:
        super().__init__(folder, minutes=minutes)
        self.folder, self.remote = folder, remote

    def save(self, state: dict[str, Any]) -> None:
        """Save and copy a state; then stop, if that was asked for."""
        with self.patience():
            super().save(state)
            self.remote.push(self.folder)

    def clear(self) -> None:
        """Remove all checkpoints, there after the record was copied."""
        super().clear()
        self.remote.push(self.folder)


@contextmanager
def keeper_at(url: str, *, minutes: float) -> Iterator[CopyingKeeper]:
    """Yield a keeper with a folder of this machine, in which there is what is at the URL."""
    remote = Remote(url)
    with tempfile.TemporaryDirectory(prefix="classgrad-") as place:
        folder = Path(place) / PurePosixPath(url).name
        remote.fetch(folder)
        yield CopyingKeeper(folder, remote, minutes=minutes)


@dataclass(frozen=True)
class Place:
    """Where the results of jobs are: a folder; or a URL, and a folder for what is known of it."""

    folder: Path
    url: str | None = None

    def look(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs that know where they are, with their records in their folders."""
        if self.url is None:
            return list(jobs)
        found = [replace(job, url=f"{self.url}/{job.folder.name}") for job in jobs]
        for job in found:
            assert job.url is not None
            Remote(job.url).look(job.folder)
        return found


@contextmanager
def opened(out: str) -> Iterator[Place]:
    """Yield the place for the results that is a path or a URL."""
    if "://" not in out:
        yield Place(Path(out))
        return
    with tempfile.TemporaryDirectory(prefix="classgrad-") as folder:
        yield Place(Path(folder), out.rstrip("/"))
