"""States of learners that have to stay loadable: python tests/learner/stored_states.py makes them.

A folder below `data` is a version that wrote states; in it is one state for each method a learner
takes, with what was predicted. Those that are there are never made again: a change of the state's
form comes with a migration, and with states of the new version beside the old ones.
"""

import json
from pathlib import Path

import torch
from torch import Tensor

from classgrad import Learner, Method, Training, __version__
from classgrad.methods import METHODS

DATA = Path(__file__).parent / "data"
PREDICTED = "predicted.json"
SMALL = {  # what makes a method quick, its state small, or all of its memory be there
    "cgp": {"contrast": 0, "max_basis_mb": 0.0003},
    "ogd": {"samples": 5},
    "rcl": {"largest": 2, "trials": 1},
}


def points(task: int, per_class: int = 10) -> tuple[Tensor, Tensor]:
    """Return three clouds of points (n, 4) that belong to a task, and labels."""
    rng = torch.Generator().manual_seed(task)
    centres = 2 * torch.randn(3, 4, generator=rng)
    labels = torch.arange(3).repeat(per_class)
    return centres[labels] + 0.5 * torch.randn(len(labels), 4, generator=rng), labels


def told(learner: Learner) -> dict[str, list[dict[str, float]]]:
    """Return the probability of every class for points of both tasks, by way to predict."""
    probes = torch.cat([points(task)[0][:3] for task in range(2)])
    return {
        by: [
            {f"{guess.task}, {guess.name}": guess.probability for guess in one.ranking}
            for one in learner.predict(probes, by=by)
        ]
        for by in ("confidence", "prototypes")
    }


def made(method: Method) -> Learner:
    """Return a learner that has learnt two tasks and forgotten a class."""
    learner = Learner(
        network="mlp",
        network_options={"width": 6},
        method=method,
        training=Training(epochs=20, batch_size=8, learning_rate=0.1),
    )
    for task in range(2):
        learner.learn(f"task {task}", points(task), classes=[f"{task}a", f"{task}b", f"{task}c"])
    learner.forget_class("task 0", "0b")
    return learner


def main() -> None:
    """Store states of the present version for methods that have none yet."""
    for name, method in METHODS.items():
        folder = DATA / __version__ / name
        if method.rehearsal_free and not folder.exists():
            learner = made(method(**SMALL.get(name, {})))
            learner.save(folder)
            (folder / PREDICTED).write_text(json.dumps(told(learner), indent=1) + "\n")


if __name__ == "__main__":
    main()
