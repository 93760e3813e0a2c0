"""A file of a network's first weights."""

from pathlib import Path

from safetensors.torch import save_file

from classgrad import networks
from fuzz.target import Target

OPTIONS = {"width": 3}


def _make(folder: Path) -> Path:
    """Save the weights of a small network; return the file."""
    file = folder / "weights.safetensors"
    save_file(networks.build("mlp", (4,), **OPTIONS).trunk.state_dict(), file)
    return file


def _read(folder: Path) -> None:
    networks.build("mlp", (4,), weights=folder / "weights.safetensors", **OPTIONS)


TARGETS = (Target("weights", _make, _read),)
