"""Projection of gradients and updates, for any model, training loop and optimiser.

A layer y = W x with protected basis S (d x r) keeps its outputs for old inputs as long as every
update of W has no part in S: ΔW S = 0 (GPM, ICLR 2021; CGP, MM 2022, Eq. project1 and project2).

Three choices keep that exact and cheap:

- ∇W = Δᵀ X for a Linear layer with input rows X, so S can be removed from the gradient, at
  4 o d r operations, or from the rows before the product with Δ, at 4 B d r. For a 2048 x 2048
  layer and a batch of 64 the second is 32 times cheaper. A convolution has more rows than outputs.
- g - (g S) Sᵀ equals (g N) Nᵀ with N the orthogonal complement; the narrower of both is used, so
  the cost falls again once more than half of the directions are protected.
- Plain SGD moves W along projected gradients only. Weight decay, Adam and momentum from before the
  basis grew do not; for those the update itself, W after - W before, is projected too.

Directions can have an importance below 1 (SGP, AAAI 2023): steps along them are then scaled by
1 - importance instead of removed. Unlike removing, scaling must not be done twice, so it is applied
either to the gradient or, for the optimisers of the last point, to the update. In the backward pass
of a step it is known which part of a gradient was formed from scaled rows: only the rest is scaled.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle

from classgrad.core import linalg
from classgrad.core.attention import refuse_positions_first
from classgrad.core.layers import (
    EquivalentForward,
    OwnForward,
    Site,
    dotted,
    install_forward,
    is_norm,
    layer_kind,
    remove_forward,
    sites,
)
from classgrad.core.subspace import Subspace
from classgrad.errors import UserError


def refuse_unprotectable(model: nn.Module, freezes_rest: bool = False) -> None:
    """Refuse, by name, every trainable layer whose outputs for old inputs could not be kept.

    With `freezes_rest` the caller freezes running statistics, and the parameters that are no weight
    matrix of a known layer. Only layers that look as if they multiplied by a matrix are refused
    then: frozen, they would silently learn nothing. A vector, or a table that is called a bias, as
    those of relative positions are, does not look so.
    """
    for name, module in model.named_modules():
        if not freezes_rest and has_running_statistics(module):
            raise UserError(
                f"layer '{name}' ({type(module).__name__}) has running statistics, which every new "
                "task would change: use classgrad.networks.TaskBatchNorm, which stores them for "
                "each task, or track_running_stats=False"
            )
        refuse_positions_first(name, module)
        if layer_kind(module) is not None or is_norm(module):
            continue
        if freezes_rest and (isinstance(module, EMBEDDINGS) or [*module.children()]):
            continue
        for label, parameter in module.named_parameters(recurse=False):
            vector = max(parameter.shape, default=1) == parameter.numel()
            added = vector or "bias" in label
            if parameter.requires_grad and not (freezes_rest and added):
                kind = type(module).__name__
                raise UserError(
                    f"parameter '{dotted(name, label)}' of a {kind} cannot be protected: freeze it "
                    "with requires_grad_(False), build that part from Linear and Conv layers, or "
                    "say which rows it multiplies: classgrad.register_layer("
                    f"{kind}, classgrad.core.LayerKind())"
                )


EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def is_depthwise(layer: nn.Module) -> bool:
    """Tell whether a layer is a convolution in which every channel is a group of its own."""
    groups, channels = getattr(layer, "groups", 1), getattr(layer, "in_channels", 0)
    return bool(groups == channels > 1)


def has_running_statistics(module: nn.Module) -> bool:
    """Tell whether a layer is a norm that updates its statistics in training."""
    return is_norm(module) and bool(getattr(module, "track_running_stats", False))


def bypassed(
    model: nn.Module, run: Callable[[], Tensor], called: Collection[nn.Module]
) -> list[str]:
    """Name the parameters that affect the output although their layer was not called.

    So does the weight matrix of a layer that was called, if it is also used in another way.
    """
    unseen = {
        dotted(prefix, name): parameter
        for prefix, module in model.named_modules()
        if module not in called
        for name, parameter in module.named_parameters(recurse=False)
        if parameter.requires_grad
    }
    with ExitStack() as stack:
        for prefix, module in model.named_modules():
            kind = layer_kind(module)
            # A recurrent layer reads its weights from a list of its own.
            if kind is None or module not in called or isinstance(module, nn.RNNBase):
                continue
            labels = {matrix.parameter for matrix in kind.matrices(module)}
            matrices = {label: module.get_parameter(label) for label in labels}
            matrices = {label: w for label, w in matrices.items() if w.requires_grad}
            unseen |= {dotted(prefix, label): w for label, w in matrices.items()}
            stack.enter_context(_without_gradient_in_calls(module, matrices))
        if not unseen:
            return []
        with torch.enable_grad():
            total = run().sum()
    if not total.requires_grad:
        return []
    gradients = torch.autograd.grad(total, list(unseen.values()), allow_unused=True)
    return [name for name, g in zip(unseen, gradients, strict=True) if g is not None]


@contextmanager
def _without_gradient_in_calls(layer: nn.Module, matrices: Mapping[str, Tensor]) -> Iterator[None]:
    """Let calls of a layer use copies of its weight matrices, which get no gradient."""
    owners = {path: layer.get_submodule(path.rpartition(".")[0]) for path in matrices}

    def use(copies: bool) -> None:
        for path, owner in owners.items():
            weight = matrices[path]
            used = nn.Parameter(weight.detach(), requires_grad=False) if copies else weight
            owner._parameters[path.rpartition(".")[2]] = used  # type: ignore[assignment]

    hooks = [
        layer.register_forward_pre_hook(lambda _layer, _args: use(True)),
        layer.register_forward_hook(lambda _layer, _args, _output: use(False), always_call=True),
    ]
    try:
        yield
    finally:
        use(False)
        for hook in hooks:
            hook.remove()


# A gradient is projected again if its part along a protected probe direction exceeds this many
# times the machine epsilon. Removing S from rows leaves about ten.
MAX_LEAK_EPS = 100

# A gradient that PyTorch has not changed since it was formed from projected rows has no such part,
# unless it was edited through `.data`. This many of its rows are looked at, others in every step:
# reading all of a 2048 x 2048 gradient takes a tenth of a step with 64 samples.
PROBED_ROWS = 32


class Projection:
    """Removes a subspace from matrices, by its basis or its complement, whichever is narrower."""

    soft = False  # whether directions are scaled instead of removed
    rows_only = False  # whether a Linear layer's gradient must be formed from projected rows
    _formed: tuple[int, int] | None = None  # address and version of a gradient, when it was formed
    looks = 0  # at rows of a gradient so far; it says which are next

    def __init__(self, subspace: Subspace, like: Tensor) -> None:
        self.inside = subspace.rank <= subspace.dimension // 2
        whole = subspace.basis
        self.basis = (whole if self.inside else linalg.complement(whole)).to(like)
        # Two random directions, one in the subspace and one in the whole space, of lengths √rank
        # and √dimension: ||g probe|| is then about ||g S|| and ||g||, and g is read only once.
        rng = torch.Generator().manual_seed(subspace.rank)
        weights = torch.randn(subspace.rank, generator=rng, dtype=torch.float64)
        anywhere = torch.randn(subspace.dimension, generator=rng, dtype=torch.float64)
        self.probes = torch.stack([whole @ weights, anywhere]).to(like)
        self.by_rows = False  # whether the gradient was formed from projected rows

    def project(self, matrix: Tensor) -> Tensor:
        """Return the part of a matrix (o x d) outside the subspace."""
        basis = self.basis.to(matrix.dtype)
        return linalg.remove(matrix, basis) if self.inside else linalg.keep(matrix, basis)

    def kept(self, matrix: Tensor) -> Tensor:
        """Return what of a matrix W (o x d) has to stay: W S, or its part inside, W - (W N) Nᵀ."""
        basis = self.basis.to(matrix.dtype)
        return matrix @ basis if self.inside else linalg.remove(matrix, basis)

    def restored(self, matrix: Tensor, kept: Tensor) -> Tensor:
        """Return a matrix with what has to stay as `kept` has it, and the rest as it is."""
        basis = self.basis.to(matrix.dtype)
        if self.inside:
            return torch.addmm(matrix, matrix @ basis - kept, basis.T, alpha=-1)
        return torch.addmm(kept, matrix @ basis, basis.T)

    def leaks(self, gradient: Tensor, matrix: Tensor) -> bool:
        """Tell whether the matrix of a gradient has a part inside the subspace.

        Of one that is as it was formed from projected rows, some rows are looked at.
        """
        if self._formed == (gradient.data_ptr(), gradient._version):
            first = PROBED_ROWS * (self.looks % -(-len(matrix) // PROBED_ROWS))
            self.looks += 1
            matrix = matrix[first : first + PROBED_ROWS]
        along = functional.linear(matrix, self.probes.to(matrix.dtype))
        inside, total = torch.linalg.vector_norm(along, dim=0)
        return bool(inside > MAX_LEAK_EPS * torch.finfo(matrix.dtype).eps * total)

    def projects_rows(self, weight: Tensor) -> bool:
        """Tell whether the current backward pass forms a gradient from projected rows."""
        return True

    def note_from_rows(self, gradient: Tensor) -> None:
        """Note a part of a weight's gradient that was formed from projected rows."""
        tracing = torch.compiler.is_compiling()  # such a tensor has no address
        self._formed = None if tracing else (gradient.data_ptr(), gradient._version)


