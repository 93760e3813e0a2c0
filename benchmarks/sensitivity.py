"""The pass over a task's samples after which EWC, MAS and IMM know how much each weight matters."""

import torch
from torch.nn import functional

from benchmarks.images import CLASSES
from benchmarks.learner import BATCH, Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad.methods.penalty.sensitivity import per_sample_sums


def measure(bench: Bench) -> list[Row]:
    """Time the squared gradients of every sample of a batch, and one forward and backward pass."""
    learner = Learner("finetune")
    net, task = learner.net, len(learner.net.heads) - 1
    images = torch.randn(BATCH, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    labels = torch.arange(BATCH) % CLASSES
    totals: dict[str, torch.Tensor] = {}  # of all batches

    def losses() -> torch.Tensor:
        return functional.cross_entropy(net(images, task), labels, reduction="none")

    def plain() -> None:
        net.zero_grad()
        losses().mean().backward()

    def sensitivities() -> None:
        with net.evaluating(), net.detached_batch_stats():
            per_sample_sums(net.protected(), losses, torch.square, totals)

    timings = bench.alternate({"plain": plain, "squares": sensitivities}, rounds=10, turn=2)
    return [
        Row.share(
            "squared gradients of 64 samples / forward and backward",
            Quantity.of(timings["squares"]),
            Quantity.of(timings["plain"]),
            bound=Bound(2.0),
        )
    ]
