"""Networks for streams of tasks: a trunk from the table, and one head for each task."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from classgrad import seeds
from classgrad.errors import UserError, unknown
from classgrad.networks.adapted import adapted, width_of
from classgrad.networks.alexnet5 import AlexNet5
from classgrad.networks.efficientnet_lite import (
    EfficientNetLite0,
    EfficientNetLite1,
    EfficientNetLite2,
)
from classgrad.networks.layers import Dropout, TaskBatchNorm
from classgrad.networks.lenet5 import LeNet5
from classgrad.networks.minilm import MiniLM
from classgrad.networks.mlp import MLP
from classgrad.networks.network import Network, channels_last, initialise, preserved_rng
from classgrad.networks.resnet18 import ResNet18
from classgrad.networks.trunk import NetworkSettings, Trunk, WeightSettings
from classgrad.networks.weights import is_digest, load_file, with_digest

NETWORKS: dict[str, type[Trunk]] = {
    "mlp": MLP,
    "alexnet5": AlexNet5,
    "lenet5": LeNet5,
    "resnet18": ResNet18,
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite1": EfficientNetLite1,
    "efficientnet-lite2": EfficientNetLite2,
    "minilm": MiniLM,
}

OWN = "own:"  # prefix of the names of users' own networks

__all__ = [
    "NETWORKS",
    "OWN",
    "Dropout",
    "Network",
    "NetworkSettings",
    "TaskBatchNorm",
    "build",
    "options",
]


def kind(name: str) -> type[Trunk]:
    """Return the class of a network in the table."""
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    return NETWORKS[name]


def options(name: str, /, **values: Any) -> WeightSettings:
    """Return the checked options of a network in the table."""
    settings = kind(name).Options
    return settings(**with_digest(settings, values)[0])


def own_name(trunk: nn.Module) -> str:
    """Return the name of a user's own trunk: its class, and a digest of its weights."""
    digest = hashlib.blake2b(digest_size=4)
    for name, value in trunk.state_dict().items():
        digest.update(repr((name, value.dtype, tuple(value.shape))).encode())
        flat = value.detach().cpu().contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy().data)
    return f"{OWN}{type(trunk).__name__}-{digest.hexdigest()}"


def build_own(
    trunk: nn.Module,
    input_shape: tuple[int, ...],
    seed: int = 1,
    *,
    heads: str = "task",
    embedding: int | None = None,
) -> Network:
    """Return a network with a copy of a user's own trunk, without any head yet.

    Without `embedding` the trunk is run once to find the size of its output.

    >>> build_own(nn.Linear(4, 3), (4,)).embedding
    3
    """
    trunk = adapted(trunk)
    width = embedding or width_of(trunk, input_shape)
    return Network(trunk, width, seed=seed, shared_head=heads == "shared")


def build(
    name: str,
    input_shape: tuple[int, ...],
    seed: int = 1,
    *,
    restored: bool = False,
    **values: Any,
) -> Network:
    """Return a network with its first weights, without any head yet.

    `restored` is for a network whose weights come from a saved state: then no file is read.

    >>> build("mlp", (1, 8, 8)).embedding
    256
    """
    made = kind(name)
    values, file = with_digest(made.Options, values)
    chosen = made.Options(**values)
    if made.smallest > 1 and (len(input_shape) != 3 or min(input_shape[1:]) < made.smallest):
        shape = " x ".join(str(edge) for edge in input_shape)
        raise UserError(
            f"network '{name}' needs images (channels x height x width) of at least "
            f"{made.smallest} x {made.smallest}, but these inputs are {shape}: choose network mlp",
            hint="network",
        )
    with preserved_rng():
        trunk = made(input_shape, chosen)
    initialise(trunk, seeds.generator(seed, "trunk"), made.scheme)
    if not restored:
        load_weights(trunk, chosen, file)
    channels_last(trunk)
    shared = chosen.heads == "shared"
    return Network(trunk, trunk.embedding, seed=seed, shared_head=shared)


def load_weights(trunk: Trunk, options: WeightSettings, file: Path | None) -> None:
    """Load the first weights of a trunk, unless they are random."""
    if file is not None:
        load_file(trunk, file, type(options))
    elif is_digest(options.weights):
        raise UserError(
            f"the weights {options.weights[:15]}... are known by a digest only: give their file"
        )
    elif options.weights != "random":
        trunk.load_state_dict(trunk.pretrained())
