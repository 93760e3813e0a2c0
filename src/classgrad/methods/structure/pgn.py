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

import copy
from collections.abc import Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from classgrad import seeds
from classgrad.errors import UserError
from classgrad.methods.base import Method
from classgrad.networks.layers import PerTask, TaskBatchNorm
from classgrad.networks.network import Network, channels_last, initialise, preserved_rng
from classgrad.networks.trunk import Trunk
from classgrad.tasks import Task

MAX_INITIAL_SCALAR = 0.1  # the scalars a_j start small and different


class Columns(PerTask):
    """One trunk per task, each trained with its own task and frozen when the next one begins.

    A frozen column stays in evaluation mode: no dropout, and no updates of its statistics.
    """

    def __init__(self, first: nn.Module, seed: int, scheme: str) -> None:
        super().__init__()
        self.seed, self.scheme = seed, scheme
        self.columns = nn.ModuleList([first])

    def add_task(self) -> None:
        """Freeze all columns, append a new one, and select it."""
        self.columns.requires_grad_(False)
        self.columns.append(self.new_column())
        self.task = len(self.columns) - 1
        self.train(self.training)

    def new_column(self) -> nn.Module:
        """Return a new column like the first one."""
        rng = seeds.generator(self.seed, "trunk", len(self.columns))
        return fresh(self.columns[0], rng, self.scheme)

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the newest column; the others are always in evaluation mode."""
        super().train(mode)
        for column in list(self.columns)[:-1]:
            column.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the output of the selected task's column."""
        out: Tensor = self.columns[self.task](x)
        return out

    def forward_each(self, x: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        """Return the outputs of the columns of these tasks."""
        return [self.columns[task](x) for task in tasks]


class Joined(nn.Module):
    """A layer of a column: W h, plus U relu(V [a_1 h_1, a_2 h_2 ...]) if there are older columns.

    h is the input of this layer, h_j that of the same layer of column j; V mixes channels at each
    position. The columns of a pass run in order and append their h to a shared `board`.
    """

    def __init__(self, name: str, layer: nn.Linear | nn.Conv2d, channels: int) -> None:
        super().__init__()
        self.name, self.own, self.channels = name, layer, channels
        self.board: dict[str, list[Tensor]] = {}
        self.older = 0

    def connect(self, older: int, generator: torch.Generator, scheme: str) -> None:
        """Connect the layer to this many older columns."""
        self.older = older
        weight = self.own.weight
        with preserved_rng():
            self.v = nn.Linear(older * self.channels, self.channels, bias=False).to(weight)
            self.u = like(self.own, weight.shape[1], weight.shape[0], bias=False).to(weight)
        for part in (self.v, self.u):
            initialise(part, generator, scheme)
        channels_last(self.u)
        start = MAX_INITIAL_SCALAR * torch.rand(older, generator=generator)
        self.scalars = nn.Parameter(start.to(weight))

    def lateral_parameters(self, older: int) -> int:
        """Return how many parameters the connections to this many older columns have."""
        return older + older * self.channels**2 + self.own.weight.numel() if older else 0

    def forward(self, x: Tensor) -> Tensor:
        """Return the layer's output, before any norm."""
        seen = self.board.setdefault(self.name, [])
        out: Tensor = self.own(x)
        if self.older:
            out = out + self.u(functional.relu(self.mixed(seen)).reshape(x.shape))
        seen.append(x)
        return out

    def mixed(self, seen: list[Tensor]) -> Tensor:
        """Return V [a_1 h_1, a_2 h_2 ...]; inputs flattened from maps are unflattened."""
        # The scalars multiply V, which is smaller than the activations.
        v = self.v.weight * self.scalars.repeat_interleave(self.channels)
        if seen[0].dim() == 4:
            return functional.conv2d(torch.cat(seen, dim=1), v[:, :, None, None])
        maps = [h.unflatten(1, (self.channels, -1)) for h in seen]
        return functional.conv1d(torch.cat(maps, dim=1), v[:, :, None])


class Progressive(Columns):
    """Columns with lateral connections to every layer but the first."""

    def __init__(self, trunk: Trunk, share: float, seed: int) -> None:
        column = narrow(trunk, share)
        initialise(column, seeds.generator(seed, "trunk"), trunk.scheme)
        channels_last(column)
        widths = {wire.target: width(column, wire.layer) for wire in trunk.wiring()}
        last = trunk.wiring()[-1]
        embedding = trunk.embedding // width(trunk, last.layer) * widths[last.target]
        for wire in trunk.wiring():
            if wire.source is not None:
                layer = column.get_submodule(wire.layer)
                assert isinstance(layer, nn.Linear | nn.Conv2d)
                replace(column, wire.layer, Joined(wire.layer, layer, widths[wire.source]))
        super().__init__(column, seed, trunk.scheme)
        self.embedding = embedding
        self.board: dict[str, list[Tensor]] = {}
        self._share_board(column)

    def _share_board(self, column: nn.Module) -> list[Joined]:
        joined_layers = [module for module in column.modules() if isinstance(module, Joined)]
        for joined in joined_layers:
            joined.board = self.board
        return joined_layers

    def new_column(self) -> nn.Module:
        """Return a new column with connections from all others."""
        column, older = super().new_column(), len(self.columns)
        rng = seeds.generator(self.seed, "laterals", older)
        for joined in self._share_board(column):
            joined.connect(older, rng, self.scheme)
        return column

    def parameters_for(self, classes: list[int]) -> int:
        """Return the number of parameters for tasks with these numbers of classes, with heads."""
        first = self.columns[0]
        per_column = sum(p.numel() for p in first.parameters())
        joined = [module for module in first.modules() if isinstance(module, Joined)]
        laterals = sum(j.lateral_parameters(t) for t in range(len(classes)) for j in joined)
        return per_column * len(classes) + laterals + self.embedding * sum(classes)

    def forward(self, x: Tensor) -> Tensor:
        """Run the columns up to that of the selected task, and return the output of the last."""
        self.board.clear()
        with torch.no_grad():  # they are frozen
            for column in list(self.columns)[: self.task]:
                column(x)
        out: Tensor = self.columns[self.task](x)
        self.board.clear()
        return out

    def forward_each(self, x: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        """Run the columns up to that of the last task once, and return the outputs of these."""
        self.board.clear()
        outputs = [column(x) for column in list(self.columns)[: max(tasks) + 1]]
        self.board.clear()
        return [outputs[task] for task in tasks]


class ColumnNetwork(Network):
    """A network whose trunk is `Columns`: each task has its own column and head."""

    @classmethod
    def of(cls, net: Network, columns: Columns, embedding: int) -> Self:
        """Return a network of these columns, with new heads for the tasks that `net` has."""
        column_net = cls(columns, embedding, seed=net.seed)
        for task in range(len(net.heads)):
            column_net.add_task(net.head_parameters(task)[0].shape[0])
        return column_net.train(net.training)

    def _find_per_task(self) -> list[PerTask]:
        """Return the columns; norms belong to one column, so no task is selected in them."""
        return [layer for layer in super()._find_per_task() if isinstance(layer, Columns)]

    def _forward_each(self, x: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        assert isinstance(self.trunk, Columns)
        return self.trunk.forward_each(x, tasks)

    def add_task(self, classes: int) -> None:
        """Append the column and the head of the next task."""
        super().add_task(classes)
        self.find_layers()


def fresh(column: nn.Module, generator: torch.Generator, scheme: str) -> nn.Module:
    """Return a column of the same layers with newly initialised weights."""
    new = copy.deepcopy(column).requires_grad_(True)
    for name, norm in list(new.named_modules()):
        if isinstance(norm, TaskBatchNorm):
            replace(new, name, norm_like(norm, norm.channels))
    for parameter in new.parameters():
        # Drawn in the default memory format, so that weights do not depend on the layout.
        parameter.data = parameter.data.contiguous()
    initialise(new, generator, scheme)
    _reset_others(new, generator)
    channels_last(new)
    return new


def _reset_others(column: nn.Module, generator: torch.Generator) -> None:
    """Reset layers of types that the table's networks do not have, or refuse them."""
    for name, layer in column.named_modules():
        if isinstance(layer, nn.Linear | nn.modules.conv._ConvNd | TaskBatchNorm):
            continue
        if not [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            continue
        reset = getattr(layer, "reset_parameters", None)
        if reset is None:
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) cannot be reset for another task: give "
                "it a method reset_parameters()"
            )
        with preserved_rng():
            torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
            reset()


def narrow(trunk: Trunk, share: float) -> nn.Module:
    """Return the layers of a trunk with this share of their units or channels, at least one."""
    column = copy.deepcopy(trunk)
    # Units or channels before each ReLU, in the trunk and in the column; inputs stay as they are.
    widths: dict[str | None, tuple[int, int]] = {None: (1, 1)}
    for wire in trunk.wiring():
        layer = trunk.get_submodule(wire.layer)
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            raise UserError(
                f"layer '{wire.layer}' ({type(layer).__name__}) cannot be in a column of pgn, "
                "which takes nn.Linear and nn.Conv2d: choose another network"
            )
        base = len(layer.weight)
        units = max(1, round(share * base))
        before, after = widths[wire.source]
        inputs = layer.weight.shape[1] // before * after
        narrower = like(layer, inputs, units, bias=layer.bias is not None)
        replace(column, wire.layer, narrower.to(layer.weight))
        if wire.norm is not None:
            norm = trunk.get_submodule(wire.norm)
            assert isinstance(norm, TaskBatchNorm)
            replace(column, wire.norm, norm_like(norm, units))
        widths[wire.target] = base, units
    return column


def width(model: nn.Module, name: str) -> int:
    """Return the units or channels of a layer, by its name."""
    return len(model.get_submodule(name).get_parameter("weight"))


def like(
    layer: nn.Linear | nn.Conv2d, inputs: int, outputs: int, *, bias: bool
) -> nn.Linear | nn.Conv2d:
    """Return a layer of the same type with other widths."""
    with preserved_rng():
        if isinstance(layer, nn.Linear):
            return nn.Linear(inputs, outputs, bias=bias)
        conv = nn.Conv2d(inputs, outputs, 1, bias=bias, padding_mode=layer.padding_mode)
        for name in ("kernel_size", "stride", "padding", "dilation"):
            setattr(conv, name, getattr(layer, name))
        conv._reversed_padding_repeated_twice = layer._reversed_padding_repeated_twice
        conv.weight = nn.Parameter(torch.zeros(outputs, inputs, *layer.kernel_size))
        return conv


def norm_like(norm: TaskBatchNorm, channels: int) -> TaskBatchNorm:
    """Return a new norm for one task, with the same settings."""
    new = TaskBatchNorm(channels, norm.statistics, "first", norm.momentum, norm.eps)
    return new.to(norm.get_parameter("scale_0"))


def replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    """Replace the layer of this name."""
    path, _, label = name.rpartition(".")
    setattr(model.get_submodule(path), label, layer)


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
