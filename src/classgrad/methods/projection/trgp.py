"""Trust Region Gradient Projection (Lin, Yang, Fan, Zhang; ICLR 2022).

Bases.  After a task, R holds the inputs of a layer, S is its basis so far and R̂ = U Σ Vᵀ the part
of R outside S. The task's own basis B_t is the strongest of all directions, stored or new, by the
list [diag(Sᵀ R Rᵀ S), σ²], that together hold the share ε of ||R||²; its new ones join S. Gradients
of the weights are projected out of all of S, as in GPM.

Trust regions.  Before task t > 1, g is the gradient of its loss at the weights as they are, from
`probe` training samples. An old task j is trusted at a layer if ||g B_j B_jᵀ|| > 0.5 ||g||
(`trust`) and this norm is among the largest two (`regions`).

Scaled weights.  The weights along j's directions cannot change, but task t may scale them: for each
trusted j a matrix Q_j is learnt together with the rest, from the identity, and for task t the
layer's weight is W + Σ_j (W B_j Q_j B_jᵀ - W B_j B_jᵀ). The Q_j of a task are trained with it and
frozen when the next task begins. They are parameters of the network, and counted there; the bases,
and which columns of S each B_j has, are this method's memory.

Choices of ours: g is computed with dropout off, as in the released code, and with batch statistics
in every BatchNorm, none of which are stored; the samples are drawn by a separate generator. Of
equal norms the earlier task comes first.

Differences from the released code: as in the paper, all new directions join S (the code drops the
strongest of each task) and BatchNorm's scale and shift stay as the first task left them (the code
moves them in every task); R is what the layers see with the task's scaled weights (the code: with W
alone); every layer has its own regions (in the code no layer scales if the first one does not);
accuracy is one evaluation, not the mean of ten. As in GPM, a first basis is the smallest that
reaches ε (`gpm_compat=True`: one direction less), and ε stops growing at `energy_limit`.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from classgrad import seeds
from classgrad.core.collect import Collected
from classgrad.core.layers import ConvolutionKind, LayerKind, register_layer
from classgrad.core.selection import joint
from classgrad.errors import UserError
from classgrad.methods.projection.base import Count, Projected
from classgrad.networks.layers import PerTask, TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.tasks import Task


class Scaled(PerTask):
    """The base of both layer types: S, and for each task the columns and Q - I of its regions.

    With W (o x d) the weight, and B_j (d x k) and Q_j (k x k) for each region j of a task, it uses

        W + Σ_j (W B_j Q_j B_jᵀ - W B_j B_jᵀ) = W + W Σ_j B_j A_j B_jᵀ,   A_j = Q_j - I.

    All B_j are columns of one basis S of the layer, so two products with S serve all regions. The
    parameters are the A_j, initially zeros, so that weight decay pulls Q_j to the identity. A
    Linear layer multiplies its input by I + Σ_j B_j A_j B_jᵀ instead of its weight: the same
    result, and cheaper, as a batch has fewer rows than the weight.

    Layers are converted by changing their class, so that names and weights stay.
    """

    weight: Tensor
    basis: Tensor  # S (d x r), which only grows; in the method's state, not in the layer's
    regions: dict[int, list[Tensor]]  # task -> columns of S, for each region

    def add_task(self) -> None:
        """Do nothing: the regions of a task are added when it begins."""

    @property
    def task_dependent(self) -> bool:
        """Whether some task has regions."""
        return any(self.regions.values())

    def add_regions(self, task: int, columns: Sequence[Tensor]) -> None:
        """Let a task scale the weight inside these columns of S; existing scales stay."""
        self.regions[task] = list(columns)
        for number, region in enumerate(columns):
            name = f"scale_{task}_{number}"
            if not hasattr(self, name):
                start = self.weight.new_zeros(len(region), len(region))
                self.register_parameter(name, nn.Parameter(start))

    def scales(self, task: int) -> list[nn.Parameter]:
        """Return Q - I of each region of a task."""
        count = len(self.regions.get(task, []))
        return [self.get_parameter(f"scale_{task}_{number}") for number in range(count)]


class ScaledLinear(Scaled, nn.Linear):
    """A Linear layer with scales for each task."""

    def forward(self, input: Tensor) -> Tensor:
        """Return W (x + Σ_j B_j A_j B_jᵀ x) + b for each row x."""
        return functional.linear(self.scaled(input), self.weight, self.bias)

    def scaled(self, input: Tensor) -> Tensor:
        """Return x + Σ_j B_j A_j B_jᵀ x for each row x, the input of W for the selected task."""
        scales = self.scales(self.task)
        if not scales:
            return input
        rows = input.reshape(-1, input.shape[-1])
        result: Tensor = ScaledRows.apply(rows, self.basis, self.regions[self.task], *scales)
        return result.view(input.shape)


class ScaledConv2d(Scaled, nn.Conv2d):
    """A convolution with scales for each task, on its patches."""

    def forward(self, input: Tensor) -> Tensor:
        """Return the convolution with W + W Σ_j B_j A_j B_jᵀ."""
        out: Tensor = self._conv_forward(input, self.scaled_weight(), self.bias)
        return out

    def scaled_weight(self) -> Tensor:
        """Return W + W Σ_j B_j A_j B_jᵀ for the selected task."""
        scales = self.scales(self.task)
        if not scales:
            return self.weight
        matrix = self.weight.flatten(1)
        result: Tensor = ScaledWeight.apply(matrix, self.basis, self.regions[self.task], *scales)
        return result.view(self.weight.shape)


def columns_of(matrix: Tensor, region: Tensor) -> Tensor:
    """Return the columns (n x k) of a matrix (n x r) that a region has."""
    return matrix.index_select(1, region.to(matrix.device))


def times_scales(along: Tensor, regions: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return C Σ_j P_j A_j P_jᵀ for C = along (n x r), with P_j the columns of region j.

    With the sum as one matrix (r x r) there would be fewer operations, but to put it together from
    the scales, number by number, takes longer than all products.
    """
    result = torch.zeros_like(along)
    for region, scale in zip(regions, scales, strict=True):
        part = columns_of(along, region) @ scale.to(along.dtype)
        result.index_add_(1, region.to(along.device), part)
    return result


