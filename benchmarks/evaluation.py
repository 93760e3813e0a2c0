"""The cost of evaluation without the task, which in this network is a pass for each task."""

from dataclasses import replace
from functools import partial

import torch

from benchmarks.images import CLASSES, random_task
from benchmarks.learner import TASKS
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench, Call, Timing
from classgrad import networks
from classgrad.prediction.accuracy import (
    BATCH,
    ClassPrototypes,
    class_means,
    evaluate,
    evaluate_task_free,
)
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task

NOTE = (
    f"evaluation of a run: AlexNet-5 with affine=task, {TASKS} tasks, {BATCH} test images each; "
    "after every task all tasks so far with the task known, and the class means of the new one; "
    "with task_free=every the same images without the task, too, with task_free=end after the "
    f"last task only. Each kind of batch is timed by itself, after 1 to {TASKS} tasks, and counted "
    "as often as a run has it"
)


class Learnt:
    """A network that has learnt ten tasks, and a batch of images of each."""

    def __init__(self) -> None:
        plan = make_plan("split-cifar100", "finetune")
        self.net = networks.build(plan.network, (3, 32, 32), **plan.network_options.model_dump())
        self.tasks = [one_batch(number) for number in range(TASKS)]
        self.known = ClassPrototypes()
        for task in self.tasks:
            self.net.add_task(CLASSES)
            self.known.add_task(self.net, task)

    def task_known(self) -> None:
        """Evaluate a batch with the task known."""
        evaluate(self.net, self.tasks[0], self.tasks[0].train)

    def class_means(self) -> None:
        """Compute class means from a batch, as after every task."""
        class_means(self.net, self.tasks[0])

    def task_free(self, learnt: int) -> None:
        """Evaluate a batch of images of some tasks without the task."""
        known = ClassPrototypes(
            self.known.class_ids, self.known.tasks[:learnt], self.known.prototypes[:learnt]
        )
        tasks = self.tasks[:learnt]
        places = torch.arange(BATCH).tensor_split(learnt)
        tests = [
            Split(task.train.images[index], task.train.labels[index])
            for task, index in zip(tasks, places, strict=True)
        ]
        evaluate_task_free(self.net, known, tasks, tests)


def one_batch(number: int) -> Task:
    """Return a task with as many images as evaluation has in a batch."""
    task = random_task(number, per_class=-(-BATCH // CLASSES), seed=number)
    return replace(task, train=Split(task.train.images[:BATCH], task.train.labels[:BATCH]))


def measure(bench: Bench) -> list[Row]:
    """Time batches with the task known and unknown, and add up those of a run."""
    learnt = Learnt()
    calls: dict[str, Call] = {"known": learnt.task_known, "means": learnt.class_means}
    calls |= {f"free {count}": partial(learnt.task_free, count) for count in range(1, TASKS + 1)}
    timings = bench.alternate(calls, rounds=10)
    known, free = Quantity.of(timings["known"]), Quantity.of(timings[f"free {TASKS}"])
    never, end, every = (Quantity.of(of_run(timings, when)) for when in ("never", "end", "every"))
    return [
        Row.share(f"evaluation of a batch, {TASKS} tasks: task unknown / known", free, known),
        Row.share(
            "evaluation of a run: task_free=every / never",
            every,
            never,
            bound=Bound(2),
            note=NOTE,
        ),
        Row.share("evaluation of a run: task_free=end / never", end, never, note=NOTE),
    ]


def of_run(timings: dict[str, Timing], task_free: str) -> Timing:
    """Return the time of all evaluation of a run with a batch of test images for each task."""
    seconds = 0.0
    for learnt in range(1, TASKS + 1):
        seconds += timings["means"].best + learnt * timings["known"].best
        if task_free == "every" or (task_free == "end" and learnt == TASKS):
            seconds += learnt * timings[f"free {learnt}"].best
    return Timing(seconds, timings["known"].repeats)
