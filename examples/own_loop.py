"""Gradient projection in a plain PyTorch loop: the lines marked with * are all it takes."""

import torch
from torch import nn

import classgrad
from classgrad.benchmarks import split_digits


def main() -> None:
    """Learn five pairs of digits one after another with one model, and say what is left of each."""
    stream = split_digits(seed=1)
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()
    )
    heads = [nn.Linear(128, task.classes) for task in stream]
    guard = classgrad.attach(model, classgrad.CGP(epsilon=0.98))  # *
    for task, head in zip(stream, heads, strict=True):
        images, labels = task.train.unit_images(slice(None)), task.train.labels
        loader = [(images[i : i + 32], labels[i : i + 32]) for i in range(0, len(labels), 32)]
        optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.003)
        guard.watch(optimizer)  # *
        for _ in range(5):
            for x, y in loader:
                loss = nn.functional.cross_entropy(head(model(x)), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        guard.end_task(loader, forward=nn.Sequential(model, head))  # *
    for task, head in zip(stream, heads, strict=True):
        test = stream.test(task.id)
        right = head(model(test.unit_images(slice(None)))).argmax(1) == test.labels
        print(f"digits {task.name}: {100 * right.float().mean():.1f} %")


if __name__ == "__main__":
    main()