def scale_gradients(
    left: Tensor, right: Tensor, regions: Sequence[Tensor], scales: Sequence[Tensor]
) -> list[Tensor]:
    """Return P_jᵀ leftᵀ right P_j, for two matrices (n x r), as gradients of the scales."""
    return [
        (columns_of(left, region).T @ columns_of(right, region)).to(scale.dtype)
        for region, scale in zip(regions, scales, strict=True)
    ]


class ScaledRows(torch.autograd.Function):
    """Rows X (n x d) -> X + Σ_j X B_j A_jᵀ B_jᵀ, in few products."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, basis: Tensor, regions: list[Tensor], *scales: Tensor
    ) -> Tensor:
        """Return the scaled rows."""
        along = rows @ basis
        ctx.regions = regions
        ctx.save_for_backward(along, basis, *scales)
        inner = times_scales(along, regions, [scale.T for scale in scales])
        return torch.addmm(rows, inner, basis.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of X and the A_j."""
        along, basis, *scales = ctx.saved_tensors
        basis = basis.to(grad.dtype)
        grad_along = grad @ basis
        grad_rows = None
        if ctx.needs_input_grad[0]:
            inner = times_scales(grad_along, ctx.regions, scales)
            grad_rows = torch.addmm(grad, inner, basis.T)
        return grad_rows, None, None, *scale_gradients(grad_along, along, ctx.regions, scales)