class SoftProjection(Projection):
    """A projection that must be applied once, as applying it twice is not the same.

    Within a step, every backward pass applies it: to rows, and by a hook of the weight, which gets
    the sum of all parts of the gradient, to what was not formed from projected rows. Outside of a
    step, and where the gradient has an earlier part, it is applied to the whole gradient later.
    """

    soft = True

    def __init__(self) -> None:
        self.by_rows = False  # whether the backward passes of this step have applied it
        self._in_step = False
        self._from_rows: Tensor | None = None  # part of this backward pass

    def begin_step(self) -> None:
        """Apply it in the backward passes that follow."""
        self._in_step, self.by_rows, self._from_rows = True, False, None

    def end_step(self) -> None:
        """Apply it in no backward pass any more."""
        self._in_step, self.by_rows, self._from_rows = False, False, None

    def projects_rows(self, weight: Tensor) -> bool:
        """Tell whether the current backward pass applies it."""
        if weight.grad is not None and not self.by_rows and self._from_rows is None:
            self._in_step = False  # the gradient has a part from before the step
        return self._in_step

    def note_from_rows(self, gradient: Tensor) -> None:
        """Note a part of the weight's gradient that was formed from projected rows."""
        before = self._from_rows
        self._from_rows = gradient if before is None else before + gradient

    def complete(self, weight: Tensor, gradient: Tensor) -> Tensor | None:
        """Return the gradient of a backward pass with the rest of it projected, too.

        None means that it is complete as it is.
        """
        if not self.projects_rows(weight):
            return None
        done, self._from_rows = self._from_rows, None
        self.by_rows = True
        with autocast_off(gradient):
            if done is None:
                return self.project(gradient)
            if done.data_ptr() == gradient.data_ptr():
                return None
            rest = gradient - done
            rounding = MAX_LEAK_EPS * torch.finfo(gradient.dtype).eps
            if float(rest.norm()) <= rounding * float(done.norm()):
                return None  # several parts, added in another order
            return done + self.project(rest)


