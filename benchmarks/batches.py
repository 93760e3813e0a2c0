"""Steps of AlexNet-5 with batches of several sizes, with projection and without."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.learner import Learner
from benchmarks.timing import Bench, Call

SIZES = (16, 32, 64, 128, 256, 512)


def measure_batches(bench: Bench, sizes: Sequence[int] = SIZES) -> list[dict[str, Any]]:
    """Time steps of GPM, with the ranks at the end of the recorded stream of ten tasks."""
    learners = {"step": Learner("gpm"), "bare": Learner("gpm", protect=False)}
    calls: dict[str, Call] = {
        f"{name} {size}": partial(learner.loop.step, learner.task, torch.arange(size))
        for size in sizes
        for name, learner in learners.items()
    }
    timings = bench.alternate(calls, rounds=10, turn=2)
    rows = []
    for size in sizes:
        step, bare = timings[f"step {size}"], timings[f"bare {size}"]
        rows.append(
            {
                "batch": size,
                "bare_seconds": bare.best,
                "step_seconds": step.best,
                "step_repeats": step.repeats,
                "bare_images_per_second": size / bare.best,
                "step_images_per_second": size / step.best,
            }
        )
    return rows
