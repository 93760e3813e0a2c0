"""When the state of a run is saved: at intervals, and when a signal asks the process to stop.

The processes of a run save in one folder, which the main process locks for all.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from classgrad.checkpoints.lock import Lock
from classgrad.checkpoints.store import Loaded, Store
from classgrad.distributed import world
from classgrad.errors import Stopped

SignalHandler = Callable[[int, FrameType | None], None]


@contextmanager
def on_stop_signal(handler: SignalHandler) -> Iterator[None]:
    """Call `handler` on SIGINT and SIGTERM while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    before = {n: signal.signal(n, handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


ONE_FOLDER = "give a folder for results that all of them see"
FILE_TIMEOUT = 60.0  # seconds until a file of one process is visible to others


@contextmanager
def locking(folder: Path) -> Iterator[None]:
    """Lock a folder while the block runs; the main process does it for all."""
    lock = Lock(folder)
    world().on_main_process(lock.__enter__)
    try:
        if world().size > 1:
            visible = {f"whether they see '{folder}'": wait_for_file(lock.path)}
            world().refuse_differences(visible, ONE_FOLDER)
        yield
    finally:
        lock.release()


def wait_for_file(path: Path) -> bool:
    """Tell whether a file exists; wait, because a network filesystem may show it late."""
    end = time.monotonic() + FILE_TIMEOUT
    while True:
        with suppress(OSError):
            if path.name in os.listdir(path.parent):  # not cached, as a lookup of the name may be
                return True
        if time.monotonic() > end:
            return False
        time.sleep(0.1)


FOLDER = "checkpoints"
MINUTES = 5.0
WORTH_SAVING = 30.0  # seconds of training not to be lost in the base update after it


class CheckpointManager:
    """Save the checkpoints of a run every few minutes or steps, whichever comes first.

    Several processes agree on the step after which they save or stop; the main process writes.
    """

    def __init__(self, folder: Path, *, minutes: float = MINUTES, steps: int | None = None) -> None:
        self.store = Store(folder / FOLDER)
        self.minutes, self.steps = minutes, steps
        self.stop_signal: int | None = None  # received by any process; None if none was
        self._own_signal: int | None = None  # received by this one, not yet shared
        self._saved_at = time.monotonic()
        self._steps_since_save = 0
        self._deferring = False

    def load(self) -> Loaded | None:
        """Return the newest state that is intact."""
        return self.store.load()

    def due(self) -> bool:
        """Count a step, and tell whether it is time to save."""
        self._steps_since_save += 1
        late = time.monotonic() - self._saved_at >= 60 * self.minutes
        many = self.steps is not None and self._steps_since_save >= self.steps
        return self._agree(late or many)

    def worth_saving(self) -> bool:
        """Tell whether to save at the end of training, before the base update."""
        return self._agree(time.monotonic() - self._saved_at >= WORTH_SAVING)

    def _agree(self, wanted: bool) -> bool:
        """Tell whether any process wants to save or was asked to stop; all get the same answer."""
        if world().size > 1:
            any_wants, number = world().max([wanted, self._own_signal or 0])
            wanted, self.stop_signal = bool(any_wants), number or None
        return wanted or self.stop_signal is not None

    def raise_if_stopped(self) -> None:
        """Stop if a signal came at a time when several processes could not agree on it."""
        if self._agree(False) and self.stop_signal is not None:
            raise Stopped(self.stop_signal)

    def after_step(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save the state if it is time to; stop if a signal came."""
        if self.due():
            self._save_or_stop(state())

    def after_training(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save before the base update, which can take long; stop if a signal came."""
        if self.worth_saving():
            self._save_or_stop(state())

    def _save_or_stop(self, state: dict[str, Any]) -> None:
        self.save(state)
        if self.stop_signal is not None:
            raise Stopped(self.stop_signal)

    def save(self, state: dict[str, Any]) -> None:
        """Save a state; then stop if a signal came."""
        with self.deferred_signals():
            world().on_main_process(lambda: self.store.save(state))
        self._saved_at, self._steps_since_save = time.monotonic(), 0

    def clear(self) -> None:
        """Remove all checkpoints."""
        world().on_main_process(self.store.clear)

    def handle_stop_signals(self) -> AbstractContextManager[None]:
        """Turn Ctrl-C and SIGTERM into `Stopped` while the block runs."""
        return on_stop_signal(self._on_signal)

    @contextmanager
    def deferred_signals(self) -> Iterator[None]:
        """Defer a first signal to the end of the block."""
        outer, self._deferring = self._deferring, True
        try:
            yield
        finally:
            self._deferring = outer
        if self.stop_signal is not None and not outer:
            raise Stopped(self.stop_signal)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if world().size > 1:  # the others would wait for a process that stopped alone
            self._own_signal = number
            return
        again = self.stop_signal is not None
        self.stop_signal = number
        if again or not self._deferring:
            raise Stopped(number)
