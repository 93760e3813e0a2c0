"""Keeps a training step out of protected subspaces, for any model, loop and optimiser.

A layer y = W x with protected basis S (d x r) answers old inputs as before when every update of W
has no part in S: ΔW S = 0 (GPM, ICLR 2021; CGP, MM 2022, Eq. project1 and project2).

Three choices keep that exact and cheap:

- ∇W = Δᵀ X for a Linear layer with input rows X, so S can be removed from the gradient, at
  4 o d r operations, or from the rows before they meet Δ, at 4 B d r. For a 2048 x 2048 layer and a
  batch of 64 the second is 32 times cheaper. A convolution has more rows than outputs.
- g - (g S) Sᵀ equals (g N) Nᵀ with N the orthogonal complement; the narrower of both is used, so
  the cost falls again once a layer is more than half full.
- Plain SGD moves W along projected gradients only. Weight decay, Adam and momentum from before the
  basis grew do not; for those the update itself, W after - W before, is projected too.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad import linalg
from classgrad.capture import CONVOLUTIONS, Site, sites
from classgrad.errors import UserError
from classgrad.memory.subspace import Subspace
from classgrad.networks.layers import NORMALISATIONS, TaskBatchNorm

# A gradient with more than this share along a protected probe direction is projected again.
# Removing S from float32 rows leaves about 1e-6.
LEAK = 1e-5


class Side:
    """Removes one subspace from matrices, by its basis or its complement, whichever is narrower."""

    def __init__(self, subspace: Subspace, like: Tensor) -> None:
        self.inside = subspace.rank <= subspace.dimension // 2
        basis = subspace.basis if self.inside else linalg.complement(subspace.basis)
        self.basis = basis.to(like)
        # A random direction of the subspace, as long as the root of its rank: ||g probe|| is then
        # about ||g S||, for the price of one matrix-vector product.
        chance = torch.Generator().manual_seed(subspace.rank)
        weights = torch.randn(subspace.rank, generator=chance, dtype=torch.float64)
        self.probe = (subspace.basis @ weights).to(like)
        self.by_rows = False  # whether all of the gradient came through projected rows

    def free(self, matrix: Tensor) -> Tensor:
        """Return the part of a matrix (o x d) outside the subspace."""
        basis = self.basis.to(matrix.dtype)
        return linalg.remove(matrix, basis) if self.inside else linalg.keep(matrix, basis)

    def leaks(self, matrix: Tensor) -> bool:
        """Tell whether a matrix has a part inside the subspace."""
        return bool((matrix @ self.probe).norm() > LEAK * matrix.norm())


class FreeRows(torch.autograd.Function):
    """A linear map whose weight gradient is taken with the protected part of its rows removed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, side: Side) -> Tensor:
        """Return x Wᵀ + b."""
        ctx.save_for_backward(x, weight)
        ctx.side = side
        return functional.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W (its free part) and b."""
        x, weight = ctx.saved_tensors
        of_x = of_weight = of_bias = None
        outputs = grad.reshape(-1, grad.shape[-1])
        if ctx.needs_input_grad[0]:
            of_x = (grad @ weight.to(grad.dtype)).to(x.dtype)
        if ctx.needs_input_grad[1]:
            rows = x.reshape(-1, x.shape[-1]).to(grad.dtype)
            of_weight = (outputs.T @ ctx.side.free(rows)).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            of_bias = outputs.sum(0)
        return of_x, of_weight, of_bias, None


class Projector:
    """Guards the weights of one model against moving inside the subspaces it is given."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.sites = sites(model)
        if not self.sites:
            raise UserError(
                "the model has no Linear or convolution layer: gradient projection has no weight "
                "matrix to protect"
            )
        refuse_unprotectable(model)
        self._sides: dict[str, Side] = {}
        self._frozen: list[nn.Parameter] = []
        self._before: dict[str, Tensor] = {}
        self._rebuilt: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._patched: list[nn.Module] = []

    def beside_weights(self, used: Iterable[nn.Module]) -> list[str]:
        """Name the parameters of these layers that are not weight matrices.

        Biases, scales and shifts cannot be protected direction by direction; they are kept whole.
        """
        members = set(used)
        return [
            f"{prefix}.{label}" if prefix else label
            for prefix, module in self._model.named_modules()
            if module in members
            for label, parameter in module.named_parameters(recurse=False)
            if not any(parameter is site.weight for site in self.sites.values())
        ]

    def protect(self, subspaces: Mapping[str, Subspace], frozen: Iterable[str] = ()) -> None:
        """Keep all further steps out of these subspaces, and these parameters as they are."""
        self.release()
        self._rebuilt.clear()
        self._frozen = [self._model.get_parameter(name) for name in frozen]
        self._sides = {
            name: Side(subspace, self.sites[name].weight)
            for name, subspace in subspaces.items()
            if subspace.rank
        }

    def engage(self) -> None:
        """Take the gradients of Linear layers through projected rows where that is cheaper."""
        self.release()
        for name, side in self._sides.items():
            layer = self.sites[name].layer
            if isinstance(layer, nn.Linear):
                layer.forward = _free_forward(layer, side)  # type: ignore[assignment]
                self._patched.append(layer)

    def release(self) -> None:
        """Leave the model's layers as they were before `engage`."""
        for layer in self._patched:
            del layer.forward
        self._patched = []

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Project the gradients; call between `backward` and the optimiser's step."""
        for parameter in self._frozen:
            parameter.grad = None
        for name, side in self._sides.items():
            site = self.sites[name]
            gradient = site.weight.grad
            if gradient is None:
                continue
            matrix = site.matrix(gradient)
            if not side.by_rows or side.leaks(matrix):
                _write(site, gradient, side.free(matrix))
            side.by_rows = False
        if self._sides and not self._stays_free(optimizer):
            self._before = {name: self.sites[name].weight.detach().clone() for name in self._sides}

    def after_step(self) -> None:
        """Project what the optimiser did where its update can leave the free directions."""
        for name, before in self._before.items():
            site = self.sites[name]
            weight = site.weight.detach()
            start = site.matrix(before)
            _write(site, weight, start + self._sides[name].free(site.matrix(weight) - start))
        self._before = {}

    @contextmanager
    def step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Wrap `backward` and `optimizer.step` of one training step."""
        hooks = [
            optimizer.register_step_pre_hook(lambda opt, _args, _kwargs: self.before_step(opt)),
            optimizer.register_step_post_hook(lambda _opt, _args, _kwargs: self.after_step()),
        ]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def _stays_free(self, optimizer: torch.optim.Optimizer) -> bool:
        """Tell whether free gradients give free updates: SGD without decay or older momentum."""
        if type(optimizer) is not torch.optim.SGD:
            return False
        if any(group["weight_decay"] for group in optimizer.param_groups):
            return False
        if optimizer not in self._rebuilt:
            weights = {site.weight for site in self.sites.values()}
            if any(optimizer.state[w].get("momentum_buffer") is not None for w in weights):
                return False
            self._rebuilt.add(optimizer)
        return True


def refuse_unprotectable(model: nn.Module) -> None:
    """Refuse, by name, every trainable layer whose old answers could not be kept."""
    for name, module in model.named_modules():
        if isinstance(module, NORMALISATIONS) and getattr(module, "track_running_stats", False):
            raise UserError(
                f"layer '{name}' ({type(module).__name__}) keeps running statistics that every new "
                "task would move: use classgrad.networks.TaskBatchNorm, which has its own for each "
                "task, or track_running_stats=False"
            )
        if isinstance(module, (nn.Linear, *CONVOLUTIONS, *NORMALISATIONS, TaskBatchNorm)):
            continue
        for label, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad:
                where = f"{name}.{label}" if name else label
                raise UserError(
                    f"parameter '{where}' of a {type(module).__name__} cannot be protected: freeze "
                    "it with requires_grad_(False), or build that part from Linear and Conv layers"
                )


def _free_forward(layer: nn.Linear, side: Side) -> Callable[[Tensor], Tensor]:
    """Return a forward for `layer` that picks the cheaper place to remove the subspace."""

    def forward(input: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return functional.linear(input, layer.weight, layer.bias)
        if input.numel() // input.shape[-1] > layer.out_features:
            return functional.linear(input, layer.weight, layer.bias)
        side.by_rows = True
        result: Tensor = FreeRows.apply(input, layer.weight, layer.bias, side)
        return result

    return forward


def _write(site: Site, tensor: Tensor, matrix: Tensor) -> None:
    """Put a site's matrix back into a weight-shaped tensor, whatever its memory format."""
    part = tensor[site.start : site.stop]
    part.copy_(matrix.reshape(part.shape))
