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

Directions can have an importance below 1 (SGP, AAAI 2023): steps along them are then scaled by
1 - importance instead of removed. Scaling twice is not scaling once, so it is done in one place:
the gradient, or the update for the optimisers of the last point.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.layers import Site, sites
from classgrad.core.refusals import refuse_unprotectable
from classgrad.core.sides import Side
from classgrad.core.subspace import Subspace
from classgrad.core.updates import FreeUpdates
from classgrad.distributed import world
from classgrad.errors import UserError
from classgrad.methods.projection.scaled import ScaledLinear


class FreeRows(torch.autograd.Function):
    """A linear map whose weight gradient is taken with the protected part of its rows removed."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, side: Side) -> Tensor:
        """Return x Wᵀ + b for each row x."""
        ctx.save_for_backward(rows, weight)
        ctx.side = side
        return functional.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W (its free part) and b."""
        rows, weight = ctx.saved_tensors
        of_rows = of_weight = of_bias = None
        # In the precision of the weights: under autocast rows and gradients are rounded to few
        # bits, and rounding projected rows again would put them back into the subspace.
        with exact(grad):
            if ctx.needs_input_grad[0]:
                of_rows = (grad @ weight.to(grad.dtype)).to(rows.dtype)
            if ctx.needs_input_grad[1]:
                of_weight = grad.T.to(weight.dtype) @ ctx.side.free(rows.to(weight.dtype))
            if ctx.needs_input_grad[2]:
                of_bias = grad.sum(0).to(weight.dtype)
        return of_rows, of_weight, of_bias, None


def exact(like: Tensor) -> torch.autocast:
    """Switch autocast off for the device of a tensor."""
    return torch.autocast(like.device.type, enabled=False)


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
        self._before: dict[Tensor, Tensor] = {}  # by weight
        self._updates = FreeUpdates()
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
        self.guard(
            {
                name: Side(subspace, self.sites[name].weight)
                for name, subspace in subspaces.items()
                if subspace.rank
            },
            frozen,
        )

    def guard(self, sides: Mapping[str, Side], frozen: Iterable[str] = ()) -> None:
        """Keep all further steps free as these sides say, and these parameters as they are."""
        self.release()
        changed = self.sites.keys() ^ sites(self._model).keys()
        if changed:
            raise UserError(
                f"layer '{min(changed)}' was added, removed, frozen or unfrozen after the guard "
                "was attached: attach when the model is complete"
            )
        self._updates.forget()
        self._frozen = [self._model.get_parameter(name) for name in frozen]
        self._sides = dict(sides)

    def engage(self) -> None:
        """Take the gradients of Linear layers through projected rows where that is cheaper."""
        self.release()
        for name, side in self._sides.items():
            layer = self.sites[name].layer
            if isinstance(layer, nn.Linear) and not side.soft:
                if "forward" in vars(layer):
                    raise UserError(f"layer '{name}' has a guard already: detach that one first")
                layer.forward = FreeForward(layer, side)  # type: ignore[method-assign]
                self._patched.append(layer)

    def release(self) -> None:
        """Leave the model's layers as they were before `engage`."""
        for layer in self._patched:
            del layer.forward
        self._patched = []

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Project the gradients; call between `backward` and the optimiser's step."""
        self.remember(optimizer)
        self.project_gradients()

    def project_gradients(self) -> None:
        """Remove the protected part of every gradient, and all of those of frozen parameters."""
        for parameter in self._frozen:
            parameter.grad = None
        for name, side in self._sides.items():
            site = self.sites[name]
            gradient = site.weight.grad
            if gradient is None or (side.soft and self._before):
                continue  # after_step will scale the update, once
            with exact(gradient):
                matrix = site.matrix(gradient)
                if not side.by_rows or side.leaks(matrix):
                    _write(site, gradient, side.free(matrix))
            side.by_rows = False

    def remember(self, optimizer: torch.optim.Optimizer) -> None:
        """Keep the weights for `after_step`, if the optimiser's update has to be projected."""
        self._before = {}
        weights = [site.weight for site in self.sites.values()]
        if self._sides and not self._updates.expected(optimizer, weights):
            self.keep_weights()

    def keep_weights(self) -> None:
        """Keep the weights, so that `after_step` projects the update."""
        weights = {self.sites[name].weight for name in self._sides}
        self._before = {weight: weight.detach().clone() for weight in weights}

    def after_step(self) -> None:
        """Project what the optimiser did where its update can leave the free directions."""
        for name, side in self._sides.items() if self._before else ():
            site = self.sites[name]
            weight = site.weight.detach()
            with exact(weight):
                start = site.matrix(self._before[site.weight])
                _write(site, weight, start + side.free(site.matrix(weight) - start))
        self._before = {}

    @contextmanager
    def step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Wrap `backward` and `optimizer.step` of one training step."""
        hooks = [
            optimizer.register_step_pre_hook(self._enter_step),
            optimizer.register_step_post_hook(lambda _opt, _args, _kwargs: self.after_step()),
        ]
        try:
            yield
        finally:
            self._before = {}
            for hook in hooks:
                hook.remove()

    def _enter_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Project before the update; gradients that a closure makes, when it has made them."""
        # The hook sees the optimiser itself as first argument where `step` was wrapped.
        given = [value for value in (*args, *kwargs.values()) if callable(value)]
        if not given:
            self.before_step(optimizer)
            return None
        self.remember(optimizer)

        def closure() -> Any:
            loss = given[0]()
            self.project_gradients()
            return loss

        first = args[:1] if args and args[0] is optimizer else ()
        return (*first, closure), {}


class FreeForward:
    """The forward of a Linear layer that picks the cheaper place to remove the subspace."""

    def __init__(self, layer: nn.Linear, side: Side) -> None:
        self.layer, self.side = layer, side

    def __call__(self, input: Tensor) -> Tensor:
        """Return what the layer would; its gradient goes by rows if there are few of them."""
        layer = self.layer
        if isinstance(layer, ScaledLinear):
            input = layer.scaled(input)
        rows = input.reshape(-1, input.shape[-1])
        # By the largest part of a batch that is cut: all processes have to choose the same.
        many = world().most_rows(len(rows)) > layer.out_features and not self.side.rows_only
        if not torch.is_grad_enabled() or many:
            return functional.linear(input, layer.weight, layer.bias)
        self.side.by_rows = True
        result: Tensor = FreeRows.apply(rows, layer.weight, layer.bias, self.side)
        return result.reshape(*input.shape[:-1], layer.out_features)


def _write(site: Site, tensor: Tensor, matrix: Tensor) -> None:
    """Put a site's matrix back into a weight-shaped tensor, whatever its memory format."""
    part = tensor[site.start : site.stop]
    part.copy_(matrix.reshape(part.shape))
