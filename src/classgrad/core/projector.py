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

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core import linalg
from classgrad.core.layers import SameForward, Site, install_forward, remove_forward, sites
from classgrad.core.refusals import refuse_unprotectable
from classgrad.core.subspace import Subspace
from classgrad.errors import UserError

# A gradient with more than this many roundings along a protected probe direction is projected
# again. Removing S from rows leaves about ten.
ROUNDINGS = 100


class Side:
    """Removes one subspace from matrices, by its basis or its complement, whichever is narrower."""

    soft = False  # whether directions are scaled instead of removed
    rows_only = False  # whether a Linear layer's gradient must come through projected rows

    def __init__(self, subspace: Subspace, like: Tensor) -> None:
        self.inside = subspace.rank <= subspace.dimension // 2
        basis = subspace.basis if self.inside else linalg.complement(subspace.basis)
        self.basis = basis.to(like)
        # Two random directions, in the subspace and anywhere, as long as the roots of rank and
        # dimension: ||g probe|| is then about ||g S|| and ||g||, for one reading of g.
        rng = torch.Generator().manual_seed(subspace.rank)
        weights = torch.randn(subspace.rank, generator=rng, dtype=torch.float64)
        anywhere = torch.randn(subspace.dimension, generator=rng, dtype=torch.float64)
        self.probes = torch.stack([subspace.basis @ weights, anywhere]).to(like)
        self.by_rows = False  # whether all of the gradient came through projected rows

    def free(self, matrix: Tensor) -> Tensor:
        """Return the part of a matrix (o x d) outside the subspace."""
        basis = self.basis.to(matrix.dtype)
        return linalg.remove(matrix, basis) if self.inside else linalg.keep(matrix, basis)

    def leaks(self, matrix: Tensor) -> bool:
        """Tell whether a matrix has a part inside the subspace."""
        along = functional.linear(matrix, self.probes.to(matrix.dtype))
        inside, all_of_it = torch.linalg.vector_norm(along, dim=0)
        return bool(inside > ROUNDINGS * torch.finfo(matrix.dtype).eps * all_of_it)


class SoftSide(Side):
    """Scales what matrices have along each direction by 1 - λ, its importance (SGP, AAAI 2023).

    g - g M Λ Mᵀ is taken through the thin M, or as one d x d matrix once M is wider than half of d,
    so that the cost stops growing there. It does not go by rows: whether a gradient was scaled
    already does not show, and scaling twice is not scaling once.
    """

    soft = True

    def __init__(self, subspace: Subspace, like: Tensor, importance: Tensor) -> None:
        basis = subspace.basis
        scaled = basis * importance
        self.inside = subspace.rank <= subspace.dimension // 2
        self.basis = (basis if self.inside else scaled @ basis.T).to(like)
        if self.inside:
            self.scaled = scaled.to(like)
        self.by_rows = False

    def free(self, matrix: Tensor) -> Tensor:
        """Return g - g M Λ Mᵀ of a matrix (o x d)."""
        basis = self.basis.to(matrix.dtype)
        if not self.inside:
            return torch.addmm(matrix, matrix, basis, alpha=-1)
        return torch.addmm(matrix, matrix @ self.scaled.to(matrix.dtype), basis.T, alpha=-1)


class Projector:
    """Guards the weights of one model against moving inside the subspaces it is given.

    `most_rows` makes of the number of rows in a call of a Linear layer the number that decides
    where its gradient is projected: processes that each have a part of a batch have to agree.
    """

    def __init__(self, model: nn.Module, most_rows: Callable[[int], int] = int) -> None:
        self._model, self._most_rows = model, most_rows
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

    def non_matrix_parameters(self, used: Iterable[nn.Module]) -> list[str]:
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
        self.remove()
        changed = self.sites.keys() ^ sites(self._model).keys()
        if changed:
            raise UserError(
                f"layer '{min(changed)}' was added, removed, frozen or unfrozen after the guard "
                "was attached: attach when the model is complete"
            )
        self._updates.forget()
        self._frozen = [self._model.get_parameter(name) for name in frozen]
        self._sides = dict(sides)

    def install(self) -> None:
        """Take the gradients of Linear layers through projected rows where that is cheaper."""
        self.remove()
        for name, side in self._sides.items():
            site = self.sites[name]
            if site.kind.linear and not side.soft:
                if "forward" in vars(site.layer):
                    raise UserError(f"layer '{name}' has a guard already: detach that one first")
                install_forward(site.layer, FreeForward(site, side, self._most_rows))
                self._patched.append(site.layer)

    def remove(self) -> None:
        """Leave the model's layers as they were before `install`."""
        for layer in self._patched:
            remove_forward(layer)
        self._patched = []

    def before_step(self, optimizer: torch.optim.Optimizer, *, fresh: bool = False) -> None:
        """Project the gradients; call between `backward` and the optimiser's step.

        A `fresh` optimiser was made for the current task, so all its momentum is of this task, even
        where it was loaded.
        """
        self.remember(optimizer, fresh)
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
            with autocast_off(gradient):
                matrix = site.matrix(gradient)
                if not side.by_rows or side.leaks(matrix):
                    _write(site, gradient, side.free(matrix))
            side.by_rows = False

    def remember(self, optimizer: torch.optim.Optimizer, fresh: bool = False) -> None:
        """Keep the weights for `after_step`, if the optimiser's update has to be projected."""
        self._before = {}
        weights = [site.weight for site in self.sites.values()]
        if self._sides and not self._updates.expected(optimizer, weights, fresh):
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
            with autocast_off(weight):
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
        closures = [value for value in (*args, *kwargs.values()) if callable(value)]
        if not closures:
            self.before_step(optimizer)
            return None
        self.remember(optimizer)

        def closure() -> Any:
            loss = closures[0]()
            self.project_gradients()
            return loss

        first = args[:1] if args and args[0] is optimizer else ()
        return (*first, closure), {}


