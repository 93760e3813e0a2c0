"""The share of an epoch that is neither forward, backward, optimiser nor augmentation."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any
from unittest import mock

from torch import Tensor

from benchmarks.learner import Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench, timed
from classgrad.methods.projection import cgp
from classgrad.training.loop import fit
from classgrad.training.sgd import SGD

PARTS: list[tuple[str, Any, str]] = [
    ("forward", cgp.CGP, "loss"),
    ("augmentation", cgp, "augmix"),
    ("backward", Tensor, "backward"),
    ("optimiser", SGD, "step"),
    ("projection", cgp.CGP, "adjust_gradients"),
    ("projection", cgp.CGP, "after_step"),
]


class Parts:
    """Seconds spent in each part; time in a nested part counts for the inner one only."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {name: 0.0 for name, _, _ in PARTS}
        self._inner = [0.0]

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function, to add its time to a part."""

        @wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                whole = time.perf_counter() - start
                self.seconds[name] += whole - self._inner.pop()
                self._inner[-1] += whole

        return wrapper

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time the parts of training in the block."""
        with ExitStack() as patches:
            for name, owner, attribute in PARTS:
                function = self.timed(name, getattr(owner, attribute))
                patches.enter_context(mock.patch.object(owner, attribute, function))
            yield


def measure(bench: Bench) -> list[Row]:
    """Train an epoch of ten batches with CGP several times, and divide the fastest into parts."""
    learner = Learner("cgp")

    def epoch() -> None:
        fit(learner.net, learner.method, [learner.task], learner.loop.training, seed=1)

    epoch()
    best, fastest = float("inf"), Parts()
    repeats = 2 if bench.quick else 6
    for number in range(repeats):
        parts = Parts()
        with parts.watching():
            seconds = timed(epoch)
        if seconds < best:
            best, fastest = seconds, parts
        bench.watch((number + 1) / repeats)
    projection = fastest.seconds["projection"]
    outside = best - sum(fastest.seconds.values()) + projection
    return [
        Row.share(
            "epoch of cgp: outside its main parts / all",
            Quantity(outside, "s", repeats),
            Quantity(best, "s", repeats),
            bound=Bound(0.03),
            note="main parts are forward, backward, optimiser and AugMix; "
            f"{projection / best:.1%} of the epoch is projection, "
            f"{(outside - projection) / best:.1%} the rest",
            details={"seconds": fastest.seconds},
        )
    ]
