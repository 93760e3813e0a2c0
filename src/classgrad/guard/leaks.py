"""Notices when protected weights were moved by anything but a guarded step.

A guarded step leaves W S as it is, for a weight W (o x d) with protected basis S (d x r). With a
random P = S Ω (d x 8, Ω normal with variance 1/8), ||(W - W₀) P|| estimates how far W has moved
inside the subspace, at the cost of 8 columns instead of r, and misses no move of any row.

Two looks are taken at every step. Every change that PyTorch knows of raises the version of a
tensor, so it costs nothing to see that a weight was changed since the last guarded step; it is then
compared as a whole. Changes that PyTorch does not see, such as those through `.data`, are found by
comparing a tenth of all weights, another one at every sixth step.

Where updates are projected in every N-th step only, the monitor does it, because it knows what has
to stay: with A = W₀ S it sets W <- W - (W S - A) Sᵀ, always to the same A, so that rounding does
not add up. In between, W S moves in guarded steps, too: sixteen rows of W P, others after every
step, are compared with those after the last step. A foreign move of other rows is not told from
guarded steps, and projected away with them.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from classgrad.core.layers import Site
from classgrad.core.projector import Projection, Projector, autocast_off
from classgrad.core.subspace import Subspace
from classgrad.errors import Diverged, UserError

OnLeak = Literal["raise", "warn", "restore"]

PROBES = 8
STEPS = 60  # in which every weight is compared
APART = 6  # steps from one look to the next: few large ones are cheaper than many small ones
SAMPLED_ROWS = 16  # of a weight that may move inside its subspace, in scaled or deferred steps
MOST_COPIED = 2**20  # numbers of a frozen tensor that are compared; of larger ones a part is
# Share of a weight's length. Rounding moves float32 weights by less in a million guarded steps.
NOTICED = 1e-4


class LeakError(UserError):
    """Protected weights were moved by something else than a guarded step."""


class LeakWarning(UserWarning):
    """The same, where the guard only warns."""


Identity = tuple[int, int, torch.dtype, torch.device]


def identity(tensor: Tensor) -> Identity:
    """Return what changes when PyTorch changes a tensor, or where it is."""
    return tensor._version, tensor.data_ptr(), tensor.dtype, tensor.device


class WeightReference:
    """A weight's products with probes of its protected subspaces, as they have to stay.

    The matrices of one weight, such as the groups of a convolution, are compared together. A `soft`
    weight may move in guarded steps: some of its rows are compared, with those after the last step.
    """

    def __init__(
        self,
        sites: list[Site],
        subspaces: Mapping[str, Subspace],
        projections: Mapping[str, Projection],
    ) -> None:
        self.sites = sites
        self.projections = [projections[site.name] for site in sites]
        self.soft = any(projection.soft for projection in self.projections)
        first = sites[0]
        self.label = first.name
        self.sparse = math.ceil(len(first.matrix(first.weight)) / SAMPLED_ROWS)
        self.stride = self.sparse if self.soft else 1
        probes = torch.stack([probes_of(subspaces[site.name].basis).T for site in sites])
        self.probes = probes.to(first.weight).contiguous().mT
        self.kept: list[Tensor] | None = None  # what of each matrix has to stay
        self.shape = self.weight.shape
        self.recent: Tensor | None = None  # sampled rows of W P, while it moves in guarded steps
        self._offset = 0  # of the sampled rows
        self.accept()

    @property
    def weight(self) -> Tensor:
        """The parameter."""
        try:
            return self.sites[0].weight
        except AttributeError:
            raise UserError(
                f"the weight of layer '{self.label}' is not a parameter of it any more, as it was "
                "when the guard was attached: undo it, or detach and attach again"
            ) from None

    @property
    def tensor(self) -> Tensor:
        """The weight's values."""
        return self.weight.detach()

    def matrices(self) -> Tensor:
        """View the weight's matrices as (matrices x rows x d)."""
        first = self.sites[0]
        part = self.tensor[first.start : self.sites[-1].stop]
        matrices = part.reshape(len(self.sites), first.stop - first.start, -1)
        return (matrices.mT if first.kind.transposed else matrices).to(self.probes.dtype)

    def products(self, matrices: Tensor) -> Tensor:
        """Return W P of some matrices."""
        with autocast_off(matrices):
            return (self.probes.mT @ matrices.mT).mT  # half the time of matrices @ probes

    def accept(self) -> None:
        """Take the present weight as what has to stay."""
        rows = self.matrices()[:, :: self.stride]
        self.values = self.products(rows)
        self.scale = float(rows.norm()) / math.sqrt(max(rows[..., 0].numel(), 1))  # of a row
        if self.kept is not None:
            self.keep()
        self.note()

    def note(self, moving: bool = False) -> None:
        """Note that the weight is as a guarded step left it; and if such steps still move it."""
        if self.soft:
            self.values = self.products(self.matrices()[:, :: self.stride])
        self.recent = None
        if moving:
            self._offset = (self._offset + 1) % self.sparse
            self.recent = self.products(self._sampled())
        self.seen = identity(self.weight)

    def _sampled(self) -> Tensor:
        return self.matrices()[:, self._offset :: self.sparse]

    def keep(self) -> None:
        """Keep what has to stay, so that moves can be undone."""
        self.kept = [
            projection.kept(self._precise(site))
            for site, projection in zip(self.sites, self.projections, strict=True)
        ]

    def _precise(self, site: Site) -> Tensor:
        """Return one of the matrices, in float32 at least."""
        matrix = site.matrix(self.tensor)
        return matrix.to(torch.promote_types(matrix.dtype, torch.float32))

    @property
    def changed(self) -> bool:
        """Whether PyTorch has changed the tensor since the last guarded step."""
        return identity(self.weight) != self.seen

    def leak(self, block: int = 0, blocks: int = 1) -> tuple[str, float] | None:
        """Return which matrix has moved, and by which share of its length; None if none has.

        One of several blocks of rows can be compared alone.
        """
        if self.recent is not None:
            leak = self._moved(self._sampled(), self.recent)
            # Weights of an earlier step that were loaded are where they have to be.
            at_rest = leak is None or self._moved(self.matrices(), self.values) is None
            return None if at_rest else leak
        matrices, values = self.matrices()[:, :: self.stride], self.values
        if blocks > 1 and not self.soft:
            rows = matrices.shape[1]
            first, last = (round(rows * end / blocks) for end in (block, block + 1))
            if first == last:
                return None
            matrices, values = matrices[:, first:last], values[:, first:last]
        return self._moved(matrices, values)

    def _moved(self, matrices: Tensor, values: Tensor) -> tuple[str, float] | None:
        """Compare W P of some rows of each matrix."""
        moved = (self.products(matrices) - values).flatten(1).norm(dim=1)
        least = self.scale * math.sqrt(matrices.shape[1]) + torch.finfo(matrices.dtype).tiny
        if bool((moved <= self.noticed * least).all()):
            return None
        lengths = matrices.flatten(1).norm(dim=1).clamp_min(least)
        shares = torch.nan_to_num(moved / lengths, nan=torch.inf)
        worst = int(shares.argmax())
        share = float(shares[worst])
        return (self.sites[worst].name, share) if share > self.noticed else None

    @property
    def noticed(self) -> float:
        """The smallest move that is noticed: low precision rounds every step by more."""
        return max(NOTICED, 8 * torch.finfo(self.probes.dtype).eps)

    def restore(self) -> None:
        """Undo the moves inside the subspaces."""
        assert self.kept is not None
        with torch.inference_mode(False), torch.no_grad(), autocast_off(self.weight):
            # Through `.data`, so that autograd lets a backward pass follow whose forward pass was
            # before: with a model that is evaluated in between, training could not continue.
            values = self.weight.data
            for site, one, kept in zip(self.sites, self.projections, self.kept, strict=True):
                site.write(values, one.restored(self._precise(site), kept))

    def state(self) -> Tensor:
        """Return what a saved guard compares a weight with."""
        return self.values


