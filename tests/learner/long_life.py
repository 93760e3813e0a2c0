"""Forty tasks, each learnt by a process of its own from what the one before has left on disk.

Children are forked from this process, which has loaded everything but no learner.
"""

import json
import os
import signal
import sys
from pathlib import Path

import torch

from classgrad import CGP, Learner, Training
from classgrad.checkpoints import CheckpointManager
from classgrad.methods import Finetune
from faults.kills import ended, in_child, warm_up
from photos import timeless

TASKS, CLASSES, SIZE, INNER = 40, 2, 24, 3
KILLED = {0: 9, 7: 6, 18: 14, 19: 17, 39: 10}  # tasks, and the step in which they are killed
TRAINING = Training(epochs=5, batch_size=10, learning_rate=0.2)


def points(task, per_class, seed):
    """Return two clouds of points that overlap, in a few directions of the task's own."""
    drawn = torch.Generator().manual_seed(task)
    directions = torch.randn(INNER, SIZE, generator=drawn)
    labels = torch.arange(CLASSES).repeat(per_class)
    inner = torch.randn(len(labels), INNER, generator=torch.Generator().manual_seed(seed))
    inner[:, 0] += 3.5 * labels - 1.75
    return inner @ directions, labels


def train_data(task):
    return points(task, 20, seed=1000 + task)


def new_learner(method=None):
    return Learner(
        network="mlp",
        method=method or CGP(contrast=0, energy=0.99),
        network_options={"batch_norm": True, "norm": "stored", "width": 40},
        training=TRAINING,
    )


def learn_next(folder, number, kill_at=None):
    """Learn one task and end, or be killed on the way."""
    learner = Learner.load(folder) if number else new_learner()
    assert len(learner.tasks) == number
    steps = []

    def observer(progress):
        steps.append(progress.step)
        if progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints = CheckpointManager(folder / "learning", steps=4 if number in KILLED else None)
    learner.learn(
        f"task {number}",
        train_data(number),
        checkpoint_dir=folder,
        checkpoints=checkpoints,
        observer=observer,
    )
    if number in KILLED:
        assert steps[0] == KILLED[number] - (KILLED[number] - 1) % 4  # after what was saved last


def learn_all(method=None):
    """Learn all tasks in this process, without a disk."""
    learner = new_learner(method)
    for number in range(TASKS):
        learner.learn(f"task {number}", train_data(number))
    return learner


def accuracy(learner, task):
    """Return how many of new points of a task are classified correctly, in per cent."""
    x, y = points(task, 500, seed=2000 + task)
    result = learner.predict(x, task=f"task {task}", batch_size=len(x))
    right = [int(one.name) == int(label) for one, label in zip(result, y, strict=True)]
    return 100 * sum(right) / len(right)


def live(folder):
    """Return how a long life went, and whether one process ends with the same."""
    kills = 0
    for number in range(TASKS):
        if number in KILLED:
            child = in_child(lambda n=number: learn_next(folder, n, KILLED[n]))
            kills += ended(child) == -signal.SIGKILL
        assert ended(in_child(lambda n=number: learn_next(folder, n))) == 0, number
        if number == 0:
            when_learnt = accuracy(Learner.load(folder), 0)
    result = Learner.load(folder)
    return {
        "tasks": len(result.tasks),
        "kills": kills,
        "when learnt": when_learnt,
        "at the end": accuracy(result, 0),
        "last task": accuracy(result, TASKS - 1),
        "finetuned": accuracy(learn_all(Finetune()), 0),
        "same as in one process": timeless(result) == timeless(learn_all()),
    }


if __name__ == "__main__":
    warm_up()
    print(json.dumps(live(Path(sys.argv[1]))))