class ScaledWeight(torch.autograd.Function):
    """Weight W (o x d) -> W + Σ_j W B_j A_j B_jᵀ, where W S is a constant.

    It is one because no update changes W along S: what the gradient of W lacks here lies in S, and
    projection would remove it.
    """

    @staticmethod
    def forward(
        ctx: Any, weight: Tensor, basis: Tensor, regions: list[Tensor], *scales: Tensor
    ) -> Tensor:
        """Return the scaled weight."""
        along = weight @ basis
        ctx.regions = regions
        ctx.save_for_backward(along, basis, *scales)
        return torch.addmm(weight, times_scales(along, regions, scales), basis.T)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of W and the A_j."""
        along, basis, *scales = ctx.saved_tensors
        grad_along = grad @ basis.to(grad.dtype)
        return grad, None, None, *scale_gradients(along, grad_along, ctx.regions, scales)


class ScaledLinearKind(LayerKind[ScaledLinear]):
    """A Linear layer that scales its input before the weight."""

    linear = True

    def linear_input(self, layer: ScaledLinear, x: Tensor) -> Tensor:
        """Return x + Σ_j B_j A_j B_jᵀ x for each row x."""
        return layer.scaled(x)


# Scales act only inside subspaces that no later update changes: to gradient projection, inputs and
# matrices are those of plain layers.
register_layer(ScaledLinear, ScaledLinearKind())
register_layer(ScaledConv2d, ConvolutionKind())


def make_scaled(model: nn.Module) -> None:
    """Convert the trainable Linear and Conv2d layers of a model into scaled ones; refuse others.

    Layers that are scaled already stay as they are.
    """
    for name, layer in model.named_modules():
        if isinstance(layer, Scaled) or not isinstance(layer, (nn.Linear, nn.modules.conv._ConvNd)):
            continue
        weight = layer.weight
        if not weight.requires_grad:
            continue
        if type(layer) is nn.Linear:
            layer.__class__ = ScaledLinear
        elif type(layer) is nn.Conv2d and layer.groups == 1:
            layer.__class__ = ScaledConv2d
        else:
            raise UserError(
                f"layer '{name}' ({type(layer).__name__}) cannot be scaled for each task: trgp "
                "takes nn.Linear, and nn.Conv2d without groups"
            )
        layer.regions = {}
        layer.register_buffer("basis", weight.new_zeros(weight[0].numel(), 0), persistent=False)


class TRGP(Projected):
    """Keep updates out of S; let a task scale weights inside the subspaces of trusted tasks."""

    name: ClassVar[str] = "trgp"
    summary: ClassVar[str] = "Trust Region Gradient Projection: scaled old subspaces (ICLR 2022)"
    attachable: ClassVar[bool] = False
    task_dependent: ClassVar[bool] = True
    parallel: ClassVar[bool] = True

    trust: float = Field(
        default=0.5,
        ge=0,
        lt=1,
        description="share of the gradient's norm inside a trusted task's basis",
    )
    regions: int = Field(
        default=2, ge=0, description="trusted tasks of a layer, at most; 0: no scaling"
    )
    probe: Count = Field(
        default=125, description="samples whose gradient says which tasks are trusted"
    )

    _own: dict[str, list[Tensor]] = PrivateAttr(default_factory=dict)
    _trusted: dict[str, dict[str, list[int]]] = PrivateAttr(default_factory=dict)

    @property
    def own(self) -> dict[str, list[Tensor]]:
        """By site, for each task so far, the columns of S that are its own basis."""
        return self._own

    @property
    def trusted(self) -> dict[str, dict[str, list[int]]]:
        """By site and task, the earlier tasks whose directions it scales."""
        return self._trusted

    def attach(self, model: nn.Module, *, freezes_rest: bool = False) -> None:
        """Protect this model from now on, and convert its layers to scaled ones."""
        make_scaled(model)
        super().attach(model, freezes_rest=freezes_rest)

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Protect the part of the network that tasks share."""
        super().wrap(net, stream, seed)
        net.find_layers()
        return net

    def begin_task(self, net: Network, task: Task) -> None:
        """Choose the regions of every layer, unless the task has begun before."""
        self.projector.remove()  # regions are chosen by the gradient before any projection
        if self._learnt and str(task.id) not in next(iter(self._trusted.values()), {}):
            for name, gradient in self._gradients(net, task).items():
                self._trusted.setdefault(name, {})[str(task.id)] = most_trusted(
                    gradient, self._subspaces[name].basis, self._own[name], self.trust, self.regions
                )
            self._assign_regions()
        super().begin_task(net, task)

    def parameters(self, net: Network, tasks: Sequence[Task]) -> Iterator[nn.Parameter]:
        """Yield the trunk, the heads of these tasks, and their scales, not those of others."""
        current = {task.id for task in tasks}
        frozen = {
            q
            for layer in self._layers().values()
            for task in layer.regions
            if task not in current
            for q in layer.scales(task)
        }
        yield from (p for p in super().parameters(net, tasks) if p not in frozen)

    def grow(self, gather: Callable[..., Collected]) -> Collected:
        """Add the task's own basis to every layer: indices of stored directions, and new ones."""
        collected = gather(pool=True)
        seen = collected.classes[0].representations
        for name, subspace in self._subspaces.items():
            own: list[int] = []
            if name in seen:
                chosen = joint(subspace.basis, seen[name], self.share_to_hold(name, seen[name]))
                own = chosen.stored + self.add(name, chosen.new)
            self._own.setdefault(name, []).append(torch.tensor(own, dtype=torch.int64))
        return collected

    def protect(self) -> None:
        """Protect the subspaces, and give them to the layers that scale inside them."""
        super().protect()
        for name, layer in self._layers().items():
            layer.basis = self._subspaces[name].basis.to(layer.weight)

    def state_dict(self) -> dict[str, Any]:
        """Return bases, own columns and trusted tasks; the scales are the network's."""
        trusted = {name: dict(tasks) for name, tasks in self._trusted.items()}
        own = {name: list(columns) for name, columns in self._own.items()}
        return {**super().state_dict(), "own": own, "trusted": trusted}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state; create the scales, whose values are in the network's state."""
        self._own = {name: list(columns) for name, columns in state["own"].items()}
        self._trusted = {name: dict(tasks) for name, tasks in state["trusted"].items()}
        self.attach(net.protected())
        net.find_layers()
        self._assign_regions()
        super().load_state_dict(state, net)

    def _layers(self) -> dict[str, Scaled]:
        layers = {name: site.layer for name, site in self.projector.sites.items()}
        return {name: layer for name, layer in layers.items() if isinstance(layer, Scaled)}

    def _assign_regions(self) -> None:
        """Give the layers the columns of every task's regions."""
        for name, layer in self._layers().items():
            for task, trusted in self._trusted.get(name, {}).items():
                layer.add_regions(int(task), [self._own[name][j] for j in trusted])

    def _gradients(self, net: Network, task: Task) -> dict[str, Tensor]:
        """Return the gradient (o x d) of every site on some samples of a task not yet learnt."""
        sites = self.projector.sites
        if not sites:  # the trunk is frozen
            return {}
        rng = seeds.generator(net.seed, "trust", task.id)
        index = torch.randperm(len(task.train), generator=rng)[: self.probe]
        x = task.transform(task.train.unit_images(index, next(net.parameters()).dtype))
        modes = {module: module.training for module in net.modules()}
        for module in modes:
            module.training = isinstance(module, TaskBatchNorm)
        try:
            with net.frozen_bn_stats():
                loss = functional.cross_entropy(net(x, task.id), task.train.labels[index])
        finally:
            for module, mode in modes.items():
                module.training = mode
        weights = [site.weight for site in sites.values()]
        gradients = torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)
        return {
            name: self.processes.broadcast(site.matrix(gradient).cpu().double())
            for (name, site), gradient in zip(sites.items(), gradients, strict=True)
        }


def most_trusted(
    gradient: Tensor, basis: Tensor, own: Sequence[Tensor], trust: float, regions: int
) -> list[int]:
    """Gradient g (o x d), S and each task's columns B_j of it -> the trusted j, strongest first.

    These have ||g B_j B_jᵀ|| = ||g B_j|| > trust ||g||; at most `regions` are returned.
    """
    along = (gradient @ basis).square().sum(0)
    norms = torch.stack([along[columns].sum().sqrt() for columns in own])
    order = norms.sort(descending=True, stable=True).indices[:regions]
    return [j for j in order.tolist() if norms[j] > trust * gradient.norm()]
