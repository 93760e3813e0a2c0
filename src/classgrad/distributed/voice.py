"""Which of the processes of a run says what is wrong, so that it is said once."""

import os
from datetime import timedelta

from torch import distributed

PATIENCE = timedelta(seconds=3)  # for the first process to say what is wrong


class Voice:
    """The voice of process number `rank` of `size`, which know each other by a store."""

    def __init__(self, rank: int, size: int, store: distributed.Store | None) -> None:
        self.rank, self.size, self._store = rank, size, store

    def speaks(self) -> bool:
        """Tell whether this process is to say what is wrong: the first, or one that it is not."""
        if self._store is None:  # all that torchrun started here will say the same
            alone = os.environ.get("WORLD_SIZE", "1") == "1"
            return alone or os.environ.get("LOCAL_RANK", "0") == "0"
        if self.rank == 0:
            return True
        try:
            self._store.wait(["said"], PATIENCE)
            self._store.set(f"heard {self.rank}", "")
        except RuntimeError:
            return self._is_next()
        return False

    def _is_next(self) -> bool:
        """Tell whether this process speaks for a first one that does not: one of them is enough."""
        assert self._store is not None
        try:
            return self._store.add("speakers", 1) == 1
        except RuntimeError:  # the store has died with the first process, and perhaps its machine
            return self.rank == 1 or os.environ.get("LOCAL_RANK") == "0"

    def spoken(self) -> None:
        """Tell the others, when something was said, and wait until they know."""
        if self._store is None or self.rank > 0:
            return
        try:
            self._store.set("said", "")
            self._store.wait([f"heard {rank}" for rank in range(1, self.size)], PATIENCE)
        except RuntimeError:
            return  # they are gone
