"""Durable and atomic writing: what reaches the disk in which order, and what a failure leaves."""

import errno
import os
import stat
from pathlib import Path

import pytest

from classgrad import files


@pytest.fixture
def done(tmp_path, monkeypatch):
    """What was done to the disk, by name: fsyncs and renames."""
    noted = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(handle):
        noted.append(("fsync", os.path.relpath(os.readlink(f"/proc/self/fd/{handle}"), tmp_path)))
        fsync(handle)

    def note_replace(part, path):
        noted.append(("replace", os.path.relpath(path, tmp_path)))
        replace(part, path)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "replace", note_replace)
    return noted


def test_content_comes_before_the_name_and_the_name_before_the_folder(tmp_path, done):
    files.write_atomic(tmp_path / "a", lambda part: part.write_bytes(b"new"))
    (content, part), *rest = done
    assert content == "fsync"
    assert part.startswith(".")
    assert part.endswith(".part")
    assert rest == [("replace", "a"), ("fsync", ".")]
    assert (tmp_path / "a").read_bytes() == b"new"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_text_is_written_in_the_same_order(tmp_path, done):
    files.write_text(tmp_path / "a", "η = 0.7\n")
    assert (tmp_path / "a").read_bytes() == "η = 0.7\n".encode()
    assert done[1:] == [("replace", "a"), ("fsync", ".")]


def test_a_new_file_is_durable_and_never_overwrites(tmp_path, done):
    files.write_new(tmp_path / "a", [b"one ", memoryview(b"two")])
    assert done == [("fsync", "a")]
    with pytest.raises(FileExistsError):
        files.write_new(tmp_path / "a", [b"other"])
    assert (tmp_path / "a").read_bytes() == b"one two"


def test_the_name_of_every_new_folder_is_durable(tmp_path, done):
    files.make_folder(tmp_path / "a" / "b")
    assert done == [("fsync", "."), ("fsync", "a")]
    files.make_folder(tmp_path / "a" / "b")
    assert len(done) == 2


@pytest.mark.parametrize("name", ["fsync", "replace"])
def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path, monkeypatch, name):
    (tmp_path / "a").write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError, match="full"):
        files.write_atomic(tmp_path / "a", lambda part: part.write_text("new"))
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_writer_that_fails_leaves_what_was_there_and_nothing_else(tmp_path):
    (tmp_path / "a").write_text("old")

    def write(part: Path) -> None:
        part.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        files.write_atomic(tmp_path / "a", write)
    assert (tmp_path / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_who_may_read_a_file_is_up_to_the_user(tmp_path, umask):
    before = os.umask(umask)
    try:
        files.write_atomic(tmp_path / "a", lambda part: part.chmod(0o600))
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o666 & ~umask


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EBADF, errno.ENOTSUP])
def test_filesystems_that_cannot_sync_folders_are_no_error(tmp_path, monkeypatch, code):
    def fail(_):
        raise OSError(code, "cannot")

    monkeypatch.setattr(os, "fsync", fail)
    files.sync_folder(tmp_path)


def test_a_disk_that_fails_is_an_error(tmp_path, monkeypatch):
    def fail(_):
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="broken"):
        files.sync_folder(tmp_path)
