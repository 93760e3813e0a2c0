"""Hard Attention to the Task (Serrà, Surís, Miron, Karatzoglou; ICML 2018): a mask per task.

Masks.  After every ReLU, task t multiplies each unit (or channel) by a = sigmoid(s e_t). In every
epoch s grows from 1/smax at the first batch to smax at the last, so that masks start soft and end
almost at 0 or 1; predictions have s = smax.

Protection.  a_pre is the largest mask of a unit over the finished tasks. The gradient of weight ij,
from unit j to unit i, is multiplied by 1 - min(a_pre_i, a_pre_j): weights between two used units do
not move. A layer after a flattened convolution sees a channel's mask at each of its positions. All
tasks use the inputs of the first layer, and the outputs of a shared head.

Sparsity.  L = L_ce + c Σ a (1 - a_pre) / Σ (1 - a_pre), the sums over all masks: new units cost,
used ones are free. The gradient of e vanishes where s e is large; it is multiplied by
(smax / s) (cosh(s e) + 1) / (cosh(e) + 1), with s e clamped to ±50, and e is kept in [-6, 6].

Rate.  That makes the gradient smax σ'(e) ∂L/∂a, whatever s is; of it, the penalty has c smax / 4U
at most, with U units in all: 0.017 for AlexNet-5 and smax 400. At the authors' rate of 0.05, that
moves e by up to 12 in 200 epochs of 75 steps; in twelve epochs at 0.006 with momentum by up to 0.4,
where e starts with a standard deviation of 1. So every step of an embedding is multiplied by
`embedding_rate`.

Differences from the paper and the released code: finished masks are rounded to 0 or 1, so that
outputs for old tasks stay the same to the last bit (`binary=False` leaves sigmoid(smax e), where a
unit in between is partly protected). Updates are masked instead of gradients where an optimiser
moves weights without a gradient (weight decay) or undoes a scaling (Adam). Masks come before
pooling, local response normalisation and dropout. The gradients of scale and shift of BatchNorm,
which the authors' networks lack, are multiplied by 1 - a_pre of their channel, or each task has its
own (`affine=task`); two convolutions whose outputs are added share the mask after the sum. s
reaches smax, as in the paper; in the released code it ends one batch earlier, and validation uses
the loss with its penalty.
"""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional

from classgrad import seeds
from classgrad.core.projector import updates_follow_gradients
from classgrad.errors import UserError
from classgrad.methods.base import LayerRank, Method, Step
from classgrad.networks.layers import PerTask
from classgrad.networks.network import Network
from classgrad.networks.trunk import Trunk, Wire
from classgrad.tasks import Task

MAX_EMBEDDING = 6.0
MAX_COSH_ARGUMENT = 50.0  # of s e in cosh(s e), which overflows float32 beyond 88


