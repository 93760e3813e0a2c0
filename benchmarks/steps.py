"""The cost of projection in a training step, and its growth with the number of classes learnt."""

from benchmarks.learner import Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench

METHODS = ("gpm", "cgp", "sgp")


def measure(bench: Bench) -> list[Row]:
    """Time steps with projection, without it, and after ten classes only."""
    learners = {}
    for method in METHODS:
        learners[f"{method} late"] = Learner(method)
        learners[f"{method} bare"] = Learner(method, protect=False)
        learners[f"{method} early"] = Learner(method, 1)
    calls = {name: learner.step for name, learner in learners.items()}
    timings = bench.alternate(calls, rounds=15, turn=3)
    rows = []
    for method in METHODS:
        late, bare, early = (
            Quantity.of(timings[f"{method} {which}"]) for which in ("late", "bare", "early")
        )
        cost = Bound(1.15) if method == "sgp" else Bound(1.10, aim=1.05)
        growth = Bound(1.10)
        rows += [
            Row.share(f"step of {method}: with / without projection", late, bare, bound=cost),
            Row.share(
                f"step of {method}: after 100 / after 10 classes",
                late,
                early,
                bound=growth,
            ),
        ]
    return rows
