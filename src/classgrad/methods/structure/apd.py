"""Additive Parameter Decomposition (Yoon, Kim, Yang, Hwang; ICLR 2020).

Weights.  For task t a layer uses θ_t = σ ⊙ m_t + τ_t: the weight σ that all tasks share, times a
mask m_t = sigmoid(v_t) over its output units, plus a sparse part τ_t of the task's own.

Learning.  Task t minimises, over σ, v_t, τ_t and also over τ_i of every earlier task i,

    L_ce + λ1 Σ_{i<=t} ||τ_i||_1 + λ2/2 Σ_{i<t} ||θ*_i - (σ ⊙ m_i + τ_i)||²,

with θ*_i the weight of task i when task t begins: σ may change, and the τ_i of old tasks compensate
for the change. Masks of old tasks stay. Weight decay acts on τ_t and v_t, and on σ in the first
task. After the task, entries |τ_i| <= λ1 become zero.

Start.  With `start="zero"` τ_t starts at zero and m_t at 0.95, so that the task starts with nearly
σ, and an entry of τ_t appears only where the loss has a larger gradient than λ1. In the released
code (`start="shared"`) τ_t starts at σ and m_t at 1/2; the entries that the task does not need then
have to shrink from |σ| to zero, which takes hundreds of steps, and those left are stored.

Old parts in closed form.  The earlier τ_i appear in the two penalties only, entry by entry. With
σ' the shared weight when task t begins, r = θ*_i - σ ⊙ m_i = (σ' - σ) ⊙ m_i + τ*_i and κ = λ1/λ2,

    min_τ λ2/2 (r - τ)² + λ1 |τ|   is at τ = r - clip(r, -κ, κ),

because λ2 (r - τ) must be λ1 sign(τ), or at most λ1 in size where τ = 0. So each τ_i is a function
of σ, and θ_i stays within κ of θ*_i in every entry. The remaining penalty is λ2/2 r² where
|r| <= κ, and λ1 |r| - λ1²/(2 λ2) elsewhere (the Huber loss), with the derivative λ2 clip(r, -κ, κ).
Its gradient for σ, -λ2 Σ_i m_i ⊙ clip(r_i, -κ, κ), is added to that of the cross-entropy.

The λ1 penalty of τ_t is applied by a proximal step after each step of the optimiser: a soft
threshold of rate x λ1, with the rate of `classgrad.methods.penalty.base`. It converges where the
gradient of the whole loss is zero, and makes zeros exact during training.

Differences from the released code: there all τ are dense variables that Adam moves along the
subgradient of the whole loss, T copies of the network with two moments each; here learning a task
takes σ', one dense τ and the non-zero entries of the old ones. Zeros are exact. Networks have no
biases. Other shared parameters (scale and shift of BatchNorm with `affine=first`, biases of your
own network) are frozen after the first task. A shared head is a layer like the others. Validation
uses plain cross-entropy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.methods.base import Method, Step
from classgrad.methods.penalty.base import inverse_step_size
from classgrad.networks.layers import PerTask
from classgrad.networks.network import Network
from classgrad.tasks import Task

INITIAL_LOGIT = 3.0  # of masks, where τ starts at zero: θ_t starts at 0.95 σ


@dataclass(frozen=True)
class Sparse:
    """The non-zero entries of a weight: their indices in it, row by row, and their values."""

    index: Tensor
    value: Tensor

    @classmethod
    def of(cls, dense: Tensor) -> Self:
        """Return the non-zero entries of a weight."""
        flat = dense.detach().flatten()
        index = flat.nonzero().flatten()
        return cls(index.to(torch.int32), flat[index])

    def add_to(self, matrix: Tensor) -> None:
        """Add the entries to a contiguous matrix with the rows of the weight."""
        matrix.view(-1).index_add_(0, self.index, self.value)

    def dense(self, like: Tensor) -> Tensor:
        """Return the whole weight."""
        matrix = like.new_zeros(len(like), like[0].numel())
        self.add_to(matrix)
        return matrix.view(like.shape)


class Decomposed(PerTask):
    """The base of both layer types: σ, and for each task v, τ and the common part of its group.

    σ is the layer's own `weight`, m_t has a value for each output unit or channel, and τ_t has the
    shape of σ. Tasks may also have a sparse part in common, which is added to theirs. While a task
    is learnt its τ is dense, a parameter of the layer; of finished tasks the non-zero entries are
    kept, and follow σ as it moves: τ_i(σ) = soft_threshold(r_i, λ1/λ2).

    Layers are converted by changing their class, so that names and weights stay.
    """

    weight: Tensor  # σ
    adaptive: nn.Parameter | None  # τ of the current task
    # In the method's state, not in the layer's:
    anchor: Tensor | None  # σ' while a task is learnt
    own: list[Sparse]  # τ of finished tasks, at σ'
    common: list[Sparse | None]  # the part that a finished task shares with its group
    limit: float  # λ1/λ2
    tasks: int
    from_shared: bool  # whether τ starts at σ; otherwise at zero

    def add_task(self) -> None:
        """Add a mask for one more task, equal for all units, and select it."""
        v = 0.0 if self.from_shared else INITIAL_LOGIT
        start = self.weight.detach().new_full((len(self.weight),), v)
        self.register_parameter(f"mask_{self.tasks}", nn.Parameter(start))
        self.task = self.tasks
        self.tasks += 1

    def logits(self, task: int) -> nn.Parameter:
        """Return v of a task."""
        return self.get_parameter(f"mask_{task}")

    def mask(self, task: int) -> Tensor:
        """Return m of a task, in a shape that multiplies the rows of a weight."""
        return self.logits(task).sigmoid().view(-1, *[1] * (self.weight.dim() - 1))

    def begin(self) -> None:
        """Start to learn the next task, with its τ at zero or σ; do nothing if it has begun."""
        if self.adaptive is None:
            self.adaptive = nn.Parameter(self.initial_tau().detach().clone())
            self.anchor = self.weight.detach().clone()

    def initial_tau(self) -> Tensor:
        """Return τ of a task that has not begun."""
        return self.weight if self.from_shared else torch.zeros_like(self.weight)

    def retrofitted(self, task: int) -> Tensor:
        """Return τ of a finished task at the current σ."""
        tau = self.own[task].dense(self.weight)
        if self.anchor is None:
            return tau
        return soft_threshold((self.anchor - self.weight) * self.mask(task) + tau, self.limit)

    def tau(self, task: int) -> Tensor:
        """Return the part a task adds to σ ⊙ m."""
        if task < len(self.own):
            common = self.common[task]
            tau = self.retrofitted(task)
            return tau if common is None else tau + common.dense(self.weight)
        return self.initial_tau() if self.adaptive is None else self.adaptive

    def theta(self) -> Tensor:
        """Return the weight of the selected task, σ ⊙ m + τ."""
        return self.weight * self.mask(self.task) + self.tau(self.task)

    @torch.no_grad()
    def pull(self, retention: float) -> Tensor:
        """Return the gradient of the old tasks' penalty with respect to σ, for λ2 = `retention`.

        At the best τ_i the penalty of task i is a function of r_i alone, whose derivative is λ2 r_i
        clamped to ±λ1; and ∂r_i/∂σ = -m_i.
        """
        assert self.anchor is not None, "a task has begun"
        moved = (self.anchor - self.weight).flatten(1).contiguous()
        total = torch.zeros_like(moved)
        for task, tau in enumerate(self.own):
            mask = self.logits(task).sigmoid()[:, None]
            r = moved * mask
            tau.add_to(r)
            total.addcmul_(r.clamp_(-self.limit, self.limit), mask, value=-retention)
        return total.view(self.weight.shape)

    @torch.no_grad()
    def finish(self, threshold: float) -> None:
        """Keep τ of all tasks so far, without entries of at most `threshold` in size."""
        assert self.adaptive is not None, "a task has begun"
        tasks = range(len(self.own))
        self.own = [Sparse.of(pruned(self.retrofitted(task), threshold)) for task in tasks]
        self.own.append(Sparse.of(pruned(self.adaptive, threshold)))
        self.common.append(None)
        self.adaptive = self.anchor = None


class DecomposedLinear(Decomposed, nn.Linear):
    """A Linear layer with a weight for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """Return θ x + b for each row x."""
        return functional.linear(input, self.theta(), self.bias)


