"""How much faster a training step is in bfloat16."""

import torch

from benchmarks.learner import Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad.devices import multiplies_bfloat16

METHODS = ("finetune", "gpm", "cgp")
EMULATED = "this processor has no instructions for bfloat16, and emulates it"


def measure(bench: Bench) -> list[Row]:
    """Time steps whose trunk multiplies in float32 and in bfloat16."""
    learners = {
        f"{method} {precision}": Learner(method, precision=precision)
        for method in METHODS
        for precision in ("float32", "bfloat16")
    }
    calls = {name: learner.step for name, learner in learners.items()}
    timings = bench.alternate(calls, rounds=15, turn=3)
    note = "" if multiplies_bfloat16(torch.device("cpu")) else EMULATED
    return [
        Row.slower(
            f"step of {method}: float32 / bfloat16",
            Quantity.of(timings[f"{method} bfloat16"]),
            Quantity.of(timings[f"{method} float32"]),
            bound=Bound(1.4, at_least=True),
            note=note,
        )
        for method in METHODS
    ]