class ScaledProjection(SoftProjection):
    """Scales matrices along each direction by 1 - λ, with λ its importance (SGP, AAAI 2023).

    g - g M Λ Mᵀ is computed with the thin M, or as one d x d matrix once M is wider than half of d,
    so that the cost stops growing there.
    """

    def __init__(self, subspace: Subspace, like: Tensor, importance: Tensor) -> None:
        super().__init__()
        basis = subspace.basis
        scaled = basis * importance
        self.inside = subspace.rank <= subspace.dimension // 2
        self.basis = (basis if self.inside else scaled @ basis.T).to(like)
        if self.inside:
            self.scaled = scaled.to(like)

    def project(self, matrix: Tensor) -> Tensor:
        """Return g - g M Λ Mᵀ of a matrix (o x d)."""
        basis = self.basis.to(matrix.dtype)
        if not self.inside:
            return torch.addmm(matrix, matrix, basis, alpha=-1)
        return torch.addmm(matrix, matrix @ self.scaled.to(matrix.dtype), basis.T, alpha=-1)


class SequentialProjection(SoftProjection):
    """Multiplies matrices by I - B Bᵀ for one basis B after another, as the code of CGP does.

    The bases are not orthogonal to each other, so doing it twice is not the same as doing it once,
    and the cost grows with their number until all are one d x d matrix.
    """

    def __init__(self, bases: Sequence[Tensor], like: Tensor) -> None:
        super().__init__()
        self.inside = sum(basis.shape[1] for basis in bases) <= len(bases[0]) // 2
        if self.inside:
            self.bases = [basis.to(like) for basis in bases]
        else:
            product = torch.eye(len(bases[0]), dtype=bases[0].dtype)
            for basis in bases:
                product = linalg.remove(product, basis)
            self.product = product.to(like)

    def project(self, matrix: Tensor) -> Tensor:
        """Return g (I - B_1 B_1ᵀ) (I - B_2 B_2ᵀ) ... of a matrix (o x d)."""
        if not self.inside:
            return matrix @ self.product.to(matrix.dtype)
        for basis in self.bases:
            matrix = linalg.remove(matrix, basis.to(matrix.dtype))
        return matrix


