"""Methods on a trunk that is frozen from the start: only heads learn, so nothing is forgotten."""

import pytest
import torch
from torch import nn

from classgrad import run
from classgrad.methods import METHODS
from streams import blobs

VALUES = {"epochs": 10, "batch_size": 8, "learning_rate": 0.3}
# They give each task units or weights of its own, which a frozen trunk does not have.
OWN_PARTS = {"hat", "pgn", "den", "rcl", "apd", "apd2", "stl"}


def frozen() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU()).requires_grad_(False)


@pytest.mark.parametrize("name", [name for name in METHODS if name not in OWN_PARTS])
def test_a_frozen_trunk_forgets_nothing(name):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        trunk = frozen()
    record = run(blobs(tasks=2), name, network=trunk, values=VALUES)
    assert record.complete
    assert record.average_accuracy > 60
    assert record.layers == [] or all(layer.name == "parameters" for layer in record.layers)
    if name != "multitask":
        assert record.backward_transfer == 0