class Gate(PerTask, nn.ReLU):
    """ReLU, then units (dimension 1) times the mask a = sigmoid(s e), with one e for each task.

    While the newest task is being learnt, s is `slope`. Masks are finished at s = `steepest`, and
    rounded to 0 or 1 if `binary`; `used` is the largest finished mask of each unit so far.
    """

    used: Tensor

    def __init__(self, units: int, seed: int, name: str) -> None:
        super().__init__()
        self.units, self.seed, self.name = units, seed, name
        self.steepest, self.binary = 1.0, True
        self.slope: float | None = None  # None: not in training
        self.tasks = 0
        self.register_buffer("used", torch.zeros(units))
        self.add_task()

    def add_task(self) -> None:
        """Draw an embedding for one more task, and select it."""
        self.register_parameter(f"embedding_{self.tasks}", nn.Parameter(self.drawn(self.tasks)))
        self.task = self.tasks
        self.tasks += 1

    def drawn(self, task: int) -> Tensor:
        """Return the embedding of a task before training, from N(0, 1)."""
        rng = seeds.generator(self.seed, "gates", self.name, task)
        return torch.randn(self.units, generator=rng).to(self.used)

    def switched(self, task: int) -> int:
        """Return how many units training has switched on or off for a task."""
        before, after = self.drawn(task), self.get_parameter(f"embedding_{task}").detach()
        return int(((before > 0) != (after > 0)).sum())

    @property
    def newest(self) -> nn.Parameter:
        """The embedding of the newest task."""
        return self.get_parameter(f"embedding_{self.tasks - 1}")

    def annealed(self, slope: float) -> Tensor:
        """Return the mask of the newest task at s = `slope`."""
        return torch.sigmoid(slope * self.newest)

    def finished(self, task: int) -> Tensor:
        """Return the mask of a task as predictions use it."""
        mask = torch.sigmoid(self.steepest * self.get_parameter(f"embedding_{task}").detach())
        return mask.round() if self.binary else mask

    def finish(self) -> None:
        """Mark the units of the newest task as used from now on."""
        self.used.copy_(torch.maximum(self.used, self.finished(self.tasks - 1)))

    def compensation(self, slope: float) -> Tensor:
        """Return (smax / s) (cosh(s e) + 1) / (cosh(e) + 1), a factor for the gradient of e at s.

        It makes that smax times the gradient at s = 1, which does not vanish where masks are hard.
        """
        e = self.newest.detach()
        scaled = (slope * e).clamp(-MAX_COSH_ARGUMENT, MAX_COSH_ARGUMENT)
        return self.steepest / slope * (scaled.cosh() + 1) / (e.cosh() + 1)

    @torch.no_grad()
    def limit(self) -> None:
        """Keep the newest embedding in [-6, 6], from where a few steps can still flip a mask."""
        self.newest.clamp_(-MAX_EMBEDDING, MAX_EMBEDDING)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, units, *size) to the same shape."""
        if self.training and self.slope is not None and self.task == self.tasks - 1:
            mask = self.annealed(self.slope)
        else:
            mask = self.finished(self.task)
        return functional.relu(x) * mask.view(-1, *[1] * (x.dim() - 2))


class HAT(Method):
    """Learn which units each task uses, and protect the weights between them."""

    name: ClassVar[str] = "hat"
    summary: ClassVar[str] = "Hard Attention to the Task: a mask over units per task (ICML 2018)"
    aliases: ClassVar[dict[str, str]] = {"c": "sparsity", "smax": "steepness"}
    first_task_is_finetune: ClassVar[bool] = False
    parallel: ClassVar[bool] = True

    sparsity: float = Field(default=0.75, ge=0, description="penalty on newly used units (c)")
    steepness: float = Field(default=400, ge=1, description="steepest sigmoid of a mask (smax)")
    binary: bool = Field(
        default=True, description="round finished masks to 0 or 1: nothing is forgotten"
    )
    clip: float = Field(default=10000, gt=0, description="largest norm of all gradients together")
    embedding_rate: float = Field(
        default=1.0, gt=0, description="learning rate of the embeddings, in learning rates"
    )

    if TYPE_CHECKING:  # aliases, see Settings
        c: InitVar[float] = sparsity
        smax: InitVar[float] = steepness

    _gates: dict[str, Gate] = PrivateAttr(default_factory=dict)
    _factors: list[tuple[nn.Parameter, Tensor]] | None = PrivateAttr(default=None)
    _before: list[Tensor] = PrivateAttr(default_factory=list)
    _unmoved: list[Tensor] = PrivateAttr(default_factory=list)  # embeddings before a step

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Replace every ReLU after a layer with weights by a gate."""
        for wire in wiring(net):
            if not isinstance(net.trunk.get_submodule(wire.target), Gate):
                weight = net.trunk.get_submodule(wire.layer).get_parameter("weight")
                path, _, label = wire.target.rpartition(".")
                gate = Gate(len(weight), seed, wire.target).to(weight)
                setattr(net.trunk.get_submodule(path), label, gate)
        net.find_layers()
        self._attach(net)
        return net

    def _attach(self, net: Network) -> None:
        self._gates = {n: m for n, m in net.trunk.named_modules() if isinstance(m, Gate)}
        for gate in self._gates.values():
            gate.steepest, gate.binary = self.steepness, self.binary
        self._factors = None

    def parameters(self, net: Network, tasks: Sequence[Task]) -> Iterator[nn.Parameter]:
        """Yield the trunk without the embeddings of finished tasks, and the head."""
        gates = self._gates.values()
        old = {p for gate in gates for p in gate.parameters() if p is not gate.newest}
        yield from (p for p in super().parameters(net, tasks) if p not in old)

    def slope(self, step: Step) -> float:
        """Return s = 1/smax + (smax - 1/smax) b / (B - 1) at batch b of 0..B-1 of an epoch."""
        smallest, last = 1 / self.steepness, step.per_epoch - 1
        passed = step.number % step.per_epoch / last if last else 1.0
        return smallest + (self.steepness - smallest) * passed

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the cross-entropy with annealed masks plus their sparsity penalty."""
        for gate in self._gates.values():
            gate.slope = self.slope(step)
        return super().loss(net, step) + self.sparsity * self.cost(self.slope(step))

    def cost(self, slope: float) -> Tensor:
        """Return Σ a (1 - a_pre) / Σ (1 - a_pre); 0 if every unit is used."""
        masks = torch.cat([gate.annealed(slope) for gate in self._gates.values()])
        free = 1 - torch.cat([gate.used for gate in self._gates.values()])
        return masks @ free / free.sum().clamp(min=torch.finfo(free.dtype).tiny)

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Mask the gradients of shared parameters, and scale those of the embeddings."""
        if self._factors is None:
            self._factors = list(self._shared(net))
        if not updates_follow_gradients(step.optimizer):
            self._before = [parameter.detach().clone() for parameter, _ in self._factors]
        else:
            for parameter, factor in self._factors:
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        slope = self.slope(step)
        for gate in self._gates.values():
            assert gate.newest.grad is not None
            gate.newest.grad.mul_(gate.compensation(slope))
        if self.embedding_rate != 1:
            self._unmoved = [gate.newest.detach().clone() for gate in self._gates.values()]
        trained = [p for group in step.optimizer.param_groups for p in group["params"]]
        nn.utils.clip_grad_norm_(trained, self.clip)

    def after_step(self, net: Network, step: Step) -> None:
        """Mask the update where masking gradients is not enough; scale and limit embeddings."""
        if self._before and self._factors:
            for before, (parameter, factor) in zip(self._before, self._factors, strict=True):
                parameter.data.copy_(before.lerp(parameter.data, factor))
        for before, gate in zip(self._unmoved, self._gates.values(), strict=False):
            # The update, not the gradient, whose size does not matter to Adam.
            gate.newest.data.lerp_(before, 1 - self.embedding_rate)
        for gate in self._gates.values():
            gate.limit()
        self._before, self._unmoved = [], []

    def _shared(self, net: Network) -> Iterator[tuple[nn.Parameter, Tensor]]:
        """Yield the shared parameters, each with the factor of its gradient."""
        if not any(gate.used.any() for gate in self._gates.values()):
            return
        all_used = next(iter(self._gates.values())).used.new_ones(1)
        wires = wiring(net)
        for wire in wires:
            out = self._gates[wire.target].used
            seen = self._gates[wire.source].used if wire.source else all_used
            yield from factors(net.trunk.get_submodule(wire.layer), out, seen)
            if wire.norm is not None:  # scales of later tasks are their own
                norm = net.trunk.get_submodule(wire.norm)
                yield norm.get_parameter("scale_0"), 1 - out
                yield norm.get_parameter("shift_0"), 1 - out
        if net.shared_head:
            yield from factors(net.heads[0], all_used, self._gates[wires[-1].target].used)

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Mark the units of this task as used."""
        for gate in self._gates.values():
            gate.finish()
        self._factors = None

    def close(self) -> None:
        """Switch every gate to finished masks."""
        for gate in self._gates.values():
            gate.slope = None

    def layer_ranks(self) -> list[LayerRank]:
        """Return how many units of each gate are used, by all tasks and by the newest."""
        return [
            LayerRank(
                name,
                gate.units,
                int(gate.used.round().sum()),
                units=int(gate.finished(gate.tasks - 1).round().sum()),
                switched=gate.switched(gate.tasks - 1),
            )
            for name, gate in self._gates.items()
        ]

    def memory_bytes(self) -> int:
        """Return the bytes of the embeddings and of a_pre, which are in the network's gates."""
        gates = self._gates.values()
        return sum(t.nbytes for gate in gates for t in (*gate.parameters(), gate.used))

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state; all of it is in the gates of the network."""
        self._attach(net)


def wiring(net: Network) -> list[Wire]:
    """Return how the layers of a network are connected."""
    if not isinstance(net.trunk, Trunk):
        raise UserError(
            f"hat cannot tell how the layers of a {type(net.trunk).__name__} are connected: derive "
            "it from classgrad.networks.trunk.Trunk, or choose a network of the table"
        )
    return net.trunk.wiring()


def factors(layer: nn.Module, out: Tensor, seen: Tensor) -> Iterator[tuple[nn.Parameter, Tensor]]:
    """Yield a layer's weight with 1 - min(a_pre_i, a_pre_j), and its bias with 1 - a_pre_i.

    `out` is a_pre of its output units, `seen` that of its input channels; a single value is for
    all.
    """
    weight = layer.get_parameter("weight")
    inputs = seen.repeat_interleave(weight.shape[1] // len(seen))  # a channel's positions
    smaller = torch.minimum(out[:, None], inputs)
    yield weight, 1 - smaller.view(*smaller.shape, *[1] * (weight.dim() - 2))
    if layer.bias is not None:
        yield layer.get_parameter("bias"), 1 - out