class Projector:
    """Keeps the updates of one model's weights outside protected subspaces.

    `most_rows` maps the number of rows in a call of a Linear layer to the number that decides where
    its gradient is projected: processes that each have a shard of a batch have to agree on it. For
    `freezes_rest` see `refuse_unprotectable`.
    """

    def __init__(
        self,
        model: nn.Module,
        most_rows: Callable[[int], int] = int,
        *,
        freezes_rest: bool = False,
    ) -> None:
        self._model, self._most_rows, self._freezes_rest = model, most_rows, freezes_rest
        self.sites = self._find_sites()
        parameters = list(model.parameters())
        frozen = parameters and not any(p.requires_grad for p in parameters)
        if not self.sites and not frozen:
            raise UserError(
                "the model has no trainable Linear or convolution layer: gradient projection has "
                "no weight matrix to protect"
            )
        refuse_unprotectable(model, freezes_rest)
        self._refuse_shared()
        self._projections: dict[str, Projection] = {}
        self._frozen: list[nn.Parameter] = []
        self._before: dict[Tensor, Tensor] = {}  # by weight
        self._frozen_before: list[Tensor] = []
        self._stepped: set[Tensor] | None = None  # parameters of the current optimiser; None: all
        self._trusted_optimizers = TrustedOptimizers()
        self._patched: list[nn.Module] = []  # layers whose forward is replaced
        self._hooks: list[RemovableHandle] = []  # of weights with soft projections
        self._in_step = False
        # Takes a weight whose update it will project later, instead of `after_step`.
        self.defer: Callable[[Tensor], None] | None = None

    def _find_sites(self) -> dict[str, Site]:
        """List the weight matrices to protect.

        A depthwise convolution has a matrix of one row for each channel, often thousands, with few
        directions, which the first task fills. Where the rest is frozen, they are part of it.
        """
        every = sites(self._model)
        if not self._freezes_rest:
            return every
        return {name: site for name, site in every.items() if not is_depthwise(site.layer)}

    @property
    def weights(self) -> set[Tensor]:
        """The parameters that have a weight matrix to protect."""
        return {site.weight for site in self.sites.values()}

    @property
    def projections(self) -> dict[str, Projection]:
        """Projections by site, where anything is protected."""
        return self._projections

    def _refuse_shared(self) -> None:
        """Refuse a weight matrix that another kind of layer uses in another way."""
        weights = self.weights
        for name, module in self._model.named_modules():
            if layer_kind(module) is not None:
                continue
            for label, parameter in module.named_parameters(recurse=False):
                if parameter in weights and not self._is_inner(module):
                    raise UserError(
                        f"parameter '{name}.{label}' is also the weight of a Linear or convolution "
                        "layer: freeze it with requires_grad_(False), or make two parameters of it"
                    )

    def _is_inner(self, module: nn.Module) -> bool:
        """Tell whether a module is a part of a layer that uses its parameters."""
        return any(module in site.kind.inner_modules(site.layer) for site in self.sites.values())

    def non_matrix_parameters(self, used: Iterable[nn.Module]) -> list[str]:
        """Name the parameters of these layers that are not weight matrices.

        Biases, scales and shifts cannot be protected direction by direction; they are frozen.
        """
        layers, weights = set(used), self.weights
        return [
            dotted(prefix, label)
            for prefix, module in self._model.named_modules()
            if module in layers
            for label, parameter in module.named_parameters(recurse=False)
            if parameter not in weights
        ]

    def refuse_changed_layers(self) -> None:
        """Refuse a model whose trainable layers are no longer those it had at the start."""
        found = self._find_sites()
        for name in sorted({**self.sites, **found}):
            ours, now = self.sites.get(name), found.get(name)
            if (
                ours is None
                or now is None
                or (now.layer, now.stop, now.dimension)
                != (
                    ours.layer,
                    ours.stop,
                    ours.dimension,
                )
            ):
                raise UserError(
                    f"layer '{name}' was added, removed, replaced, frozen or unfrozen after the "
                    "guard was attached: attach when the model is complete"
                )

    def protect(self, subspaces: Mapping[str, Subspace], frozen: Iterable[str] = ()) -> None:
        """Keep all further steps out of these subspaces, and freeze these parameters."""
        self.set_projections(
            {
                name: Projection(subspace, self.sites[name].weight)
                for name, subspace in subspaces.items()
                if subspace.rank
            },
            frozen,
        )

    def set_projections(
        self, projections: Mapping[str, Projection], frozen: Iterable[str] = ()
    ) -> None:
        """Apply these projections to all further steps, and freeze these parameters."""
        if projections:
            self.refuse_changed_layers()
        self.remove()
        self._trusted_optimizers.forget()
        parameters = dict(self._model.named_parameters(remove_duplicate=False))
        self._frozen = [parameters[name] for name in frozen]
        self._projections = dict(projections)

    def install(self) -> None:
        """Form the gradients of Linear layers from projected rows where that is cheaper."""
        self.remove()
        for name, projection in self._projections.items():
            site = self.sites[name]
            if not site.kind.linear:
                continue
            if isinstance(vars(site.layer).get("forward"), ProjectedForward):
                raise UserError(f"layer '{name}' has a guard already: detach that one first")
            install_forward(site.layer, ProjectedForward(site, projection, self._most_rows))
            self._patched.append(site.layer)
            if isinstance(projection, SoftProjection):
                hook = partial(projection.complete, site.weight)
                self._hooks.append(site.weight.register_hook(hook))

    @contextmanager
    def put_back_on_error(self) -> Iterator[None]:
        """If the block raises, project as before it, and trust the optimisers that were trusted."""
        before, trusted = (self._projections, self._frozen), self._trusted_optimizers.copy()
        try:
            yield
        except BaseException:
            self.remove()
            (self._projections, self._frozen), self._trusted_optimizers = before, trusted
            self.install()
            raise

    def remove(self) -> None:
        """Restore the model's layers as they were before `install`."""
        for layer in self._patched:
            remove_forward(layer)
        for hook in self._hooks:
            hook.remove()
        self._patched, self._hooks = [], []

    def begin_step(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        fresh: bool = False,
        number: int | None = None,
    ) -> None:
        """Prepare for the backward passes of a step; soft projections are then cheaper.

        Without this call `before_step` does all that is needed. For `fresh` see there. `number` is
        that of the step in its task: a task that is resumed looks at the same rows of gradients as
        it would have without the interruption.
        """
        self.remember(optimizer, fresh)
        self._in_step = True
        if number is not None:
            for one in self._projections.values():
                one.looks = number
        for projection in self._soft_projections() if not self._before else ():
            projection.begin_step()

    def _current(self) -> list[tuple[Site, Projection]]:
        """List the projections of weights that the current optimiser steps."""
        pairs = [(self.sites[name], one) for name, one in self._projections.items()]
        stepped = self._stepped
        return [pair for pair in pairs if stepped is None or pair[0].weight in stepped]

    def _soft_projections(self) -> list[SoftProjection]:
        return [one for _, one in self._current() if isinstance(one, SoftProjection)]

    def _end_step(self) -> None:
        self._in_step = False
        for projection in self._soft_projections():
            projection.end_step()

    def before_step(self, optimizer: torch.optim.Optimizer, *, fresh: bool = False) -> None:
        """Project the gradients; call between `backward` and the optimiser's step.

        A `fresh` optimiser was made for the current task, so all its momentum is from this task,
        even where it was loaded.
        """
        if not self._in_step:
            self.remember(optimizer, fresh)
        self.project_gradients()

    def project_gradients(self) -> None:
        """Remove the protected part of every gradient, and the gradients of frozen parameters."""
        for parameter in self._frozen:
            parameter.grad = None
        for site, projection in self._current():
            gradient = site.weight.grad
            if gradient is None or (projection.soft and self._before):
                continue  # after_step will scale the update, once
            with autocast_off(gradient):
                matrix = site.matrix(gradient)
                by_rows = projection.by_rows and (
                    projection.soft or not projection.leaks(gradient, matrix)
                )
                if not by_rows:
                    site.write(gradient, projection.project(matrix))
            projection.by_rows = False
        self._end_step()

    def remember(self, optimizer: torch.optim.Optimizer, fresh: bool = False) -> None:
        """Keep the weights for `after_step`, if the optimiser's update has to be projected."""
        self._before = {}
        self._stepped = _parameters_of(optimizer)
        # Its history moves parameters without a gradient, too.
        by_history = isinstance(optimizer, torch.optim.LBFGS)
        self._frozen_before = [p.detach().clone() for p in self._frozen] if by_history else []
        if self._projections and not self._trusted_optimizers.includes(
            optimizer, self.weights, fresh
        ):
            self.keep_weights()

    def keep_weights(self) -> None:
        """Keep the weights, so that `after_step` projects the update; or let that be deferred."""
        weights = {site.weight for site, _ in self._current()}
        if self.defer is not None:
            for weight in weights:
                self.defer(weight)
            return
        self._before = {weight: weight.detach().clone() for weight in weights}

    def after_step(self) -> None:
        """Project the optimiser's update, if it can have a part in the protected subspaces."""
        for site, projection in self._current() if self._before else ():
            weight = site.weight.detach()
            with autocast_off(weight):
                before = site.matrix(self._before[site.weight])
                site.write(weight, before + projection.project(site.matrix(weight) - before))
        self._before = {}
        for parameter, before in zip(self._frozen, self._frozen_before, strict=False):
            parameter.data.copy_(before)
        self._frozen_before = []

    @contextmanager
    def step(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Wrap `backward` and `optimizer.step` of one training step."""
        hooks = [
            optimizer.register_step_pre_hook(self.enter_step),
            optimizer.register_step_post_hook(lambda _opt, _args, _kwargs: self.after_step()),
        ]
        try:
            with self.backward_of(optimizer):
                yield
        finally:
            for hook in hooks:
                hook.remove()

    @contextmanager
    def backward_of(self, optimizer: torch.optim.Optimizer) -> Iterator[None]:
        """Wrap a step whose optimiser calls `enter_step` and `after_step`."""
        self.begin_step(optimizer)
        try:
            yield
        finally:
            self._before = {}
            self._end_step()

    def enter_step(
        self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Project the gradients before the update; with a closure, after each call of it.

        A hook before the optimiser's step.
        """
        # The hook gets the optimiser itself as first argument where `step` was wrapped.
        closures = [value for value in (*args, *kwargs.values()) if callable(value)]
        if not closures:
            self.before_step(optimizer)
            return None
        if not self._in_step:
            self.remember(optimizer)

        def closure() -> Any:
            loss = closures[0]()
            self.project_gradients()
            return loss

        self_argument = args[:1] if args and args[0] is optimizer else ()
        return (*self_argument, closure), {}


class ProjectedForward(EquivalentForward):
    """A forward of a linear layer that removes the subspace from rows where that is cheaper."""

    def __init__(self, site: Site, projection: Projection, most_rows: Callable[[int], int]) -> None:
        self.layer: Any = site.layer  # with weight, bias and out_features, as nn.Linear has
        self.kind = site.kind
        self.projection, self.most_rows = projection, most_rows

    def __reduce__(self) -> tuple[type[OwnForward], tuple[nn.Module]]:
        """Return how to make what a copy of the layer has: nothing of the guard."""
        return OwnForward, (self.layer,)

    def __call__(self, input: Tensor) -> Tensor:
        """Return the output of the layer; form its gradient from projected rows if they are few."""
        layer = self.layer
        input = self.kind.linear_input(layer, input)
        # A nested tensor has no rows. With torch.func, gradients are projected later.
        if not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            return functional.linear(input, layer.weight, layer.bias)
        rows = input.reshape(-1, input.shape[-1])
        many_rows = self.most_rows(len(rows)) > layer.out_features
        if many_rows and not self.projection.rows_only:
            return functional.linear(input, layer.weight, layer.bias)
        if not self.projection.soft:
            self.projection.by_rows = True
        result: Tensor = ProjectedRows.apply(rows, layer.weight, layer.bias, self.projection)
        return result.reshape(*input.shape[:-1], layer.out_features)


class ProjectedRows(torch.autograd.Function):
    """A linear map whose weight gradient is formed from projected rows."""

    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, projection: Projection
    ) -> Tensor:
        """Return x Wᵀ + b for each row x."""
        ctx.save_for_backward(rows, weight)
        ctx.projection = projection
        return functional.linear(rows, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of x, W (projected) and b."""
        rows, weight = ctx.saved_tensors
        grad_input = grad_weight = grad_bias = None
        # In the precision of the weights: under autocast rows and gradients are rounded to few
        # bits, and rounding projected rows again would give them a part in the subspace.
        with autocast_off(grad):
            if ctx.needs_input_grad[0]:
                grad_input = (grad @ weight.to(grad.dtype)).to(rows.dtype)
            if ctx.needs_input_grad[1]:
                rows = rows.to(weight.dtype)
                projects = ctx.projection.projects_rows(weight)
                rows = ctx.projection.project(rows) if projects else rows
                grad_weight = grad.T.to(weight.dtype) @ rows
                if projects:
                    ctx.projection.note_from_rows(grad_weight)
            if ctx.needs_input_grad[2]:
                grad_bias = grad.sum(0).to(weight.dtype)
        return grad_input, grad_weight, grad_bias, None


def autocast_off(like: Tensor) -> torch.autocast:
    """Switch autocast off for the device of a tensor."""
    return torch.autocast(like.device.type, enabled=False)


def updates_follow_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimiser's updates are sums of gradients: SGD without weight decay.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> updates_follow_gradients(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    True
    >>> updates_follow_gradients(torch.optim.Adam([weight]))
    False
    """
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    kind = type(optimizer)
    # A subclass may do anything else in its step, unless it says that it does not.
    return (kind is torch.optim.SGD or vars(kind).get("is_plain_sgd") is True) and not decays


class TrustedOptimizers:
    """The optimisers whose updates stay outside the subspaces if their gradients are projected.

    These are plain SGD, and SGD whose momentum has seen projected gradients only. With weight
    decay, Adam or older momentum the update itself, W after - W before, has to be projected too.
    """

    def __init__(self) -> None:
        # Each with the state dict it had then: loading a state replaces that object. At most one
        # optimiser for a parameter, the newest.
        self._states: dict[torch.optim.Optimizer, Mapping[Tensor, Any]] = {}

    def includes(
        self, optimizer: torch.optim.Optimizer, weights: Iterable[Tensor], fresh: bool = False
    ) -> bool:
        """Tell whether an optimiser is trusted: SGD without weight decay or older momentum.

        A `fresh` optimiser was made for the current task: all its momentum, also what was loaded,
        is from this task.
        """
        if not updates_follow_gradients(optimizer):
            return False
        if fresh or self._states.get(optimizer) is optimizer.state:
            return True
        states = [optimizer.state.get(weight, {}) for weight in weights]
        if any(state.get("momentum_buffer") is not None for state in states):
            return False
        parameters = _parameters_of(optimizer)
        self._states = {
            other: state
            for other, state in self._states.items()
            if parameters.isdisjoint(_parameters_of(other))
        }
        self._states[optimizer] = optimizer.state
        return True

    def copy(self) -> "TrustedOptimizers":
        """Return a copy, which forgets on its own."""
        other = TrustedOptimizers()
        other._states = dict(self._states)
        return other

    def forget(self) -> None:
        """Trust no optimiser's momentum any more, because the subspaces have changed."""
        self._states = {}


def _parameters_of(optimizer: torch.optim.Optimizer) -> set[Tensor]:
    return {parameter for group in optimizer.param_groups for parameter in group["params"]}
