"""Which of the processes of a run says what is wrong, so that it is said once."""

import os
from datetime import timedelta

from torch import distributed

PATIENCE = timedelta(seconds=3)  # for the main process to say what is wrong


class Speaker:
    """Whether process number `process_index` of `size` speaks; a store lets them know of others."""

    def __init__(self, process_index: int, size: int, store: distributed.Store | None) -> None:
        self.process_index, self.size, self._store = process_index, size, store

    def speaks(self) -> bool:
        """Tell whether this process is to say what is wrong: the main one, or one for it."""
        if self._store is None:  # all that torchrun started here will say the same
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
        """Tell whether this process speaks for a main one that does not: one is enough."""
        assert self._store is not None
        try:
            return self._store.add("speakers", 1) == 1
        except RuntimeError:  # the store has died with the main process, and perhaps its machine
            return self.process_index == 1 or os.environ.get("LOCAL_RANK") == "0"

    def spoken(self) -> None:
        """Tell the others, when something was said, and wait until they know."""
        if self._store is None or self.process_index > 0:
            return
        try:
            self._store.set("said", "")
            self._store.wait([f"heard {index}" for index in range(1, self.size)], PATIENCE)
        except RuntimeError:
            return  # they are gone
