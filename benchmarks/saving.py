"""What it costs to save the state of a run now and then, and to ask after every step whether to."""

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.images import random_stream
from benchmarks.learner import Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad.checkpoints.manager import MINUTES
from classgrad.runs.run import Run

MANY = 1000  # calls that are timed as one, because one is shorter than what a clock can tell


def measure(bench: Bench) -> list[Row]:
    """Time saves of CGP after ten tasks, with bases and momentum, and steps without one."""
    learner = Learner("cgp")
    learner.step()  # for the momentum
    # Here, because the usual place for temporary folders may be in memory.
    with tempfile.TemporaryDirectory(dir=".", prefix=".saving-") as place:
        folder = Path(place)
        run = run_at(learner, folder)
        assert run.checkpoints is not None
        checkpoints = run.checkpoints

        def state() -> dict[str, Any]:
            return run.state_dict({**learner.loop.state_dict(), "round": 0})

        found = bench.alternate({"save": lambda: checkpoints.save(state())}, rounds=5)
        newest = max(checkpoints.store.folder.iterdir())
        size = sum(file.stat().st_size for file in newest.iterdir())

        def ask() -> None:
            for _ in range(MANY):
                checkpoints.after_step(state)

        found |= bench.alternate({"ask": ask, "step": learner.step}, rounds=10)
    return [
        Row.share(
            f"a save of cgp / {MINUTES:g} minutes of training",
            Quantity.of(found["save"]),
            Quantity(60 * MINUTES),
            bound=Bound(0.01),
            note=f"{size / 1e6:.0f} MB after ten tasks: weights, momentum and bases",
            details={"bytes": size},
        ),
        Row.share(
            "whether to save, after every step / a step",
            Quantity.of(found["ask"].times(1 / MANY)),
            Quantity.of(found["step"]),
            bound=Bound(0.01),
        ),
    ]


def run_at(learner: Learner, folder: Path) -> Run:
    """Return a run that stands where the learner does."""
    run = Run(learner.plan, random_stream(1, per_class=2), folder)
    run.session.net, run.session.method = learner.net, learner.method
    return run
