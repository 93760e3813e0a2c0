"""Results at a URL: a run works in a local folder, which is copied to the URL at every save.

A checkpoint at the URL is complete if it has a manifest. The manifest is the last file of a
checkpoint to be copied and the first to be removed, and old checkpoints are removed after the new
one is complete. So whenever copying is cut short, any other machine can resume the run.
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

# Other files at the URL are neither changed nor copied: their names may lead out of the folder.
FILES_OF_A_RUN = re.compile(
    rf"{FILE_NAME}|{CRASH_FILE}|{FOLDER}/[0-9]+/({STATE}|{TENSORS}|{MANIFEST})".replace(".", r"\.")
)


class Remote:
    """The folder of a run at a URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self.user_errors("used"):
            import fsspec

            self.files, self.root = fsspec.core.url_to_fs(url)

    def fetch(self, folder: Path) -> None:
        """Download the record and all complete checkpoints to a folder."""
        with self.user_errors("read"):
            names = self.names()
            for name in names:
                if name == FILE_NAME or parent(name) in complete_checkpoints(names):
                    self._get(name, folder)

    def fetch_record(self, folder: Path) -> None:
        """Download the record to a folder, and make a checkpoint folder if there are any."""
        with self.user_errors("read"):
            names = self.names()
            if FILE_NAME in names:
                self._get(FILE_NAME, folder)
            if complete_checkpoints(names):
                (folder / FOLDER).mkdir(parents=True, exist_ok=True)

    def push(self, folder: Path) -> None:
        """Upload the record and all checkpoints of a folder, and remove what it no longer has."""
        paths = [path for path in (folder / FOLDER).glob("[0-9]*/*") if path.is_file()]
        local = [path.relative_to(folder).as_posix() for path in paths]
        if (folder / FILE_NAME).is_file():
            local.append(FILE_NAME)
        with self.user_errors("written"):
            remote = self.names()
            uploaded = complete_checkpoints(remote)
            new = [name for name in local if parent(name) not in uploaded]
            for name in sorted(new, key=is_manifest):
                self.put(folder / name, name)
            outdated = set(remote) - set(local)
            for name in sorted(outdated, key=is_manifest, reverse=True):
                self.files.rm_file(f"{self.root}/{name}")

    def put(self, path: Path, name: str) -> None:
        """Upload a file under a name."""
        with self.user_errors("written"):
            target = f"{self.root}/{name}"
            self.files.makedirs(parent(target), exist_ok=True)
            self.files.put_file(str(path), target)

    def names(self) -> list[str]:
        """Return the names of all files of the run."""
        self.files.invalidate_cache()
        names = [path[len(self.root) :].lstrip("/") for path in self.files.find(self.root)]
        return [name for name in names if FILES_OF_A_RUN.fullmatch(name)]

    def _get(self, name: str, folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        self.files.get_file(f"{self.root}/{name}", str(folder / name))

    @contextmanager
    def user_errors(self, what: str) -> Iterator[None]:
        """Turn every error into a `UserError`: each type of storage has its own exceptions."""
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
    """Return the folder part of a name, "." if it has none."""
    return str(PurePosixPath(name).parent)


def is_manifest(name: str) -> bool:
    """Tell whether a file is the manifest of a checkpoint."""
    return PurePosixPath(name).name == MANIFEST


def complete_checkpoints(names: Sequence[str]) -> set[str]:
    """Return the folders of checkpoints that have a manifest.

    >>> complete_checkpoints(["checkpoints/01/manifest.json", "checkpoints/02/state.json"])
    {'checkpoints/01'}
    """
    return {parent(name) for name in names if is_manifest(name)}


class RemoteCheckpointManager(CheckpointManager):
    """Saves the checkpoints of a run, and uploads them to a URL."""

    def __init__(
        self, folder: Path, remote: Remote, *, minutes: float, steps: int | None = None
    ) -> None:
        super().__init__(folder, minutes=minutes, steps=steps)
        self.folder, self.remote = folder, remote

    def save(self, state: dict[str, Any]) -> None:
        """Save and upload a state; then stop, if that was requested."""
        with self.deferred_signals():
            super().save(state)
            self.remote.push(self.folder)

    def clear(self) -> None:
        """Remove all checkpoints; at the URL, after the record has been uploaded."""
        super().clear()
        self.remote.push(self.folder)


@contextmanager
def checkpoints_at(
    folder: Path, url: str | None, *, minutes: float, steps: int | None = None
) -> Iterator[tuple[Path, CheckpointManager]]:
    """Yield the folder a run works in, and its checkpoint manager.

    With a URL that is a temporary folder, with a copy of what is at the URL.
    """
    if url is None:
        yield folder, CheckpointManager(folder, minutes=minutes, steps=steps)
        return
    remote = Remote(url)
    with tempfile.TemporaryDirectory(prefix="classgrad-") as temporary:
        folder = Path(temporary) / PurePosixPath(url).name
        remote.fetch(folder)
        yield folder, RemoteCheckpointManager(folder, remote, minutes=minutes, steps=steps)


@dataclass(frozen=True)
class Results:
    """Where the results of jobs are: a folder, or a URL and a temporary folder for its records."""

    folder: Path
    url: str | None = None

    def look_up(self, jobs: Sequence[Job]) -> list[Job]:
        """Return the jobs with their URLs, if any, and download their records."""
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
