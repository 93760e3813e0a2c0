"""What a step of each contender costs: time, and memory."""

import copy
import json
import tempfile
from functools import partial
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.guards.contenders import FineTuning
from benchmarks.guards.learning import Trainer, learner
from benchmarks.guards.models import Model
from benchmarks.guards.tasks import DigitTask
from benchmarks.timing import Bench, Call, Timing

STEPS, ROUNDS = 5, 20  # timed together, and how often


def second_task(
    contender: FineTuning, start: Model, tasks: list[DigitTask], rate: float
) -> Trainer:
    """Return what takes the steps of the second task, after the first was protected."""
    model = copy.deepcopy(start)
    contender.end_task(model, tasks[0].train, 0)
    net = contender.begin_task(model, 1)
    optimizer = learner(net, model, 1, rate)
    contender.watch(optimizer)
    return Trainer(net, optimizer, tasks[1].train, 1, torch.Generator().manual_seed(0))


def step_times(trainers: dict[str, Trainer], rounds: int = ROUNDS) -> dict[str, Timing]:
    """Time steps of the trainers in turn; the best of each counts."""

    calls = {name: partial(take_steps, trainer, STEPS) for name, trainer in trainers.items()}
    return Bench().alternate(calls, rounds)


def take_steps(trainer: Trainer, count: int) -> None:
    """Take some steps."""
    for _ in range(count):
        trainer.step()


def peak_bytes(
    contender: FineTuning, start: Model, tasks: list[DigitTask], rate: float
) -> dict[str, int]:
    """Return the largest sum of tensors while steps are taken, and before, when a task ended.

    The model, its gradients, the optimiser's state and all a contender has are included.
    """
    prepared: list[Trainer] = []
    before = allocations(lambda: prepared.append(second_task(contender, start, tasks, rate)))
    steps = allocations(partial(take_steps, prepared[0], 2))
    return {"step": sum(before) + highest(steps), "end of task": highest(before)}


def highest(changes: list[int]) -> int:
    """Return the highest sum on the way.

    >>> highest([3, -1, 2, -4])
    4
    """
    total = most = 0
    for change in changes:
        total += change
        most = max(most, total)
    return most


def allocations(call: Call) -> list[int]:
    """Return the bytes that a call allocates for tensors or, below 0, frees, one after another."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(path))
        events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    memory = [event for event in events if event["name"] == "[memory]"]
    return [event["args"]["Bytes"] for event in sorted(memory, key=lambda event: event["ts"])]
