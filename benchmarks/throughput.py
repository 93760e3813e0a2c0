"""The share of the machine's matrix product rate that a training step reaches."""

import torch

from benchmarks.learner import Learner, flops
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench

SIZE = 2048


def measure(bench: Bench) -> list[Row]:
    """Compare the rates of training steps with that of one float32 matrix product."""
    steps = {
        "finetune": Learner("finetune").step,
        "gpm without projection": Learner("gpm", protect=False).step,
        "gpm with projection": Learner("gpm").step,
    }
    rng = torch.Generator().manual_seed(0)
    a, b = torch.rand(2, SIZE, SIZE, generator=rng)
    out = torch.empty(SIZE, SIZE)
    calls = {**steps, "product": lambda: torch.mm(a, b, out=out)}
    timings = bench.alternate(calls, rounds=15, turn=3)
    machine = Quantity.rate(2 * SIZE**3, timings["product"])
    counts = {name: flops(step) for name, step in steps.items()}
    return [
        Row.share(
            f"flop rate: {name} / matrix product",
            Quantity.rate(counts["finetune"], timing),
            machine,
            bound=Bound(0.45, at_least=True, aim=0.6),
            note="operations of the step of finetune; those of the projection are not counted",
            details={"flops_step": counts[name], "seconds_step": timing.best},
        )
        for name, timing in timings.items()
        if name in steps
    ]
