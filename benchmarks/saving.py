"""The cost of saving checkpoints, and of checking after every step whether one is due."""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.images import random_stream
from benchmarks.learner import Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad.checkpoints.manager import MINUTES
from classgrad.runs.run import Run

CALLS = 1000  # timed together, because one is too short for the clock


def measure(bench: Bench) -> list[Row]:
    """Time saves of CGP after ten tasks, with bases and momentum, and checks without a save."""
    learner = Learner("cgp")
    learner.step()  # for the momentum
    # In the current folder, because the default one for temporary files may be in memory.
    with tempfile.TemporaryDirectory(dir=".", prefix=".saving-") as temporary:
        folder = Path(temporary)
        run = run_at(learner, folder)
        assert run.checkpoints is not None
        checkpoints = run.checkpoints

        def state() -> dict[str, Any]:
            return run.state_dict({**learner.loop.state_dict(), "round": 0})

        timings = bench.alternate({"save": lambda: checkpoints.save(state())}, rounds=5)
        newest = max(checkpoints.store.folder.iterdir())
        size = sum(file.stat().st_size for file in newest.iterdir())

        def check() -> None:
            for _ in range(CALLS):
                checkpoints.after_step(state)

        timings |= bench.alternate({"check": check, "step": learner.step}, rounds=10)
    return [
        Row.share(
            f"a save of cgp / {MINUTES:g} minutes of training",
            Quantity.of(timings["save"]),
            Quantity(60 * MINUTES),
            bound=Bound(0.01),
            note=f"{size / 1e6:.0f} MB after ten tasks: weights, momentum and bases",
            details={"bytes": size},
        ),
        Row.share(
            "whether to save, after every step / a step",
            Quantity.of(timings["check"].times(1 / CALLS)),
            Quantity.of(timings["step"]),
            bound=Bound(0.01),
        ),
    ]


def run_at(learner: Learner, folder: Path) -> Run:
    """Return a run with the network and method of a learner."""
    run = Run(learner.plan, random_stream(1, per_class=2), folder)
    run.session.net, run.session.method = learner.net, learner.method
    return run
