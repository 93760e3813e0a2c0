"""Notices when protected weights were moved by anything but a guarded step.

A guarded step leaves W S as it is, for a weight W (o x d) with protected basis S (d x r). With a
random P = S Ω (d x 8, Ω normal with variance 1/8), ||(W - W₀) P|| estimates how far W has moved
inside the subspace, at the cost of 8 columns instead of r, and misses no move of any row.

Two looks are taken at every step. Every change that PyTorch knows of raises the version of a
tensor, so it costs nothing to see that a weight was changed since the last guarded step; it is then
compared as a whole. Changes that PyTorch does not see, such as those through `.data`, are found by
comparing a fiftieth of all weights, another one at every step.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from classgrad.core.layers import Site
from classgrad.core.projector import Projector, autocast_off
from classgrad.core.subspace import Subspace
from classgrad.errors import UserError

OnLeak = Literal["raise", "warn", "restore"]

PROBES = 8
STEPS = 50  # in which every weight is compared
SAMPLED_ROWS = 16  # of a weight that may move inside its subspace, in scaled steps
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

    def __init__(self, sites: list[Site], subspaces: Mapping[str, Subspace], *, soft: bool) -> None:
        self.sites, self.soft = sites, soft
        first = sites[0]
        self.label = first.name
        height = len(first.matrix(first.weight))
        self.stride = math.ceil(height / SAMPLED_ROWS) if soft else 1
        self.bases = [subspaces[site.name].basis for site in sites]
        like = first.weight
        self.probes = torch.stack([probes_of(basis) for basis in self.bases]).to(like)
        self.restorable: list[Tensor] | None = None  # W S of each matrix
        self.accept()

    @property
    def tensor(self) -> Tensor:
        """The weight."""
        return self.sites[0].weight.detach()

    def matrices(self) -> Tensor:
        """View the weight's matrices as (matrices x rows x d)."""
        first = self.sites[0]
        part = self.tensor[first.start : self.sites[-1].stop]
        matrices = part.reshape(len(self.sites), first.stop - first.start, -1)
        return (matrices.mT if first.kind.transposed else matrices).to(self.probes.dtype)

    def products(self, matrices: Tensor) -> Tensor:
        """Return W P of some matrices."""
        with autocast_off(matrices):
            return matrices @ self.probes

    def accept(self) -> None:
        """Take the present weight as what has to stay."""
        rows = self.matrices()[:, :: self.stride]
        self.values = self.products(rows)
        self.scale = float(rows.norm()) / math.sqrt(max(rows[..., 0].numel(), 1))  # of a row
        self.note()

    def note(self) -> None:
        """Note that the weight is as a guarded step left it."""
        if self.soft:
            self.values = self.products(self.matrices()[:, :: self.stride])
        self.seen = identity(self.tensor)

    def keep_for_restoring(self) -> None:
        """Keep W S, so that a move can be undone."""
        matrices = self.matrices().double().cpu()
        self.restorable = [m @ basis for m, basis in zip(matrices, self.bases, strict=True)]

    @property
    def changed(self) -> bool:
        """Whether PyTorch has changed the tensor since the last guarded step."""
        return identity(self.tensor) != self.seen

    def leak(self, block: int = 0, blocks: int = 1) -> tuple[str, float] | None:
        """Return which matrix has moved, and by which share of its length; None if none has.

        One of several blocks of rows can be compared alone.
        """
        matrices, values = self.matrices()[:, :: self.stride], self.values
        if blocks > 1 and not self.soft:
            rows = matrices.shape[1]
            first, last = (round(rows * end / blocks) for end in (block, block + 1))
            if first == last:
                return None
            matrices, values = matrices[:, first:last], values[:, first:last]
        moved = (self.products(matrices) - values).flatten(1).norm(dim=1)
        least = self.scale * math.sqrt(matrices.shape[1]) + torch.finfo(matrices.dtype).tiny
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
        assert self.restorable is not None
        for site, basis, kept in zip(self.sites, self.bases, self.restorable, strict=True):
            matrix = site.matrix(self.tensor).double().cpu()
            site.write(self.tensor, matrix - (matrix @ basis - kept) @ basis.T)

    def state(self) -> Tensor:
        """Return what a saved guard compares a weight with."""
        return self.values


