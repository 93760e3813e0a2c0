"""Small streams of tasks, made on the spot."""

import torch

from classgrad.tasks import Split, Task, TaskStream


def blobs(
    tasks: int = 3,
    classes: int = 3,
    shape: tuple[int, ...] = (1, 8, 8),
    per_class: int = 16,
    seed: int = 0,
) -> TaskStream:
    """Noisy copies of one random image per class: learnt in a few steps, forgotten as fast."""
    chance = torch.Generator().manual_seed(seed)
    found, tests = [], []
    for number in range(tasks):
        centres = torch.rand(classes, *shape, generator=chance)
        parts = []
        for count in (per_class, 4, 8):
            labels = torch.arange(classes).repeat_interleave(count)
            noise = torch.rand(len(labels), *shape, generator=chance)
            images = (0.7 * centres[labels] + 0.3 * noise).mul(255).to(torch.uint8)
            parts.append(Split(images, labels))
        names = tuple(f"{number}.{label}" for label in range(classes))
        found.append(Task(number, f"blobs {number}", names, parts[0], parts[1]))
        tests.append(parts[2])
    return TaskStream("blobs", found, tests)