class DecomposedConv2d(Decomposed, nn.Conv2d):
    """A convolution with a weight for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution with θ."""
        out: Tensor = self._conv_forward(input, self.theta(), self.bias)
        return out


def soft_threshold(x: Tensor, threshold: float | Tensor) -> Tensor:
    """Move every entry towards zero by `threshold`; smaller ones become zero."""
    return x - torch.clamp(x, -threshold, threshold)  # type: ignore[arg-type]


def pruned(x: Tensor, threshold: float) -> Tensor:
    """Set entries of at most `threshold` in size to zero."""
    return x * (x.abs() > threshold)


def make_decomposed(model: nn.Module, from_shared: bool = False) -> dict[str, Decomposed]:
    """Convert the trainable Linear and Conv2d layers of a model; return all by name.

    `from_shared` says where τ of every task starts: at σ, or at zero.

    Layers that are decomposed already stay as they are; other types are refused.
    """
    decomposed: dict[str, Decomposed] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, Decomposed):
            decomposed[name] = layer
        elif isinstance(layer, nn.Linear | nn.modules.conv._ConvNd) and layer.weight.requires_grad:
            if type(layer) is nn.Linear:
                layer.__class__ = DecomposedLinear
            elif type(layer) is nn.Conv2d:
                layer.__class__ = DecomposedConv2d
            else:
                raise UserError(
                    f"layer '{name}' ({type(layer).__name__}) cannot have a part for each task: "
                    "apd takes nn.Linear and nn.Conv2d"
                )
            assert isinstance(layer, Decomposed)
            layer.register_parameter("adaptive", None)
            layer.anchor, layer.own, layer.common = None, [], []
            layer.limit, layer.tasks, layer.from_shared = 0.0, 0, from_shared
            layer.add_task()
            decomposed[name] = layer
    return decomposed


