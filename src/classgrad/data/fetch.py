"""Download and unpack official files, and check them before they get their final names.

Of an archive only the expected members are unpacked, under names from our own table.
"""

import contextlib
import gzip
import logging
import os
import re
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from classgrad.data.datasets import Dataset, Download, file_matches
from classgrad.data.loading import Report, check
from classgrad.data.notmnist import EMPTY, FOLDERS, select_test_files
from classgrad.data.releases import describe
from classgrad.errors import UserError, shown
from classgrad.files import put_in_place, sync_folder, write_new

# Bytes. The released archives unpack to less than 190 MB.
MAX_UNPACKED = 512 * 2**20
LETTER_FILE = re.compile(r"([A-J])/([A-Za-z0-9+=_-]{1,200}\.png)")


class Unsound(ValueError):
    """The archive is not that of the release."""


class _Capped:
    """A file that returns a limited number of bytes, as a guard against decompression bombs."""

    def __init__(self, file: gzip.GzipFile, most: int) -> None:
        self.file = file
        self.left = most

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes."""
        if size > self.left:
            raise Unsound(f"it unpacks to more than {MAX_UNPACKED:,} bytes")
        # Requested bytes count even past the end: a member can declare any size, and tarfile would
        # keep requesting it.
        self.left -= size
        return self.file.read(size)


def unpack(data: Dataset, download: Download, archive: Path, stage: Path) -> None:
    """Write the members of `archive` to their places under the folder `stage`.

    The names written come from our own table, never from the archive: a member with another name
    is ignored, and one that is not a regular file is refused.
    """
    if download.unpack == "letters":
        _letters(data, download, archive, stage)
    else:
        _members(data, download, archive, stage)


def _members(data: Dataset, download: Download, archive: Path, stage: Path) -> None:
    wanted = {
        f"{download.place}/{name}": stage / download.place / name for name in download.members
    }
    (stage / download.place).mkdir(parents=True)
    for name, content in _contents(archive, wanted.__contains__, data.largest):
        write_new(wanted.pop(name), [content])
    if wanted:
        raise Unsound(f"it does not hold {next(iter(wanted))}")


def _letters(data: Dataset, download: Download, archive: Path, stage: Path) -> None:
    """Sort the files of each letter into training and test set."""
    files: dict[str, dict[str, bytes]] = {}
    folder = download.name.removesuffix(".tar.gz")
    for name, content in _contents(
        archive, lambda name: name.startswith(f"{folder}/"), data.largest
    ):
        match = LETTER_FILE.fullmatch(name.removeprefix(f"{folder}/"))
        if match and match[0] not in EMPTY:
            files.setdefault(match[1], {})[match[2]] = content
    for letter, contents in files.items():
        test = select_test_files(letter, contents)
        for split, part in FOLDERS.items():
            place = stage / download.place / part / letter
            place.mkdir(parents=True)
            for name, content in contents.items():
                if (name in test) == (split == "test"):
                    (place / name).write_bytes(content)
    if hasattr(os, "sync"):
        # Once for all files: syncing thousands of them one by one takes too long.
        os.sync()


def _contents(
    archive: Path, wanted: Callable[[str], bool], largest: int
) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of the wanted members."""
    try:
        with (
            open(archive, "rb") as packed,
            gzip.GzipFile(fileobj=packed) as file,
            tarfile.open(fileobj=_Capped(file, MAX_UNPACKED), mode="r|") as tar,  # type: ignore[call-overload]
        ):
            for member in tar:
                name = str(PurePosixPath(member.name))
                if not wanted(name) or member.isdir():
                    continue
                if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.size > largest:
                    raise Unsound(f"{name} in it is not a regular file of that size")
                content = tar.extractfile(member)
                yield name, content.read() if content else b""
    except (OSError, EOFError, tarfile.TarError, zlib.error, ValueError) as error:
        if isinstance(error, Unsound):
            raise
        raise Unsound(f"it cannot be unpacked: {error}") from None


CHUNK = 2**16  # bytes
TIMEOUT = 30  # seconds


def fetch(which: str | Dataset, root: str | Path, *, progress: bool | None = None) -> Report:
    """Download the missing files of a dataset, and return a report on all its files.

    Files are collected in the folder .downloads under `root`; those left there by an interruption
    are checked and used. `progress` shows bars on standard error, by default if that is a
    terminal. Existing files are never overwritten.
    """
    data, root = describe(which), Path(root).expanduser()
    if not data.downloads:
        place = shown(root / data.folder)
        raise UserError(
            f"{data.title} cannot be fetched, as no checksum of it is known: "
            f"download {data.by_hand} and unpack it in {place}"
        )
    report = check(data, root)
    if report.status == "complete":
        return report
    _refuse_to_overwrite(data, root, report)
    store = root / ".downloads"
    try:
        store.mkdir(parents=True, exist_ok=True)
        try:
            with _bars(sys.stderr.isatty() if progress is None else progress) as bars:
                for download in data.downloads:
                    if not _in_place(root, download):
                        file = _provided(root, download) or _download(download, root, store, bars)
                        _install(data, download, file, root, store)
        finally:
            # Only if it is empty: it may hold a partial download, or another process may use it.
            with contextlib.suppress(OSError):
                store.rmdir()
    except OSError as error:
        what = f"cannot write {shown(error.filename or store)} ({error.strerror or error})"
        raise UserError(f"{what}: free some space or choose another data folder") from None
    report = check(data, root)
    if report.status != "complete":
        raise UserError(
            f"{report.note}: some files differ from the release; move them away and try again"
        )
    return report


