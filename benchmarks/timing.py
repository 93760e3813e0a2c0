"""Timing of calls that are compared: alternately, in one process, the best of several."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Call = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Timing:
    """The best of `repeats` times, in seconds."""

    best: float
    repeats: int

    def times(self, factor: float) -> "Timing":
        """Return the time of `factor` as much work."""
        return Timing(self.best * factor, self.repeats)


class Bench:
    """Times the calls of a measurement; `watch` is called with the share that is done.

    After `seconds` there is no further round, so that a busy machine has fewer repeats.
    """

    def __init__(
        self,
        quick: bool = False,
        watch: Callable[[float], None] = lambda share: None,
        seconds: float = math.inf,
    ) -> None:
        self.quick, self.watch = quick, watch
        self.end = time.perf_counter() + seconds

    def alternate(
        self,
        calls: Mapping[str, Call],
        rounds: int,
        *,
        turn: int = 1,
        slow: Mapping[str, int] | None = None,
        clock: Clock | None = None,
    ) -> dict[str, Timing]:
        """Time the calls alternately, `turn` times each in every round; return the best of each.

        Alternating, so that anything else that slows the machine down for a while affects all of
        them. Each is called once before, to warm up, except `slow` ones, which are timed only the
        given number of times. A quick bench runs a tenth of the rounds; there are at least two.
        `clock` returns seconds; by default they are those of the wall clock.
        """
        limits = {name: 1 if self.quick else count for name, count in (slow or {}).items()}
        rounds = max(rounds // 10, 2) if self.quick else rounds
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for name, call in calls.items():
            if name not in limits:
                call()
        for number in range(rounds):
            for name, call in calls.items():
                for _ in range(turn):
                    if len(seconds[name]) < limits.get(name, rounds * turn):
                        seconds[name].append(timed(call, clock))
            self.watch((number + 1) / rounds)
            if number > 0 and time.perf_counter() > self.end:
                break
        return {name: Timing(min(times), len(times)) for name, times in seconds.items()}


def timed(call: Call, clock: Clock | None = None) -> float:
    """Return how many seconds a call takes."""
    clock = clock or time.perf_counter
    start = clock()
    call()
    return clock() - start