class APD(Method):
    """Share masked weights; keep a sparse part for each task, and adapt those of old tasks."""

    name: ClassVar[str] = "apd"
    summary: ClassVar[str] = "Additive Parameter Decomposition: shared and sparse own (ICLR 2020)"
    aliases: ClassVar[dict[str, str]] = {"lambda1": "sparsity", "lambda2": "retention"}
    first_task_is_finetune: ClassVar[bool] = False

    sparsity: float = Field(
        default=6e-4, ge=0, description="weight of the L1 penalty on task-specific parts (λ1)"
    )
    retention: float = Field(
        default=100.0, gt=0, description="weight of the penalty that keeps old tasks' weights (λ2)"
    )
    threshold: float | None = Field(
        default=None,
        ge=0,
        description="task-specific entries of at most this size become zero; not given: λ1",
    )
    decay: float = Field(
        default=1e-4, ge=0, description="weight decay of a task's own part and mask"
    )

    start: Literal["zero", "shared"] = Field(
        default="zero",
        description="where a task's own part starts: at zero, or at the shared weight",
    )

    if TYPE_CHECKING:  # aliases, see Settings
        lambda1: InitVar[float] = sparsity
        lambda2: InitVar[float] = retention

    _layers: dict[str, Decomposed] = PrivateAttr(default_factory=dict)

    @property
    def layers(self) -> dict[str, Decomposed]:
        """The layers that have a part for each task, by name."""
        return self._layers

    @property
    def learnt(self) -> int:
        """How many tasks are finished."""
        return min((len(layer.own) for layer in self._layers.values()), default=0)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Give every shared layer a mask and a sparse part for each task."""
        self._attach(net)
        return net

    def _attach(self, net: Network) -> None:
        self._layers = make_decomposed(net.protected(), self.start == "shared")
        for layer in self._layers.values():
            layer.limit = self.sparsity / self.retention
        net.find_layers()

    def begin_task(self, net: Network, task: Task) -> None:
        """Start the task's own part, unless the task has begun before."""
        for layer in self._layers.values():
            layer.begin()

    def parameters(self, net: Network, tasks: Sequence[Task]) -> Iterator[nn.Parameter]:
        """Yield σ, and the task's own masks, sparse parts, norms and head.

        Other shared parameters are trained with the first task only.
        """
        trained = set(self._trained())
        frozen = {p for p in net.shared_parameters().values() if p not in trained}
        for parameter in super().parameters(net, tasks):
            if self.learnt == 0 or parameter not in frozen:
                yield parameter

    def _trained(self) -> Iterator[Tensor]:
        """Yield σ, and the layers' mask and sparse part of the current task."""
        for layer in self._layers.values():
            yield layer.weight
            yield layer.logits(layer.tasks - 1)
            if layer.adaptive is not None:
                yield layer.adaptive

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Add the old tasks' gradient for σ, and the weight decay."""
        first = self.learnt == 0
        for layer in self._layers.values():
            decaying: list[Tensor | None] = [layer.logits(layer.tasks - 1), layer.adaptive]
            if first:
                decaying.append(layer.weight)
            elif layer.weight.grad is not None:
                layer.weight.grad.add_(layer.pull(self.retention))
            for parameter in decaying:
                if parameter is not None and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self.decay)

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Apply a soft threshold of rate x λ1 to the task's own parts."""
        if step.optimizer.param_groups[0]["lr"] == 0:
            return
        parts = [p for p in (layer.adaptive for layer in self._layers.values()) if p is not None]
        inverse = inverse_step_size(step.optimizer, list(parts))
        for number, part in enumerate(parts):
            threshold = self.sparsity / (inverse if isinstance(inverse, float) else inverse[number])
            part.copy_(soft_threshold(part, threshold))

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Keep the non-zero entries of all tasks' own parts, adapted to the new σ."""
        threshold = self.sparsity if self.threshold is None else self.threshold
        for layer in self._layers.values():
            layer.finish(threshold)

    def stored_parameters(self, net: Network) -> int:
        """Return how many non-zero numbers are stored for all tasks."""
        parts = [part for layer in self._layers.values() for part in stored_parts(layer)]
        return super().stored_parameters(net) + sum(len(part.value) for part in parts)

    def state_dict(self) -> dict[str, Any]:
        """Return the parts of finished tasks and, within a task, σ'."""
        state: dict[str, Any] = {"own": {}, "common": {}, "groups": {}, "anchor": {}}
        for name, layer in self._layers.items():
            common = shared_parts(layer)
            state["own"][name] = [vars(part).copy() for part in layer.own]
            state["common"][name] = [vars(part).copy() for part in common]
            # Tasks of a group share one object; -1 stands for none.
            numbers = {id(part): number for number, part in enumerate(common)}
            state["groups"][name] = [numbers.get(id(part), -1) for part in layer.common]
            if layer.anchor is not None:
                state["anchor"][name] = layer.anchor
        return state

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state; within a task, create the parameters that the network's state fills."""
        self._attach(net)
        for name, layer in self._layers.items():
            common = [Sparse(**part) for part in state["common"][name]]
            layer.own = [Sparse(**part) for part in state["own"][name]]
            layer.common = [None if g < 0 else common[g] for g in state["groups"][name]]
            layer.anchor = state["anchor"].get(name)
            if layer.anchor is None:
                layer.adaptive = None
            elif layer.adaptive is None:
                layer.adaptive = nn.Parameter(layer.anchor.clone())


def shared_parts(layer: Decomposed) -> list[Sparse]:
    """Return the common parts of groups of finished tasks, each once."""
    return list({id(part): part for part in layer.common if part is not None}.values())


def stored_parts(layer: Decomposed) -> list[Sparse]:
    """Return all sparse parts that a layer stores for finished tasks."""
    return [*layer.own, *shared_parts(layer)]
