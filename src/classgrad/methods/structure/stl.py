"""Single-task learning: a separate network for each task, so that nothing is shared or forgotten.

Every task starts from new weights, drawn from its own seed, and is learnt like the first task of
finetuning. With T tasks T networks are stored: T times the capacity. Tables that follow APD's call
this row Multitask. `heads=shared` changes nothing: the network of a task has its own head.
"""

from collections.abc import Sequence
from typing import ClassVar

from classgrad.methods.base import Method
from classgrad.methods.structure.pgn import ColumnNetwork, Columns
from classgrad.networks.network import Network
from classgrad.networks.trunk import Trunk
from classgrad.tasks import Task


class STL(Method):
    """Learn every task with a new network, and keep them all."""

    name: ClassVar[str] = "stl"
    summary: ClassVar[str] = "single-task learning: one network for each task"

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Make the trunk the first of several."""
        if isinstance(net, ColumnNetwork):
            return net
        scheme = net.trunk.scheme if isinstance(net.trunk, Trunk) else "default"
        return ColumnNetwork.of(net, Columns(net.trunk, seed, scheme), net.embedding)
