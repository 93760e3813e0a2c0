"""Processes on several hosts that share a folder, all played by this one, in no time."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from classgrad.checkpoints import lock


class Hosts:
    """Which host this process plays, and the clock that all of them have."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.meanwhile: Callable[[], object] = lambda: None  # what others do, every second
        self._name, self._held = "first", {"first": lock.HELD}
        self._patch = monkeypatch
        clock = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep, time=time.time)
        monkeypatch.setattr(lock, "time", clock)
        monkeypatch.setattr(lock, "socket", SimpleNamespace(gethostname=lambda: self._name))

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.meanwhile()

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Be a process on another host while the block runs."""
        before, self._name = self._name, name
        self._patch.setattr(lock, "HELD", self._held.setdefault(name, {}))
        try:
            yield
        finally:
            self._name = before
            self._patch.setattr(lock, "HELD", self._held[before])

    def take(self, name: str, folder: Path) -> lock.Lock:
        """Lock a folder on another host, and keep it locked."""
        with self.on(name):
            return lock.Lock(folder).__enter__()


def not_renewed(path: Path, minutes: float = 11) -> None:
    """Let a lock look as if it was not renewed for so long, by the clock of the filesystem."""
    changed = time.time() - 60 * minutes
    os.utime(path, (changed, changed))


def paused(
    monkeypatch: pytest.MonkeyPatch, at: int, meanwhile: Callable[[], object]
) -> Callable[[], int]:
    """Pause this process before its operation `at` on files, while others do something.

    Returns a function that tells how many operations there were.
    """
    count, inside = 0, False

    def pausing(operation: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*given: Any, **named: Any) -> Any:
            nonlocal count, inside
            if not inside:
                count += 1
                if count == at:
                    inside = True
                    meanwhile()
                    inside = False
            return operation(*given, **named)

        return counted

    names = ("open", "listdir", "mkdir", "rename", "replace", "fsync", "unlink", "rmdir", "link")
    for name in names:
        monkeypatch.setattr(os, name, pausing(getattr(os, name)))
    for where in ("classgrad.files.open", "classgrad.checkpoints.lock.open"):
        monkeypatch.setattr(where, pausing(open), raising=False)
    return lambda: count
