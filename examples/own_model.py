"""A network of your own that learns new classes from tensors, and tells all of them apart."""

import torch
from torch import Tensor, nn

from classgrad import CGP, Learner, Split, Training
from classgrad.benchmarks.digits import digits

TASKS = {"0 or 1": (0, 1), "2 or 3": (2, 3)}


def chosen(split: Split, task: str) -> tuple[Tensor, list[str]]:
    """Return the images of a task's digits (n, 1, 8, 8), and a name for each."""
    wanted = torch.isin(split.labels, torch.tensor(TASKS[task]))
    return split.images[wanted], [f"digit {label}" for label in split.labels[wanted]]


def main() -> None:
    """Learn four digits in two tasks, then say how well each is still known."""
    torch.manual_seed(1)
    trunk = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(256, 64),
        nn.ReLU(),
    )
    learner = Learner(trunk, CGP(energy=0.98), training=Training(epochs=6, learning_rate=0.1))
    train, test = digits()
    for task in TASKS:
        learnt = learner.learn(task, chosen(train, task))
        print(f"{task}: {learnt.accuracy:.1f} % of the validation images are classified correctly")
    for layer in learner.forecast():
        print(f"layer {layer.name}: {layer.rank} of {layer.dimension} directions in use")
    for task in TASKS:
        images, names = chosen(test, task)
        for by in ("confidence", "prototypes"):
            predictions = learner.predict(images, by=by)  # nobody says which task it is
            right = sum(one.name == name for one, name in zip(predictions, names, strict=True))
            print(f"{task}, by {by}: {right} of {len(names)} right")


if __name__ == "__main__":
    main()
