"""The state of a learner, with checksums that are right."""

import json
from pathlib import Path

import torch

from classgrad.checkpoints.files import STATE
from classgrad.learner.learner import Learner
from classgrad.methods import CGP
from classgrad.training.config import Training
from fuzz.checkpoints import sign
from fuzz.target import Strategy, Target
from fuzz.trees import as_json, changed

IMAGES = torch.rand(6, 1, 2, 2, generator=torch.Generator().manual_seed(1))


def _make(folder: Path) -> Path:
    """Save a learner with a task; return the file to damage."""
    learner = Learner(
        network="mlp",
        network_options={"width": 3},
        method=CGP(contrast=0),
        training=Training(epochs=1, batch_size=4),
        size=2,
    )
    learner.learn("one", (IMAGES, torch.arange(6) % 2), classes=["crow", "wren"])
    learner.save(folder)
    return folder / "checkpoints" / "000001" / STATE


def _read(folder: Path) -> None:
    """Load the learner, and use it."""
    sign(folder)
    learner = Learner.load(folder)
    learner.predict(IMAGES[:1])
    learner.forecast()


def _changed_states(sound: bytes) -> Strategy:
    return changed(json.loads(sound)).map(as_json)


TARGETS = (Target("learner", _make, _read, _changed_states),)
