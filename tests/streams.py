"""Small streams of tasks, made on the spot."""

import torch

from classgrad.methods import Step
from classgrad.networks.shard import Shard
from classgrad.tasks import Split, Task, TaskStream


def blobs(
    tasks: int = 3,
    classes: int = 3,
    shape: tuple[int, ...] = (1, 8, 8),
    per_class: int = 16,
    seed: int = 0,
) -> TaskStream:
    """Noisy copies of one random image per class: learnt in a few steps, forgotten as fast."""
    rng = torch.Generator().manual_seed(seed)
    result, tests = [], []
    for number in range(tasks):
        centres = torch.rand(classes, *shape, generator=rng)
        parts = []
        for count in (per_class, 4, 8):
            labels = torch.arange(classes).repeat_interleave(count)
            noise = torch.rand(len(labels), *shape, generator=rng)
            images = (0.7 * centres[labels] + 0.3 * noise).mul(255).to(torch.uint8)
            parts.append(Split(images, labels))
        names = tuple(f"{number}.{label}" for label in range(classes))
        result.append(Task(number, f"blobs {number}", names, parts[0], parts[1]))
        tests.append(parts[2])
    return TaskStream("blobs", result, tests)


def step_of(
    task: Task,
    optimizer: torch.optim.Optimizer,
    index: torch.Tensor | None = None,
    *,
    number: int = 0,
    per_epoch: int = 1,
    steps: int = 1,
    seed: int = 0,
) -> Step:
    """A training step on some samples of a task, by default all."""
    index = torch.arange(len(task.train)) if index is None else index
    dtype = optimizer.param_groups[0]["params"][0].dtype
    images = task.train.unit_images(index, dtype)
    rng = torch.Generator().manual_seed(seed)
    x, y = task.transform(images), task.train.labels[index]
    return Step(
        task,
        index,
        images,
        x,
        y,
        optimizer,
        rng,
        number,
        per_epoch=per_epoch,
        steps=steps,
        batch=index,
        shard=Shard(len(index), 0, len(index)),
    )
