"""The worker for classgrad: python -m benchmarks.peers.ours."""

import time
from typing import Any

import torch

import classgrad
from benchmarks.peers import workload
from benchmarks.peers.workload import random_tasks, serve
from classgrad import networks
from classgrad.benchmarks.base import Normalise
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, TaskStream
from classgrad.training.session import Session

TRAINING = {
    "epochs": workload.EPOCHS,
    "batch_size": workload.BATCH,
    "learning_rate": workload.RATE,
    "momentum": workload.MOMENTUM,
    "nesterov": False,
    "schedule": "constant",
    "warmup": 0,
    "affine": "first",
}
EPISODIC = {
    "memory": workload.MEMORY,
    "memory_batch": workload.MEMORY,
    "constrain": "gradient",  # as the peer does; the default constrains the step, too
}
SETTINGS: dict[str, dict[str, Any]] = {
    "finetune": {},
    "er": {"memory": workload.ER_MEMORY, "memory_batch": workload.MEMORY},
    "agem": EPISODIC,
    "gem": {**EPISODIC, "margin": workload.MARGIN},
    "ewc": {"strength": workload.EWC_STRENGTH, "samples": workload.IMAGES[1]},
    "lwf": {"strength": workload.LWF_STRENGTH, "temperature": workload.LWF_TEMPERATURE},
    "si": {"strength": workload.SI_STRENGTH},
    "gpm": {},
}


def stream() -> TaskStream:
    """Return the tasks; the stream is named split-cifar100, so that recipes treat it as that."""
    tasks = []
    for number, (images, labels) in enumerate(random_tasks()):
        train = Split(images, labels)
        valid = Split(train.images[:1], train.labels[:1])
        names = tuple(f"{number}.{label}" for label in range(workload.CLASSES))
        transform = Normalise([workload.MEAN], [workload.DEVIATION])
        tasks.append(Task(number, f"task {number}", names, train, valid, transform))
    return TaskStream("split-cifar100", tasks, [task.valid for task in tasks])


def measure(method: str) -> dict[str, float]:
    """Learn two tasks; return the seconds of the second."""
    tasks = stream()
    plan = make_plan(tasks, method, values={**TRAINING, **SETTINGS[method]})
    net = networks.build(plan.network, (3, 32, 32), **plan.network_options.model_dump())
    session = Session(
        net, plan.method, plan.training, seed=1, classes=workload.CLASSES, stream=list(tasks)
    )
    first, second = tasks
    session.learn_task(first)
    start = time.process_time()
    session.learn_task(second)
    return {"seconds": time.process_time() - start}


if __name__ == "__main__":
    serve({"classgrad": classgrad.__version__, "torch": torch.__version__}, measure)
