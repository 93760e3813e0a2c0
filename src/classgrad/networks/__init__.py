"""Networks for streams of tasks: a trunk from the table, and one head for each task."""

from typing import Any

from classgrad import seeds
from classgrad.errors import UserError, unknown
from classgrad.networks.alexnet5 import AlexNet5
from classgrad.networks.layers import Dropout, TaskBatchNorm
from classgrad.networks.lenet5 import LeNet5
from classgrad.networks.mlp import MLP
from classgrad.networks.network import Network, channels_last, global_chance_kept, initialise
from classgrad.networks.options import NetworkSettings
from classgrad.networks.resnet18 import ResNet18
from classgrad.networks.trunk import Trunk

NETWORKS: dict[str, type[Trunk]] = {
    "mlp": MLP,
    "alexnet5": AlexNet5,
    "lenet5": LeNet5,
    "resnet18": ResNet18,
}

__all__ = ["NETWORKS", "Dropout", "Network", "NetworkSettings", "TaskBatchNorm", "build", "options"]


def options(name: str, /, **values: Any) -> NetworkSettings:
    """Return the checked options of a network in the table."""
    if name not in NETWORKS:
        raise unknown("network", name, NETWORKS)
    return NETWORKS[name].Options(**values)


def build(name: str, input_shape: tuple[int, ...], seed: int = 1, **values: Any) -> Network:
    """Return a freshly initialised network, without any head yet.

    >>> build("mlp", (1, 8, 8)).embedding
    256
    """
    chosen = options(name, **values)
    kind = NETWORKS[name]
    if kind.smallest > 1 and (len(input_shape) != 3 or min(input_shape[1:]) < kind.smallest):
        shape = " x ".join(str(edge) for edge in input_shape)
        raise UserError(
            f"network '{name}' needs images (channels x height x width) of at least "
            f"{kind.smallest} x {kind.smallest}; these inputs are {shape}: choose --network mlp"
        )
    with global_chance_kept():
        trunk = kind(input_shape, chosen)
    initialise(trunk, seeds.generator(seed, "trunk"), kind.scheme)
    channels_last(trunk)
    shared = chosen.heads == "shared"
    return Network(trunk, trunk.embedding, seed=seed, shared_head=shared)
