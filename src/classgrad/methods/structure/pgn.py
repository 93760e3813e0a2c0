"""Progressive Neural Networks (Rusu et al.; arXiv 1606.04671, 2016): a column for each task.

Column t is a separate network; when the next task begins it is frozen for good. Layer l of column t
sees, besides its own input h_t, the inputs h_j of the same layer in all older columns:

    h_t^l = relu(W h_t^{l-1} + U relu(V [a_1 h_1^{l-1}, ..., a_{t-1} h_{t-1}^{l-1}]))

V maps the t - 1 times c channels to c, in the same way at each position (a 1 x 1 convolution, a
Linear layer where there are no positions), U has the shape of W, and the a_j are learnt scalars.
The first layer sees the image only. A norm comes after the sum; pooling, local response
normalisation and dropout come after the ReLU; their output is h.

Old columns are evaluated just as at the end of their task: with their own laterals, without
dropout, and with `norm=stored` on the statistics of their own task's images; with `norm=batch` on
batch statistics, as everywhere. So outputs for old tasks keep their bits.

`column_width` is the share of the base network's units and channels that a column has. `width_for`
finds the share at which all columns, laterals and heads together have a given capacity, in per cent
of the base network with its heads.

Differences from the paper: heads see their own column only, so that an embedding belongs to one
column; the a_j start uniformly in [0, 0.1] (the paper: small and random); V and U have no bias,
like the networks here. Convolutions of a shortcut have laterals like all others. Each column has
its own head with `heads=shared` too. Differences from HAT's implementation: it runs old columns
without their laterals, so that features differ from those they were trained with; and its columns
have int(1.117 x width / T) units, so that the total is that of the base network.
"""

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field
from torch import nn

from classgrad.errors import UserError
from classgrad.methods.base import Method
from classgrad.methods.structure.columns import ColumnNetwork, Progressive
from classgrad.networks.network import Network
from classgrad.networks.trunk import Trunk
from classgrad.tasks import Task


class PGN(Method):
    """Add a column for every task, with connections from the older ones, which are frozen."""

    name: ClassVar[str] = "pgn"
    summary: ClassVar[str] = "Progressive networks: a column per task, lateral connections (2016)"

    column_width: float = Field(
        default=1.0, gt=0, le=1, description="share of the base network's units a column has"
    )

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Make the trunk the first column, at `column_width`."""
        if isinstance(net, ColumnNetwork):
            return net
        columns = Progressive(plain(net.trunk), self.column_width, seed)
        return ColumnNetwork.of(net, columns, columns.embedding)


def width_for(trunk: nn.Module, classes: Sequence[int], capacity: float) -> float:
    """Return the `column_width` at which columns for these tasks have this capacity, in per cent.

    `classes` has the number of classes of each task. Parameters are counted, nothing is trained.
    Their number grows with the width, so the share is found by bisection; widths are whole numbers,
    so the capacity is met up to the parameters of one unit. The result has three decimals.
    """
    trunk = plain(trunk)
    base = sum(p.numel() for p in trunk.parameters()) + trunk.embedding * sum(classes)
    most = 100 * Progressive(trunk, 1.0, seed=1).parameters_for(list(classes)) / base
    if most < capacity:
        raise UserError(
            f"columns of full width have a capacity of {most:.0f} %, not {capacity:g} %: ask for "
            "less"
        )
    low, high = 0.0, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        count = Progressive(trunk, middle, seed=1).parameters_for(list(classes))
        low, high = (middle, high) if 100 * count < capacity * base else (low, middle)
    return round(high, 3)


def plain(trunk: object) -> Trunk:
    """Return the trunk; refuse one that does not tell how its layers are connected."""
    if not isinstance(trunk, Trunk):
        raise UserError(
            f"pgn cannot tell how the layers of a {type(trunk).__name__} are connected: derive it "
            "from classgrad.networks.trunk.Trunk, or choose a network of the table"
        )
    return trunk
