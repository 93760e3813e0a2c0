"""One task of a learner as a file that PyTorch alone can use, and how it is used there."""

import json

import torch

from classgrad import GPM, Learner
from classgrad.benchmarks import split_digits
from classgrad.learner.export import export


def main() -> None:
    """Learn to classify two digits, export that, and predict with the file."""
    task = split_digits(seed=1)[0]
    names = [f"digit {name}" for name in task.class_names]
    learner = Learner(network="mlp", network_options={"width": 50}, method=GPM())
    learner.learn("digits", task.train, valid=task.valid, classes=names)
    export(learner, "digits.pt2", task="digits")

    images = task.valid.images[:4] / 255  # floats from 0 to 1
    for one in learner.predict(images):
        print(f"with classgrad: {one.name}, {one.probability:.2f}")

    about = {"classgrad.json": ""}
    model = torch.export.load("digits.pt2", extra_files=about).module()
    names = json.loads(about["classgrad.json"])["classes"]
    for row in model(images):
        print(f"with PyTorch alone: {names[row.argmax()]}, {row.max():.2f}")


if __name__ == "__main__":
    main()
