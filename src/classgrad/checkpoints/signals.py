"""Ctrl-C and requests to end, heard by whoever has something to save first."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

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
