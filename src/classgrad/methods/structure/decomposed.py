"""Layers whose weight is a shared one, masked for each task, plus a task-specific part (APD).

For task t a layer uses θ_t = σ ⊙ m_t + τ_t: σ is the layer's own `weight`, m_t = sigmoid(v_t) has a
value for each output unit or channel, and τ_t has the shape of σ and is sparse. Tasks may also have
a sparse part in common, which is added to theirs.

While a task is learnt its τ is dense, a parameter of the layer. Of finished tasks the non-zero
entries of τ are kept. As σ moves they follow it: with σ' the weight at the beginning of the task,
r_i = (σ' - σ) ⊙ m_i + τ_i is the τ with which θ_i would stay exactly the same, and

    τ_i(σ) = argmin_τ  λ2/2 ||r_i - τ||² + λ1 ||τ||_1 = soft_threshold(r_i, λ1/λ2).

Layers are converted by changing their class, so that names and weights stay.
"""

from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.networks.layers import PerTask


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
    """The base of both layer types: σ, and for each task v, τ and the common part of its group."""

    weight: Tensor  # σ
    adaptive: nn.Parameter | None  # τ of the current task
    # In the method's state, not in the layer's:
    anchor: Tensor | None  # σ' while a task is learnt
    own: list[Sparse]  # τ of finished tasks, at σ'
    common: list[Sparse | None]  # the part that a finished task shares with its group
    limit: float  # λ1/λ2
    tasks: int

    def add_task(self) -> None:
        """Add a mask for one more task, 1/2 everywhere, and select it."""
        start = self.weight.detach().new_zeros(len(self.weight))
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
        """Start to learn the next task, with its τ at σ; do nothing if it has begun."""
        if self.adaptive is None:
            self.adaptive = nn.Parameter(self.weight.detach().clone())
            self.anchor = self.weight.detach().clone()

    def retrofitted(self, task: int) -> Tensor:
        """Return τ of a finished task at the current σ."""
        tau = self.own[task].dense(self.weight)
        if self.anchor is None:
            return tau
        return soft_threshold((self.anchor - self.weight) * self.mask(task) + tau, self.limit)

    def tau(self, task: int) -> Tensor:
        """Return the part a task adds to σ ⊙ m; σ for a task that has not begun."""
        if task < len(self.own):
            common = self.common[task]
            tau = self.retrofitted(task)
            return tau if common is None else tau + common.dense(self.weight)
        return self.weight if self.adaptive is None else self.adaptive

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


def make_decomposed(model: nn.Module) -> dict[str, Decomposed]:
    """Convert the trainable Linear and Conv2d layers of a model; return all by name.

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
            layer.limit, layer.tasks = 0.0, 0
            layer.add_task()
            decomposed[name] = layer
    return decomposed
