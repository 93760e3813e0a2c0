"""The file of a saved guard, with a checksum that is right."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

from classgrad.guard.attach import attach
from classgrad.methods import CGP
from fuzz.target import Strategy, Target
from fuzz.trees import as_json, changed
from oracles.models import built

SAMPLES = torch.rand(6, 4, generator=torch.Generator().manual_seed(1))


def _model() -> nn.Module:
    return built(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))).float()


def _make(folder: Path) -> Path:
    """Save a guard that protects a task; return the file."""
    guard = attach(_model(), CGP())
    guard.end_task([(SAMPLES, torch.arange(6) % 2)])
    guard.save(folder / "guard")
    return folder / "guard"


def _read(folder: Path) -> None:
    """Attach it to the model, and use it."""
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, folder / "guard", optimizer)
    model(SAMPLES).sum().backward()
    optimizer.step()
    guard.layer_ranks()


def changed_states(sound: bytes) -> Strategy:
    length = int.from_bytes(sound[:8], "little")
    header, data = json.loads(sound[8 : 8 + length]), sound[8 + length :]
    content = json.loads(header["__metadata__"]["classgrad"])

    def packed(state: Any) -> bytes:
        text = as_json({**content, "state": state})
        digest = hashlib.sha256(data + text).hexdigest()
        metadata = {"classgrad": text.decode(), "sha256": digest}
        new = json.dumps({**header, "__metadata__": metadata}).encode()
        return len(new).to_bytes(8, "little") + new + data

    return changed(content["state"]).map(packed)


TARGETS = (Target("guard", _make, _read, changed_states),)
