"""Replay methods sample by sample, and small quadratic programmes by trying every active set."""

import copy
import dataclasses
import itertools

import numpy as np
import torch
from torch import Tensor

from classgrad.benchmarks.base import Permute
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, TaskStream, Transform
from streams import blobs, step_of

QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "momentum": 0.0, "warmup": 0}


class Recorded:
    """A transform that writes down its task whenever it is used."""

    def __init__(self, task: int, transform: Transform, calls: list[int]) -> None:
        self.task, self.transform, self.calls = task, transform, calls

    def __call__(self, images: Tensor) -> Tensor:
        self.calls.append(self.task)
        return self.transform(images)


def permuted(tasks: int = 3, **options: int) -> tuple[TaskStream, list[int]]:
    """Blobs whose pixels each task sees in another order, and the list of transforms used."""
    stream, calls = blobs(tasks, **options), []
    rng = torch.Generator().manual_seed(7)
    changed = [
        dataclasses.replace(
            task, transform=Recorded(task.id, Permute(torch.randperm(64, generator=rng)), calls)
        )
        for task in stream
    ]
    return TaskStream("permuted blobs", changed, [stream.test(j) for j in range(tasks)]), calls


def learnt(name: str, stream: TaskStream, tasks: int, **values: object) -> Run:
    """A float64 run that has learnt some tasks and stands at the start of the next."""
    run = Run(make_plan(stream, name, values={**QUICK, "width": 16, **values}), stream)
    run.net.double()
    for number in range(tasks):
        run.learn(number)
    if 0 < tasks < len(stream):
        run.net.add_task(stream[tasks].classes)
    run.method.begin_task(run.net, stream[min(tasks, len(stream) - 1)])
    return run


def begun_step(run: Run, task: int, index: Tensor | None = None, **options: int):
    """A step of a task, with the optimiser the training loop would have, in training mode."""
    parameters = list(run.method.parameters(run.net, [run.stream[task]]))
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    run.net.train()
    return step_of(run.stream[task], optimizer, index, **options)


def backward(run: Run, step) -> float:
    """What the training loop does up to the method's say on gradients."""
    loss = run.method.loss(run.net, step)
    step.optimizer.zero_grad()
    loss.backward()
    return loss.item()


def named_gradients(net: torch.nn.Module) -> dict[str, Tensor | None]:
    return {n: None if p.grad is None else p.grad.clone() for n, p in net.named_parameters()}


def flat(net: torch.nn.Module, gradients: dict[str, Tensor | None]) -> np.ndarray:
    """One vector in the order of names, zeros for what is missing."""
    parts = [
        np.zeros(p.numel()) if gradients[n] is None else gradients[n].numpy().ravel()
        for n, p in sorted(net.named_parameters())
    ]
    return np.concatenate(parts)


def sample_losses(net: torch.nn.Module, samples: Split, task: int, transform: Transform) -> list:
    """Cross-entropy of each sample alone through its own transform and head."""
    losses = []
    for image, label in zip(samples.images, samples.labels.tolist(), strict=True):
        scaled = image.double() / 255
        logits = net(transform(scaled[None]), task)[0]
        losses.append(logits.exp().sum().log() - logits[label])
    return losses


def mean_gradient(net: torch.nn.Module, samples: Split, task: int, transform) -> np.ndarray:
    """Gradient of the mean loss, on a copy of the network."""
    twin = copy.deepcopy(net)
    twin.zero_grad()
    losses = sample_losses(twin, samples, task, transform)
    (sum(losses) / len(losses)).backward()
    return flat(twin, named_gradients(twin))


def least_above(q: np.ndarray, c: np.ndarray, lower: float) -> np.ndarray:
    """argmin ½ vᵀQv + cᵀv over v >= lower: the best feasible stationary point of all 2^n sets."""
    n, best, result = len(c), np.inf, None
    for free in itertools.product([False, True], repeat=n):
        free = np.array(free)
        v = np.full(n, float(lower))
        if free.any():
            right = -c[free] - q[np.ix_(free, ~free)] @ v[~free]
            v[free] = np.linalg.solve(q[np.ix_(free, free)], right)
        if (v < lower - 1e-12).any():
            continue
        value = v @ q @ v / 2 + c @ v
        if value < best:
            best, result = value, v
    return result


def onto_cone(g: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The closest x to g with rows @ x >= 0: project onto every face, take the best inside."""
    best, result = np.inf, None
    for size in range(len(rows) + 1):
        for face in itertools.combinations(range(len(rows)), size):
            normals = rows[list(face)]
            x = g - np.linalg.pinv(normals) @ (normals @ g) if size else g
            if (rows @ x >= -1e-9).all() and np.sum((x - g) ** 2) < best:
                best, result = np.sum((x - g) ** 2), x
    return result