def _refuse_to_overwrite(data: Dataset, root: Path, report: Report) -> None:
    """Refuse to replace files that are not the release: they may be a subset kept on purpose."""
    for download in data.downloads:
        place = root / download.place
        if not os.path.lexists(place):
            continue
        if download.unpack or not place.is_file() or not _as_released(place, download):
            note = "; ".join(dict.fromkeys(finding.note for finding in report.findings))
            raise UserError(
                f"{shown(place)} exists and is not the release ({note}): move it away first"
            )


def _in_place(root: Path, download: Download) -> bool:
    place = root / download.place
    return place.exists() or (place.suffix == ".gz" and place.with_suffix("").exists())


def _provided(root: Path, download: Download) -> Path | None:
    """Return an archive that the user has put into the root, if it is the released one."""
    path = root / download.name
    if not download.unpack or not path.is_file():
        return None
    if not _as_released(path, download):
        raise UserError(f"{shown(path)} is damaged or not the release: remove it and try again")
    return path


def _as_released(path: Path, download: Download) -> bool:
    if path.stat().st_size != download.size:
        return False
    return download.checksum is None or file_matches(path, download.checksum)


def _install(data: Dataset, download: Download, file: Path, root: Path, store: Path) -> None:
    """Move a downloaded file, or the folder unpacked from it, to its final name."""
    place = root / download.place
    place.parent.mkdir(parents=True, exist_ok=True)
    if not download.unpack:
        put_in_place(file, place)
        return
    stage = Path(tempfile.mkdtemp(prefix="unpack-", dir=store))
    try:
        unpack(data, download, file, stage)
        report = check(data, stage)
        if report.status != "complete":
            raise Unsound(report.note.replace(str(stage), str(root)))
        os.replace(stage / download.place, place)
        sync_folder(place.parent)
    except Unsound as error:
        raise UserError(
            f"{shown(file)} is not the release ({shown(error)}): remove it and try again"
        ) from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    if file.parent == store:
        file.unlink()


def _download(download: Download, root: Path, store: Path, bars: Any) -> Path:
    """Download a file, or use that of an earlier attempt; its checksum is verified either way."""
    import pooch
    from requests.exceptions import RequestException

    path = store / download.name
    if path.exists() and not _as_released(path, download):
        path.unlink()
    place = root / (download.name if download.unpack else download.place)
    advice = f"download it by other means, put it at {shown(place)} and try again"
    what = f"cannot fetch {download.name} from {download.address}"
    transfer = Transfer(download, bars)
    try:
        with _quiet():
            pooch.retrieve(download.address, download.checksum, path.name, store, None, transfer)
    except RequestException as error:
        raise UserError(f"{what}: {_reason(error, download)}; {advice}") from None
    except ValueError:
        raise UserError(f"{what}: it arrived damaged or is not the release; {advice}") from None
    return path


def _reason(error: Exception, download: Download) -> str:
    from requests.exceptions import ChunkedEncodingError, ConnectionError, HTTPError, Timeout

    if isinstance(error, HTTPError) and error.response is not None:
        return f"the server answered {error.response.status_code}"
    if isinstance(error, Timeout):
        return f"no answer within {TIMEOUT} seconds"
    if isinstance(error, ChunkedEncodingError):
        return "the connection was cut"
    if isinstance(error, ConnectionError):
        return f"no connection to {urlsplit(download.address).hostname}"
    return type(error).__name__


class Transfer:
    """The downloader that is passed to pooch: it stops at the size of the release."""

    def __init__(self, download: Download, bars: Any) -> None:
        self.download = download
        self.bars = bars

    def __call__(self, url: str, output_file: str | Path, pooch: object) -> None:
        """Download `url` to `output_file`."""
        import requests

        # A transfer encoded with gzip would be decoded on arrival, and the checksum would differ.
        plain = {"Accept-Encoding": "identity"}
        task = self.bars and self.bars.add_task(self.download.name, total=self.download.size)
        left = self.download.size
        with (
            requests.get(url, stream=True, timeout=TIMEOUT, headers=plain) as response,
            open(output_file, "wb") as file,
        ):
            response.raise_for_status()
            for chunk in response.iter_content(CHUNK):
                left -= len(chunk)
                if left < 0:
                    break
                file.write(chunk)
                if self.bars:
                    self.bars.update(task, advance=len(chunk))
        if left:
            raise ValueError(f"not {self.download.size:,} bytes long")


@contextlib.contextmanager
def _bars(visible: bool) -> Iterator[Any]:
    if not visible:
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
        yield bars


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep pooch from logging what the bars already show."""
    import pooch

    logger = pooch.get_logger()
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