class FrozenReference:
    """A parameter or buffer that must not change at all."""

    soft = False
    recent = None  # no guarded step moves it

    def __init__(self, name: str, get: Callable[[], Tensor]) -> None:
        self.label, self._get = name, get
        self.shape = self.tensor.shape
        self.kept: Tensor | None = None
        self.accept()

    @property
    def tensor(self) -> Tensor:
        """The parameter or buffer."""
        try:
            return self._get().detach()
        except AttributeError:
            raise UserError(
                f"'{self.label}', which is frozen, was removed from the model after the guard was "
                "attached: attach when the model is complete"
            ) from None

    def _part(self) -> Tensor:
        flat = self.tensor.reshape(-1)
        return flat[:: math.ceil(flat.numel() / MOST_COPIED) or 1]

    def accept(self) -> None:
        """Take the present values as what has to stay."""
        self.values = self._part().clone()
        if self.kept is not None:
            self.keep()
        self.note()

    def note(self) -> None:
        """Note that the tensor is as a guarded step left it."""
        self.seen = identity(self.tensor)

    def keep(self) -> None:
        """Keep a copy."""
        self.kept = self.tensor.clone()

    @property
    def changed(self) -> bool:
        """Whether PyTorch has changed the tensor since the last guarded step."""
        return identity(self.tensor) != self.seen

    def leak(self, block: int = 0, blocks: int = 1) -> tuple[str, float] | None:
        """Return its name and by which share of its length it has moved; None if it has not."""
        if block != 0:
            return None
        part, values = self._part(), self.values
        if not part.is_floating_point():
            return None if torch.equal(part, values) else (self.label, 1.0)
        moved, length = (part.to(values.dtype) - values).norm(), values.norm()
        share = float(torch.nan_to_num(moved / length.clamp_min(1e-12), nan=torch.inf))
        noticed = max(NOTICED, 8 * torch.finfo(values.dtype).eps)
        return (self.label, share) if share > noticed else None

    def restore(self) -> None:
        """Undo the change."""
        assert self.kept is not None
        self.tensor.copy_(self.kept)

    def state(self) -> Tensor:
        """Return what a saved guard compares the tensor with."""
        return self.values