class FrozenReference:
    """A parameter or buffer that must not change at all."""

    soft = False

    def __init__(self, name: str, get: Callable[[], Tensor]) -> None:
        self.label, self._get = name, get
        self.restorable: Tensor | None = None
        self.accept()

    @property
    def tensor(self) -> Tensor:
        """The parameter or buffer."""
        return self._get().detach()

    def _part(self) -> Tensor:
        flat = self.tensor.reshape(-1)
        return flat[:: math.ceil(flat.numel() / MOST_COPIED) or 1]

    def accept(self) -> None:
        """Take the present values as what has to stay."""
        self.values = self._part().clone()
        self.note()

    def note(self) -> None:
        """Note that the tensor is as a guarded step left it."""
        self.seen = identity(self.tensor)

    def keep_for_restoring(self) -> None:
        """Keep a copy."""
        self.restorable = self.tensor.clone()

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
        assert self.restorable is not None
        self.tensor.copy_(self.restorable)

    def state(self) -> Tensor:
        """Return what a saved guard compares the tensor with."""
        return self.values


Reference = WeightReference | FrozenReference


class LeakMonitor:
    """Compares the weights of a guarded model with how guarded steps have left them."""

    def __init__(self, on_leak: OnLeak) -> None:
        self.on_leak: OnLeak = on_leak
        self._references: dict[str, Reference] = {}
        self._by_weight: dict[Tensor, list[WeightReference]] = {}
        self._steps = 0

    def protect(
        self,
        projector: Projector,
        subspaces: Mapping[str, Subspace],
        frozen: Mapping[str, Callable[[], Tensor]],
    ) -> None:
        """Compare with the present weights from now on."""
        self._references, self._by_weight = {}, {}
        for sites in by_weight(projector, subspaces):
            soft = any(projector.projections[site.name].soft for site in sites)
            reference = WeightReference(sites, subspaces, soft=soft)
            self._references[f"weight {reference.label}"] = reference
            self._by_weight.setdefault(sites[0].weight, []).append(reference)
        for name, get in frozen.items():
            self._references[f"frozen {name}"] = FrozenReference(name, get)
        if self.on_leak == "restore":
            for one in self._references.values():
                if not one.soft:
                    one.keep_for_restoring()

    def __bool__(self) -> bool:
        return bool(self._references)

    def after_step(self) -> None:
        """Note that a guarded step has left the weights as they are now."""
        self._steps += 1
        for reference in self._references.values():
            reference.note()

    def before_step(self) -> None:
        """Look at what has changed since the last guarded step, and at a part of the rest."""
        turns = min(len(self._references), STEPS)  # in each, some of the weights are looked at
        blocks = max(1, STEPS // max(1, turns))
        for number, reference in enumerate(self._references.values()):
            if reference.changed:
                self._look(reference)
            elif number % turns == self._steps % turns:
                self._look(reference, self._steps // turns % blocks, blocks)

    def look_at_changed(self, weight: Tensor) -> None:
        """Look at one weight if it has changed since the last guarded step."""
        for reference in self._by_weight.get(weight, ()):
            if reference.changed:
                self._look(reference)

    def look(self) -> None:
        """Look at all weights."""
        for reference in self._references.values():
            self._look(reference)

    def accept(self) -> None:
        """Take the present weights as what has to stay."""
        for reference in self._references.values():
            reference.accept()
            if self.on_leak == "restore" and not reference.soft:
                reference.keep_for_restoring()

    def _look(self, reference: Reference, block: int = 0, blocks: int = 1) -> None:
        self._refuse_moved(reference)
        leak = reference.leak(block, blocks)
        if leak is None:
            if blocks == 1:
                reference.seen = identity(reference.tensor)
            return
        name, share = leak
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
        if self.on_leak == "restore":
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
