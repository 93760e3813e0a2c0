"""States of learners that have to stay loadable.

`PYTHONPATH=tests python tests/learner/stored_states.py` makes those that are missing. A folder
below `data` is a version that wrote states; in it is one state for each method a learner takes, and
for each of `KINDS`. `EXACT` has states of a form between two versions. Beside a state is what it
predicted, what it predicted once it had learnt another task, and its cards. What is there is never
made again: a change of the state's form comes with a migration, and with states of the new version
beside the old ones.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from classgrad import CGP, GPM, Learner, Method, Training, __version__
from classgrad.learner import card
from classgrad.methods import HAT, METHODS
from oracles.models import built

DATA = Path(__file__).parent / "data"
PREDICTED, LEARNT_ON = "predicted.json", "learnt_on.json"
SMALL = {  # what makes a method quick, its state small, or all of its memory be there
    "cgp": {"contrast": 0, "max_basis_mb": 0.0003},
    "ogd": {"samples": 5},
    "rcl": {"largest": 2, "trials": 1},
}
# Sums of rounded embeddings, and digests of data with a key.
EXACT = (f"{__version__}-exact", ("ewc", "statistics", "tuned"))
TRAINING = Training(epochs=20, batch_size=8, learning_rate=0.1)


def points(task: int, per_class: int = 10) -> tuple[Tensor, Tensor]:
    """Return three clouds of points (n, 4) that belong to a task, and labels."""
    rng = torch.Generator().manual_seed(task)
    centres = 2 * torch.randn(3, 4, generator=rng)
    labels = torch.arange(3).repeat(per_class)
    return centres[labels] + 0.5 * torch.randn(len(labels), 4, generator=rng), labels


def told(learner: Learner, tasks: int = 2) -> dict[str, list[dict[str, float | None]]]:
    """Return the probability of every class for points of each task, by way to predict."""
    probes = torch.cat([points(task)[0][:3] for task in range(tasks)])
    return {
        by: [
            {
                **{f"{guess.task}, {guess.name}": guess.probability for guess in one.ranking},
                **({"p-value": one.p_value} if by == "statistics" else {}),
            }
            for one in learner.predict(probes, by=by)
        ]
        for by in learner.ways
    }


def correct(learner: Learner, tasks: int) -> dict[str, float]:
    """Return the share of points of each task classified correctly, in per cent."""
    shares = {}
    for task in range(tasks):
        name = learner.tasks[task].name
        x, labels = points(task, 20)
        predicted = learner.predict(x, name, batch_size=len(x))
        names = [f"{task}{'abc'[label]}" for label in labels]
        right = [one.name == wanted for one, wanted in zip(predicted, names, strict=True)]
        shares[name] = 100 * sum(right) / len(right)
    return shares


def learn(learner: Learner, task: int) -> None:
    """Let a learner learn a task of points."""
    learner.learn(f"task {task}", points(task), classes=[f"{task}{letter}" for letter in "abc"])


def made(method: Method | Learner) -> Learner:
    """Return a learner that has learnt two tasks and forgotten a class."""
    learner = method
    if isinstance(learner, Method):
        learner = Learner(
            network="mlp", network_options={"width": 6}, method=learner, training=TRAINING
        )
    for task in range(2):
        learn(learner, task)
    learner.forget_class("task 0", "0b")
    return learner


def learn_on(learner: Learner) -> dict[str, Any]:
    """Let a stored learner learn another task; return what it then predicts, and how well."""
    learn(learner, 2)
    return {
        "told": told(learner, 3),
        "correct": correct(learner, 3),
        "ranks": learner.tasks[-1].ranks,
        "drift": [drift.bound for drift in learner.drift()],
    }


# Learners that are not told by their method: how they are made.


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.ReLU(), nn.Linear(12, 8))


def with_norm() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 8))


TRUNKS = {"statistics": plain, "own": with_norm}


def trunk(kind: str) -> nn.Module | None:
    """Return the trunk that learners of a kind have to be given, if any."""
    return built(TRUNKS[kind]).float() if kind in TRUNKS else None


def with_statistics() -> Learner:
    """Return a learner that has class statistics and nothing else, with images added later."""
    learner = Learner(trunk("statistics"), tune="none")
    learn(learner, 0)
    x, labels = points(0, 14)
    learner.learn("task 0", (x, labels), classes=["0a", "0b", "0c"])
    learn(learner, 1)
    learner.forget_class("task 0", "0b")
    return learner


KINDS: dict[str, Callable[[], Learner]] = {
    "statistics": with_statistics,
    # Features that learn and are told apart by statistics, and how far they have moved.
    "tuned": lambda: made(GPM()),
    "own": lambda: made(Learner(trunk("own"), CGP(contrast=0), training=TRAINING)),
    # In `hat` all masks are closed: nothing that it predicts depends on the image.
    "masks": lambda: made(
        Learner(
            network="mlp",
            network_options={"width": 16},
            method=HAT(sparsity=0.1),
            training=TRAINING,
        )
    ),
}


def loaded(folder: Path, kind: str) -> Learner:
    """Return a stored learner, of the kind that its folder was named after."""
    return Learner.load(folder, trunk(kind))


def write(file: Path, content: Any) -> None:
    """Write values into a file that does not exist yet, with numbers to six digits."""

    def short(value: Any) -> Any:
        match value:
            case float():
                return float(f"{value:.6g}")
            case dict():
                return {name: short(one) for name, one in value.items()}
            case list():
                return [short(one) for one in value]
        return value

    if not file.exists():
        file.write_text(json.dumps(short(content)) + "\n")


def main() -> None:
    """Store states of the present version for what has none yet, and figures that are missing."""
    methods = {name: method for name, method in METHODS.items() if method.rehearsal_free}
    version, exact = EXACT
    folders = [DATA / __version__ / name for name in (*methods, *KINDS)]
    for folder in [*folders, *(DATA / version / name for name in exact)]:
        name = folder.name
        if not folder.exists():
            method = methods.get(name)
            learner = made(method(**SMALL.get(name, {}))) if method else KINDS[name]()
            learner.save(folder)
            write(folder / PREDICTED, told(learner))
    for folder in sorted(DATA.glob("*/*")):
        if not (folder / LEARNT_ON).exists():
            write(folder / LEARNT_ON, learn_on(loaded(folder, folder.name)))
        file = folder / f"card_{card.SCHEMA}.json"
        if not file.exists():
            file.write_text(json.dumps(card.make(folder), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