Reference = WeightReference | FrozenReference


class LeakMonitor:
    """Compares the weights of a guarded model with how guarded steps have left them.

    With `project_every` above 1 it also projects updates, each time a weight has taken that many
    steps, and in `project`.
    """

    def __init__(self, on_leak: OnLeak, project_every: int = 1) -> None:
        self.on_leak: OnLeak = on_leak
        self.project_every = project_every
        self._references: dict[str, Reference] = {}
        self._by_weight: dict[Tensor, list[WeightReference]] = {}
        self._moving: dict[Tensor, int] = {}  # steps that were not projected, by weight
        self._stepped: set[Tensor] = set()  # weights of the current step
        self._in_step = False
        self._steps = 0

    def protect(
        self,
        projector: Projector,
        subspaces: Mapping[str, Subspace],
        frozen: Mapping[str, Callable[[], Tensor]],
    ) -> None:
        """Compare with the present weights from now on."""
        self._references, self._by_weight, self._moving = {}, {}, {}
        for sites in by_weight(projector, subspaces):
            reference = WeightReference(sites, subspaces, projector.projections)
            if not reference.soft and (self.on_leak == "restore" or self.project_every > 1):
                reference.keep()
            self._references[f"weight {reference.label}"] = reference
            self._by_weight.setdefault(sites[0].weight, []).append(reference)
        for name, get in frozen.items():
            unchanged = self._references[f"frozen {name}"] = FrozenReference(name, get)
            if self.on_leak == "restore":
                unchanged.keep()

    def __bool__(self) -> bool:
        return bool(self._references)

    def defer(self, weight: Tensor) -> None:
        """Project the update of a weight later."""
        self._moving.setdefault(weight, 0)
        self._stepped.add(weight)

    def after_step(self) -> None:
        """Note that a guarded step has left the weights as they are now."""
        self._steps += 1
        for weight in self._stepped:
            self._moving[weight] = self._moving.get(weight, 0) + 1
        self._stepped, self._in_step = set(), False
        self._restore([w for w, steps in self._moving.items() if steps >= self.project_every])
        for reference in self._references.values():
            if isinstance(reference, WeightReference):
                reference.note(moving=reference.weight in self._moving)
            else:
                reference.note()

    def project(self, *, looks: bool = True) -> None:
        """Project the updates that were deferred; look first at what else may have moved them."""
        weights = list(self._moving)
        if looks and not self._in_step:
            for weight in weights:
                for reference in self._by_weight.get(weight, ()):
                    self._look(reference)
        self._restore(weights)

    def _restore(self, weights: Iterable[Tensor]) -> None:
        for weight in weights:
            for reference in self._by_weight.get(weight, ()):
                reference.restore()
                reference.note()
            del self._moving[weight]

    def before_step(self) -> None:
        """Look at what has changed since the last guarded step, and at a part of the rest."""
        turns = min(len(self._references), STEPS // APART)  # in each, some weights are looked at
        blocks = max(1, STEPS // APART // max(1, turns))
        looks, turn = self._steps % APART == 0, self._steps // APART
        for number, reference in enumerate(self._references.values()):
            if reference.changed or reference.recent is not None or reference.soft:
                self._look(reference)
            elif looks and number % turns == turn % turns:
                self._look(reference, turn // turns % blocks, blocks)
        self._in_step = True

    def look_at_changed(self, weight: Tensor) -> None:
        """Look at one weight if it has changed since the last guarded step."""
        if self._in_step:  # of an optimiser that calls a closure again, as LBFGS
            return
        for reference in self._by_weight.get(weight, ()):
            if reference.changed:
                self._look(reference)

    def look(self) -> None:
        """Look at all weights."""
        self.project()
        for reference in self._references.values():
            self._look(reference)

    def accept(self) -> None:
        """Take the present weights as what has to stay, but not what guarded steps moved."""
        for reference in self._references.values():
            if (
                isinstance(reference, WeightReference)
                and reference.recent is not None
                and not reference.changed
                and reference.leak() is None
            ):
                reference.restore()
            reference.accept()
        self._moving = {}

    def _look(self, reference: Reference, block: int = 0, blocks: int = 1) -> None:
        self._refuse_moved(reference)
        leak = reference.leak(block, blocks)
        if leak is None:
            if blocks == 1:
                reference.seen = identity(reference.tensor)
            return
        name, share = leak
        if isinstance(reference, WeightReference) and not reference.tensor.isfinite().all():
            diverged = f"layer '{name}' has weights that are not finite numbers"
            if self.on_leak != "warn":
                raise Diverged(f"{diverged}: load earlier ones, and lower the learning rate")
        what = (
            f"layer '{name}' was moved along protected directions by {share:.2g} of its length"
            if isinstance(reference, WeightReference)
            else f"'{name}', which is frozen, was changed by {share:.2g} of its length"
        )
        what += " by something else than a guarded step"
        if self.on_leak == "raise" or (self.on_leak == "restore" and reference.soft):
            raise LeakError(
                f"{what}: let the guard watch every optimizer (guard.watch), load the weights it "
                "knows, or call guard.accept_weights() if the change is meant"
            )
        if self.on_leak == "restore" or reference.recent is not None:
            reference.restore()
            what += "; it was moved back"
        reference.accept()
        warnings.warn(what, LeakWarning, stacklevel=2)

    def _refuse_moved(self, reference: Reference) -> None:
        then, now = reference.seen[3], reference.tensor.device
        if then != now:
            raise UserError(
                f"the model was moved from {then} to {now} after the guard was attached: save the "
                "guard before, and attach it again after"
            )
        if reference.tensor.shape != reference.shape:
            before, after = (
                " x ".join(map(str, s)) for s in (reference.shape, reference.tensor.shape)
            )
            raise UserError(
                f"'{reference.label}' was {before} when the guard was attached and is {after} now: "
                "attach when the model is complete"
            )

    def state_dict(self) -> dict[str, Any]:
        """Return what the weights of a loaded model are compared with."""
        return {name: one.state().clone().cpu() for name, one in self._references.items()}

    def refuse_other_weights(self, state: Mapping[str, Any]) -> None:
        """Refuse a model whose weights are not those that a saved guard protects."""
        for name, reference in self._references.items():
            saved = state[name]
            if saved.shape != reference.values.shape:
                raise ValueError(f"'{name}' has another shape")
            reference.values = saved.to(reference.values)
            leak = reference.leak()
            if leak is not None:
                raise UserError(
                    f"the weights of '{leak[0]}' are not those that this guard protects: load the "
                    "weights the model had when the guard was saved"
                )

    def kept_state(self) -> dict[str, Tensor]:
        """Return what deferred projections restore, by site, for the same bits after loading."""
        return {} if self.project_every == 1 else {n: a.cpu().clone() for n, a in self._kept()}

    def load_kept(self, state: Mapping[str, Tensor]) -> None:
        """Load it; what the state does not have is that of the present weights."""
        for name, own in self._kept() if state and self.project_every > 1 else ():
            if state[name].shape != own.shape:
                raise ValueError(f"'{name}' has another shape")
            own.copy_(state[name])

    def _kept(self) -> Iterator[tuple[str, Tensor]]:
        for reference in self._references.values():
            if isinstance(reference, WeightReference):
                for site, kept in zip(reference.sites, reference.kept or (), strict=False):
                    yield site.name, kept


def probes_of(basis: Tensor) -> Tensor:
    """Return random combinations (d x 8) of the columns of a basis (d x r)."""
    rng = torch.Generator().manual_seed(basis.shape[1])
    mixing = torch.randn(basis.shape[1], PROBES, generator=rng, dtype=torch.float64)
    return basis @ mixing / math.sqrt(PROBES)


def by_weight(projector: Projector, subspaces: Mapping[str, Subspace]) -> Iterator[list[Site]]:
    """Yield the protected matrices of each weight, those next to each other together."""
    together: dict[tuple[int, int, int], list[Site]] = {}
    for name, site in projector.sites.items():
        if name in projector.projections and subspaces[name].rank:
            height = site.stop - site.start
            group = together.setdefault((id(site.weight), height, site.dimension), [])
            if group and group[-1].stop != site.start:
                yield group.copy()
                group.clear()
            group.append(site)
    yield from together.values()


def tensors(names: Iterable[str], get: Callable[[str], Tensor]) -> dict[str, Callable[[], Tensor]]:
    """Return functions that look tensors up by name."""
    return {name: lambda name=name: get(name) for name in names}  # type: ignore[misc]