def _write(site: Site, tensor: Tensor, matrix: Tensor) -> None:
    """Put a site's matrix back into a weight-shaped tensor, whatever its memory format."""
    part = tensor[site.start : site.stop]
    part.copy_(matrix.reshape(part.shape))


class FreeForward(SameForward):
    """The forward of a linear layer that picks the cheaper place to remove the subspace."""

    def __init__(self, site: Site, side: Side, most_rows: Callable[[int], int]) -> None:
        self.layer: Any = site.layer  # with weight, bias and out_features, as nn.Linear has
        self.kind = site.kind
        self.side, self.most_rows = side, most_rows

    def __call__(self, input: Tensor) -> Tensor:
        """Return what the layer would; its gradient goes by rows if there are few of them."""
        layer = self.layer
        input = self.kind.linear_input(layer, input)
        rows = input.reshape(-1, input.shape[-1])
        many = self.most_rows(len(rows)) > layer.out_features and not self.side.rows_only
        if not torch.is_grad_enabled() or many:
            return functional.linear(input, layer.weight, layer.bias)
        self.side.by_rows = True
        result: Tensor = FreeRows.apply(rows, layer.weight, layer.bias, self.side)
        return result.reshape(*input.shape[:-1], layer.out_features)


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
        grad_input = grad_weight = grad_bias = None
        # In the precision of the weights: under autocast rows and gradients are rounded to few
        # bits, and rounding projected rows again would put them back into the subspace.
        with autocast_off(grad):
            if ctx.needs_input_grad[0]:
                grad_input = (grad @ weight.to(grad.dtype)).to(rows.dtype)
            if ctx.needs_input_grad[1]:
                grad_weight = grad.T.to(weight.dtype) @ ctx.side.free(rows.to(weight.dtype))
            if ctx.needs_input_grad[2]:
                grad_bias = grad.sum(0).to(weight.dtype)
        return grad_input, grad_weight, grad_bias, None


def autocast_off(like: Tensor) -> torch.autocast:
    """Switch autocast off for the device of a tensor."""
    return torch.autocast(like.device.type, enabled=False)


def follow_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether updates are sums of gradients: SGD without weight decay.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> follow_gradients(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    True
    >>> follow_gradients(torch.optim.Adam([weight]))
    False
    """
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    return type(optimizer) is torch.optim.SGD and not decays


class FreeUpdates:
    """Tells of an optimiser whether free gradients give free updates.

    With plain SGD a gradient that is free of something gives an update that is free of it, and so
    does momentum gathered from free gradients. Weight decay, Adam and older momentum do not: then
    the update itself, W after - W before, has to be projected too.
    """

    def __init__(self) -> None:
        # Optimisers that have seen nothing but free gradients, each with the state it had then:
        # loading another one replaces it. At most one for a parameter, the newest.
        self._trusted: dict[torch.optim.Optimizer, Mapping[Tensor, Any]] = {}

    def expected(
        self, optimizer: torch.optim.Optimizer, weights: Iterable[Tensor], fresh: bool = False
    ) -> bool:
        """Tell whether free gradients give free updates: SGD without decay or older momentum.

        A `fresh` optimiser was made for the current task: what it has gathered, or was loaded
        into it, is of this task.
        """
        if not follow_gradients(optimizer):
            return False
        if fresh or self._trusted.get(optimizer) is optimizer.state:
            return True
        states = [optimizer.state.get(weight, {}) for weight in weights]
        if any(state.get("momentum_buffer") is not None for state in states):
            return False
        own = _moved_by(optimizer)
        self._trusted = {
            other: state
            for other, state in self._trusted.items()
            if own.isdisjoint(_moved_by(other))
        }
        self._trusted[optimizer] = optimizer.state
        return True

    def forget(self) -> None:
        """Trust no optimiser's momentum any more, because what is protected has changed."""
        self._trusted = {}


def _moved_by(optimizer: torch.optim.Optimizer) -> set[Tensor]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}
