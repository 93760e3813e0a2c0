"""Which of the processes of a run prints an error, so that it is printed once."""

import os
from datetime import timedelta

from torch import distributed

PATIENCE = timedelta(seconds=3)  # to wait for the main process to print an error


class Speaker:
    """Decides whether process `process_index` of `size` prints; a store connects them."""

    def __init__(self, process_index: int, size: int, store: distributed.Store | None) -> None:
        self.process_index, self.size, self._store = process_index, size, store

    def speaks(self) -> bool:
        """Tell whether this process prints an error: the main process, or one in its place."""
        if self._store is None:  # not connected yet: all processes on a machine fail alike
            alone = os.environ.get("WORLD_SIZE", "1") == "1"
            return alone or os.environ.get("LOCAL_RANK", "0") == "0"
        if self.process_index == 0:
            return True
        try:
            self._store.wait(["said"], PATIENCE)
            self._store.set(f"heard {self.process_index}", "")
        except RuntimeError:
            return self._is_next()
        return False

    def _is_next(self) -> bool:
        """Tell whether this process prints in place of a silent main process: only one does."""
        assert self._store is not None
        try:
            return self._store.add("speakers", 1) == 1
        except RuntimeError:  # the store has died with the main process, or with its machine
            return self.process_index == 1 or os.environ.get("LOCAL_RANK") == "0"

    def spoken(self) -> None:
        """Tell the others that the main process has printed, and wait until they know."""
        if self._store is None or self.process_index > 0:
            return
        try:
            self._store.set("said", "")
            self._store.wait([f"heard {index}" for index in range(1, self.size)], PATIENCE)
        except RuntimeError:
            return  # they are gone
