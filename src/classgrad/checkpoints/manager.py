"""When the state of a run is saved: now and then, and when the process is asked to stop."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from classgrad.checkpoints.store import Loaded, Store
from classgrad.distributed import world
from classgrad.errors import Stopped

Hear = Callable[[int, FrameType | None], None]


@contextmanager
def heard_by(hear: Hear) -> Iterator[None]:
    """Call `hear` with the number of every such signal while the block runs."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread is told of signals
        return
    before = {n: signal.signal(n, hear) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


FOLDER = "checkpoints"
MINUTES = 5.0
WORTH_SAVING = 30.0  # seconds of training that the base update after it should not put at risk


class CheckpointManager:
    """The checkpoints of a run; saves after so many minutes or steps, whichever comes first.

    Several processes save and stop after the same step, which they agree on; the main one writes.
    """

    def __init__(self, folder: Path, *, minutes: float = MINUTES, steps: int | None = None) -> None:
        self.store = Store(folder / FOLDER)
        self.minutes, self.steps = minutes, steps
        self.asked: int | None = None  # the signal that came, if one did
        self._heard: int | None = None  # the same, before other processes know
        self._saved = time.monotonic()
        self._taken = 0  # steps since then
        self._patient = False

    def load(self) -> Loaded | None:
        """Return the newest state that is whole."""
        return self.store.load()

    def due(self) -> bool:
        """Tell, after a step, whether it is time to save."""
        self._taken += 1
        late = time.monotonic() - self._saved >= 60 * self.minutes
        many = self.steps is not None and self._taken >= self.steps
        return self._agreed(late or many)

    def worth_saving(self) -> bool:
        """Tell, when training has ended, whether it should be saved before anything else."""
        return self._agreed(time.monotonic() - self._saved >= WORTH_SAVING)

    def _agreed(self, wanted: bool) -> bool:
        """Tell whether any process wants to save, or is asked to stop: then all are."""
        if world().size > 1:
            late, asked = world().largest([wanted, self._heard or 0])
            wanted, self.asked = bool(late), asked or None
        return wanted or self.asked is not None

    def raise_if_stopped(self) -> None:
        """Stop, if that was asked for when several processes could not agree on it."""
        if self._agreed(False) and self.asked is not None:
            raise Stopped(self.asked)

    def after_step(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save the state if it is time to, and stop if that was asked for."""
        if self.due():
            self._save_or_stop(state())

    def after_training(self, state: Callable[[], dict[str, Any]]) -> None:
        """Save before the base update, which can take long, and stop if that was asked for."""
        if self.worth_saving():
            self._save_or_stop(state())

    def _save_or_stop(self, state: dict[str, Any]) -> None:
        self.save(state)
        if self.asked is not None:
            raise Stopped(self.asked)

    def save(self, state: dict[str, Any]) -> None:
        """Save a state; then stop, if that was asked for."""
        with self.patience():
            world().on_main_process(lambda: self.store.save(state))
        self._saved, self._taken = time.monotonic(), 0

    def clear(self) -> None:
        """Remove all checkpoints."""
        world().on_main_process(self.store.clear)

    def listening(self) -> AbstractContextManager[None]:
        """Turn Ctrl-C and a request to end into `Stopped` while the block runs."""
        return heard_by(self._hear)

    @contextmanager
    def patience(self) -> Iterator[None]:
        """Let a first signal wait until the block has come to an end."""
        outer, self._patient = self._patient, True
        try:
            yield
        finally:
            self._patient = outer
        if self.asked is not None and not outer:
            raise Stopped(self.asked)

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if world().size > 1:  # a process that left alone would keep the others waiting
            self._heard = number
            return
        again = self.asked is not None
        self.asked = number
        if again or not self._patient:
            raise Stopped(number)
