"""Times of things that are to be compared: in turns, in one process, the best of several."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """The best of `repeats` times, in seconds."""

    best: float
    repeats: int

    def times(self, factor: float) -> "Timing":
        """Return the time of `factor` as much work."""
        return Timing(self.best * factor, self.repeats)


class Bench:
    """What times the calls of a measurement; `watch` is told the share that is done."""

    def __init__(
        self, quick: bool = False, watch: Callable[[float], None] = lambda share: None
    ) -> None:
        self.quick, self.watch = quick, watch

    def alternate(
        self,
        calls: Mapping[str, Call],
        rounds: int,
        *,
        turn: int = 1,
        slow: Mapping[str, int] | None = None,
    ) -> dict[str, Timing]:
        """Time the calls in turns, `turn` times each in every round, and return the best of each.

        Turns let whatever else slows the machine down for a while slow down all of them. Each is
        called once before, to warm up, but for the `slow` ones: those are only timed as often as
        stated. A quick bench does a tenth of the rounds.
        """
        most = {name: 1 if self.quick else count for name, count in (slow or {}).items()}
        rounds = max(rounds // 10, 2) if self.quick else rounds
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for name, call in calls.items():
            if name not in most:
                call()
        for number in range(rounds):
            for name, call in calls.items():
                for _ in range(turn):
                    if len(seconds[name]) < most.get(name, rounds * turn):
                        seconds[name].append(timed(call))
            self.watch((number + 1) / rounds)
        return {name: Timing(min(found), len(found)) for name, found in seconds.items()}


def timed(call: Call) -> float:
    """Return how many seconds a call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
