"""The cost of projection in a training step, and its growth with the number of classes learnt."""

from benchmarks.learner import Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench

METHODS = ("gpm", "cgp", "sgp")
RELEASED = "cgp released: reading=released, as in the recipe fast, with a basis for each group"


def measure(bench: Bench) -> list[Row]:
    """Time steps with projection, without it, after ten classes only, and plain ones."""
    learners = {name: Learner(name) for name in ("finetune", "trgp", "owm")}
    learners["released"] = Learner("cgp", reading="released")
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
    plain, trgp, owm, contrast, released, bare = (
        Quantity.of(timings[name])
        for name in ("finetune", "trgp", "owm", "cgp late", "released", "cgp bare")
    )
    return [
        *rows,
        Row.share(
            "step of cgp released: with / without projection",
            released,
            bare,
            bound=Bound(1.15),
            note=RELEASED,
        ),
        Row.share("step of owm / step of finetune", owm, plain, bound=Bound(1.15)),
        Row.share("step of trgp / step of finetune", trgp, plain, bound=Bound(1.15)),
        Row.share("step of cgp / step of finetune", contrast, plain, bound=Bound(2.05)),
    ]
