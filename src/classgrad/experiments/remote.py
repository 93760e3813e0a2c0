"""Results at a URL: a run works in a folder of its machine, which is copied there at every save.

A checkpoint counts there if it has a manifest. That is the last file of one to be copied and the
first to be removed, and old ones are removed after the new one is there. So whenever copying is cut
short, there is a state to resume from on any other machine.
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
        with self.one_line_errors("used"):
            import fsspec

            self.files, self.root = fsspec.core.url_to_fs(url)

    def fetch(self, folder: Path) -> None:
        """Copy the record and all complete checkpoints to a folder."""
        with self.one_line_errors("read"):
            names = self.names()
            for name in names:
                if name == FILE_NAME or parent(name) in complete(names):
                    self._get(name, folder)

    def fetch_record(self, folder: Path) -> None:
        """Copy the record to a folder, and make one for checkpoints if there are any."""
        with self.one_line_errors("read"):
            names = self.names()
            if FILE_NAME in names:
                self._get(FILE_NAME, folder)
            if complete(names):
                (folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def push(self, folder: Path) -> None:
        """Copy the record and all checkpoints of a folder, and remove what is gone from it."""
        paths = [path for path in (folder / FOLDER).glob("[0-9]*/*") if path.is_file()]
        here = [path.relative_to(folder).as_posix() for path in paths]
        if (folder / FILE_NAME).is_file():
            here.append(FILE_NAME)
        with self.one_line_errors("written"):
            there = self.names()
            done = complete(there)
            new = [name for name in here if parent(name) not in done]
            for name in sorted(new, key=is_manifest):
                self.put(folder / name, name)
            old = set(there) - set(here)
            for name in sorted(old, key=is_manifest, reverse=True):
                self.files.rm_file(f"{self.root}/{name}")

    def put(self, path: Path, name: str) -> None:
        """Copy one file."""
        with self.one_line_errors("written"):
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
    def one_line_errors(self, what: str) -> Iterator[None]:
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


def complete(names: Sequence[str]) -> set[str]:
    """Return the checkpoints that count.

    >>> complete(["record.json", "checkpoints/01/manifest.json", "checkpoints/02/state.json"])
    {'checkpoints/01'}
    """
    return {parent(name) for name in names if is_manifest(name)}


class CopyingCheckpoints(CheckpointManager):
    """Saves the checkpoints of a run, and copies them to a URL."""

    def __init__(self, folder: Path, remote: Remote, *, minutes: float) -> None:
        super().__init__(folder, minutes=minutes)
        self.folder, self.remote = folder, remote

    def save(self, state: dict[str, Any]) -> None:
        """Save and copy a state; then stop, if that was asked for."""
        with self.deferred_signals():
            super().save(state)
            self.remote.push(self.folder)

    def clear(self) -> None:
        """Remove all checkpoints, there after the record was copied."""
        super().clear()
        self.remote.push(self.folder)


@contextmanager
def checkpoints_at(
    folder: Path, url: str | None, *, minutes: float
) -> Iterator[tuple[Path, CheckpointManager]]:
    """Yield the folder a run works in, and what saves its state.

    With a URL that is a folder of this machine alone, in which there is what is at the URL.
    """
    if url is None:
        yield folder, CheckpointManager(folder, minutes=minutes)
        return
    remote = Remote(url)
    with tempfile.TemporaryDirectory(prefix="classgrad-") as place:
        folder = Path(place) / PurePosixPath(url).name
        remote.fetch(folder)
        yield folder, CopyingCheckpoints(folder, remote, minutes=minutes)


@dataclass(frozen=True)
class Results:
    """Where the results of jobs are: a folder; or a URL, and a folder for what is known of it."""

    folder: Path
    url: str | None = None

    def look_up(self, jobs: Sequence[Job]) -> list[Job]:
        """Return jobs that know where they are, with their records in their folders."""
        if self.url is None:
            return list(jobs)
        located = []
        for job in jobs:
            url = f"{self.url}/{job.folder.name}"
            Remote(url).fetch_record(job.folder)
            located.append(replace(job, url=url))
        return located


@contextmanager
def open_results(out: str) -> Iterator[Results]:
    """Yield the results at a path or a URL."""
    if "://" not in out:
        yield Results(Path(out))
        return
    with tempfile.TemporaryDirectory(prefix="classgrad-") as folder:
        yield Results(Path(folder), out.rstrip("/"))
