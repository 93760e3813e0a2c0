"""Resume a learner that an earlier version has saved; its training data are long gone."""

import shutil
from pathlib import Path

import torch

from classgrad import Learner

# Stored with the tests, so that it stays loadable. It classifies points in four dimensions.
OLD = Path(__file__).parent.parent / "tests" / "learner" / "data" / "0.1.0" / "gpm"


def main() -> None:
    """Load it, see what it knows, teach it something new, and save it for the next years."""
    shutil.copytree(OLD / "checkpoints", "state/checkpoints")  # the old one stays as it is

    learner = Learner.load("state")
    for task in learner.tasks:
        print(f"{task.name}, learnt {task.when[:10]}: {', '.join(task.class_names)}")
    for layer in learner.forecast():
        print(f"layer {layer.name}: {layer.rank} of {layer.dimension} directions in use")

    rng = torch.Generator().manual_seed(1)
    some = torch.randn(100, 4, generator=rng)
    before = learner.predict(some, task="task 1")
    labels = torch.arange(2).repeat(30)
    points = torch.randn(60, 4, generator=rng) + 4 * labels[:, None]
    learner.learn("height", (points, labels), classes=["low", "high"], checkpoint_dir="state")

    learner = Learner.load("state")  # in some years
    after = learner.predict(some, task="task 1")
    same = sum(one.name == other.name for one, other in zip(before, after, strict=True))
    print(f"{same} of 100 inputs are classified as before the new task")
    print(f"a new input: {learner.predict(torch.full((4,), 5.0), task='height')[0].name}")


if __name__ == "__main__":
    main()
