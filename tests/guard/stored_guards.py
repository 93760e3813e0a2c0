"""Guards that have to stay loadable.

`PYTHONPATH=tests python tests/guard/stored_guards.py` makes those that are missing. A folder below
`data` is a version and the schema of the guards it wrote; in it is a folder for each of `KINDS`
with the file of a guard, the weights of its model, what the model said, and what it said once it
had learnt another task under that guard. What is there is never made again. Those of schema 1 were
made by the last code that wrote it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from classgrad import CGP, GPM, SGP, __version__, attach
from classgrad.guard.attach import Guard
from classgrad.guard.saved import SCHEMA
from guard.loops import task, train
from oracles.models import built

DATA = Path(__file__).parent / "data"
GUARD, WEIGHTS = "guard.safetensors", "model.safetensors"
SAID, LEARNT_ON = "said.json", "learnt_on.json"


def plain() -> nn.Module:
    return nn.Sequential(nn.Linear(30, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 6))


def pictures() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 5, 6)),
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(48, 6),
    )


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.05, 0.9)


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], 0.01)


@dataclass(frozen=True)
class Kind:
    """How a stored guard was made, and learns on."""

    make: Callable[[], nn.Module]
    method: Any
    optimizer: Callable[[nn.Module], torch.optim.Optimizer]
    options: dict[str, Any] = field(default_factory=dict)  # of `attach`

    def model(self) -> nn.Module:
        """Return the model with the weights it starts from."""
        return built(self.make).float()

    def attached(self, weights: dict[str, Tensor], file: Path) -> tuple[nn.Module, Guard]:
        """Return a model with these weights, and the guard in a file on it."""
        model = self.model()
        # Norms of each task are in the guard's file.
        model.load_state_dict(weights, strict="norms" not in self.options)
        return model, attach(model, file)

    def select(self, guard: Guard, number: int) -> None:
        """Select a task, where its norms are its own."""
        if self.options.get("norms") == "task":
            guard.use_task(number)

    def learn(self, model: nn.Module, guard: Guard, number: int) -> None:
        """Learn a task under a guard, with an optimiser of its own."""
        self.select(guard, number)
        model.train()
        optimizer = self.optimizer(model)
        guard.watch(optimizer)
        train(model, optimizer, number, 10)
        guard.end_task([task(number)])

    @torch.no_grad()
    def figures(self, model: nn.Module, guard: Guard, tasks: int) -> dict[str, Any]:
        """Return what a model says of samples of each task, and how much of it is protected."""
        model.eval()
        outputs = []
        for number in range(tasks):
            self.select(guard, number)
            outputs.append(model(task(number)[0][:4]).tolist())
        ranks = {layer.name: layer.rank for layer in guard.layer_ranks()}
        return {"outputs": outputs, "ranks": ranks}


KINDS = {
    "gpm": Kind(plain, GPM(epsilon=0.95), sgd),
    "cgp": Kind(pictures, CGP(epsilon=0.95), sgd, {"norms": "task"}),
    "frozen_norms": Kind(pictures, CGP(epsilon=0.95), sgd),
    "sgp": Kind(plain, SGP(epsilon=0.95), adamw),
}
if SCHEMA >= 2:
    KINDS["deferred"] = Kind(plain, GPM(epsilon=0.95), adamw, {"project_every": 4})


def loaded(folder: Path) -> tuple[Kind, nn.Module, Guard]:
    """Return a stored guard, on its model, and how it was made."""
    kind = KINDS[folder.name]
    return kind, *kind.attached(load_file(folder / WEIGHTS), folder / GUARD)


def main() -> None:
    """Store guards of the present version and schema for each kind that has none yet."""
    for name, kind in KINDS.items():
        folder = DATA / f"{__version__}-schema{SCHEMA}" / name
        if folder.exists():
            continue
        folder.mkdir(parents=True)
        model = kind.model()
        guard = attach(model, kind.method, **kind.options)
        for number in range(2):
            kind.learn(model, guard, number)
        guard.save(folder / GUARD)
        save_file(model.state_dict(), folder / WEIGHTS)
        (folder / SAID).write_text(json.dumps(kind.figures(model, guard, 2)) + "\n")
        kind, model, guard = loaded(folder)
        kind.learn(model, guard, 2)
        (folder / LEARNT_ON).write_text(json.dumps(kind.figures(model, guard, 3)) + "\n")


if __name__ == "__main__":
    main()
