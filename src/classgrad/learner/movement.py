"""How far the features of old classes can have moved, told without their images.

Class statistics are taken when a class is learnt, and are right as long as its features stay where
they were. Kept for that are, of every layer that learns, the sum G = Σ x xᵀ of its inputs x for all
images so far, and what each later task did to its outputs: a task that changes W by ΔW moves output
o by √(ΔW G ΔWᵀ)_oo, in the norm over all these images and their positions. `networks.lipschitz`
makes of that a bound on the movement of features. It holds for the images that the statistics were
taken from, up to the rounding of features.

A bound has to assume that later layers amplify a movement as much as they can. What they really do
is seen by the images of the new task, whose features are known before and after it. So there is an
estimate, too: how far the features of these moved, times how much less the outputs of layers moved
for old images, in the layer where that is least, and no more than the bound. It is no bound itself,
but more often too high than too low.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.core.layers import Site, Source, dotted, sites, tap
from classgrad.core.linalg import from_upper_half, upper_half
from classgrad.learner.learnt import LearntTask
from classgrad.networks.efficientnet_lite import ConvNorm
from classgrad.networks.layers import FixedNorm
from classgrad.networks.lipschitz import CannotFollow, Movements, as_float64

WIDEST = 2048  # inputs of a layer whose products are kept: 8 MB
ROUNDING = 2.0**-24  # of a product that is kept in float32


@dataclass(frozen=True)
class Drift:
    """How far the features of a task's images have moved since it was learnt.

    Movements are √(Σ ‖now - then‖² / Σ ‖then‖²) over the images of the task. They are at most
    `bound`, and about `estimate`. Both are None if nothing is known; `reason` says why, or why
    nothing can have moved.
    """

    task: str
    bound: float | None
    estimate: float | None
    reason: str = ""

    def __str__(self) -> str:
        if self.bound is None or self.estimate is None:
            return f"not known: {self.reason}"
        if self.reason:
            return f"none: {self.reason}"
        # Through many layers a bound grows beyond anything that features can do.
        most = f"{100 * self.bound:.2g} % at most" if self.bound < 1 else "with no useful bound"
        return f"about {100 * self.estimate:.2g} % of the length of features, {most}"


@dataclass
class Recorded:
    """What was recorded of the images that went through a trunk."""

    products: dict[str, Tensor] = field(default_factory=dict)  # Σ x xᵀ of the inputs, by site
    images: int = 0
    energy: float = 0.0  # Σ ‖features‖²
    sites: Mapping[str, Site] = field(default_factory=dict)
    seen: dict[Source, list[Tensor]] = field(default_factory=dict)  # inputs of the current batch

    def add(self, features: Tensor) -> None:
        """Add the batch that has these features."""
        for name, site in self.sites.items():
            for x in self.seen.get(site.source, ()):
                gram = site.gram(x.cpu())  # not every device has float64
                known = self.products.get(name)
                self.products[name] = gram if known is None else known.add_(gram)
        self.seen.clear()
        self.energy += float(as_float64(features).square().sum())
        self.images += len(features)


class Movement:
    """What is kept to tell how far features have moved, for one trunk.

    `reason` says why nothing is known, and nothing is kept then.
    """

    def __init__(self, trunk: nn.Module, input_shape: Sequence[int], reason: str = "") -> None:
        self.trunk, self.input_shape, self.reason = trunk, tuple(input_shape), reason
        self.sites = sites(trunk)
        wide = [site.name for site in self.sites.values() if site.dimension > WIDEST]
        if wide:
            self.reason = f"layer '{wide[0]}' has more than {WIDEST:,} inputs"
        # G by site, of all images so far.
        self.products: dict[str, Tensor] = {}
        if not self.reason:
            self.products = {n: torch.zeros(2 * [s.dimension]) for n, s in self.sites.items()}
        self.images = 0
        self.sums = 0  # how often G was rounded
        self.energies: list[float] = []  # of each task: Σ ‖features‖²
        self.steps: list[dict[str, Tensor]] = []  # of each task: what it moved, by site
        self.estimates: list[float] = []  # of each task: how far it moved features of earlier ones
        # Of each task, by now; None if features moved, but not one image of it was new.
        self.bounds: list[float | None] = []

    def tensors(self) -> dict[str, Tensor]:
        """Return a copy of all tensors of the trunk."""
        return {name: value.detach().clone() for name, value in self.trunk.state_dict().items()}

    @contextmanager
    def recording(self) -> Iterator[Recorded]:
        """Record the inputs of layers in the block; tell the result the features of each batch."""
        watched = {} if self.reason else self.sites
        with tap(watched.values()) as seen:
            yield Recorded(sites=watched, seen=seen)

    def add_task(
        self,
        recorded: Recorded,
        before: Mapping[str, Tensor] | None = None,
        moved: float = 0.0,
    ) -> None:
        """Add a task: its images, all tensors before it, and how far it moved its own features.

        The first task has moved nothing.
        """
        if before is not None:
            self._note_other_changes(before)
        step: dict[str, Tensor] = {}
        estimate = 0.0
        if before is not None and not self.reason:
            step = {n: self._moved(n, before, products) for n, products in self.products.items()}
            own = {n: self._moved(n, before, products) for n, products in recorded.products.items()}
            ratios = [float(step[n].norm() / own[n].norm()) for n in own if own[n].any()]
            estimate = moved * max(ratios, default=0.0)
            estimate *= math.sqrt(recorded.images / max(self.images, 1))
        self.steps.append(step)
        self.estimates.append(estimate)
        self.energies.append(0.0)
        self.add_images(len(self.energies) - 1, recorded)

    def add_images(self, task: int, recorded: Recorded) -> None:
        """Add images of a task, and bound the movement of all tasks."""
        for name in self.products.keys() & recorded.products.keys():
            self.products[name] = (self.products[name] + recorded.products[name]).float()
        self.images += recorded.images
        self.sums += 1
        self.energies[task] += recorded.energy
        try:
            self.bounds = [] if self.reason else self._bound_all()
        except CannotFollow as error:
            self._give_up(f"layer {error} cannot be followed")

    def _note_other_changes(self, before: Mapping[str, Tensor]) -> None:
        """Know nothing any more if anything but the matrices that are followed has changed."""
        followed = {parameter_name(name, site) for name, site in self.sites.items()}
        now = self.trunk.state_dict()
        for name in sorted(now.keys() | before.keys()):
            there = name in now and name in before
            if not there or (name not in followed and not torch.equal(now[name], before[name])):
                self._give_up(f"'{name}' has changed, which is not followed")

    def _give_up(self, reason: str) -> None:
        self.reason, self.products, self.bounds = reason, {}, []
        self.steps = [{} for _ in self.steps]

    def _moved(self, name: str, before: Mapping[str, Tensor], products: Tensor) -> Tensor:
        """Return how far each output of a site moved, for inputs with these products."""
        site = self.sites[name]
        change = site.weight.detach() - before[parameter_name(name, site)]
        rows = as_float64(site.matrix(change))
        squares = ((rows @ products.double()) * rows).sum(1).clamp(min=0)
        rounding = self.sums * ROUNDING * float(products.double().trace()) * rows.square().sum(1)
        return (squares + rounding).sqrt()

    def _bound_all(self) -> list[float | None]:
        """Return the bound of each task."""
        like = next(self.trunk.parameters())
        example = torch.zeros(1, *self.input_shape, dtype=like.dtype, device=like.device)
        movements = Movements(self.trunk, example)
        norms: dict[nn.Module, FixedNorm] = {
            part.conv: part.norm for part in self.trunk.modules() if isinstance(part, ConvNorm)
        }
        bounds: list[float | None] = []
        for task, energy in enumerate(self.energies):
            own: dict[nn.Module, Tensor] = {}
            for name, site in self.sites.items():
                for rows in [step[name] for step in self.steps[task + 1 :] if name in step]:
                    whole = own.setdefault(site.layer, torch.zeros(len(site.weight)).double())
                    # Rows of a transposed convolution are none of its weight; it is not followed.
                    whole[site.start : site.stop] += rows.norm() if site.kind.transposed else rows
            for layer in own.keys() & norms.keys():
                own[layer] *= as_float64(norms[layer].scale_and_shift()[0]).abs()
            moving = {layer: rows for layer, rows in own.items() if rows.any()}
            moved = movements.of_outputs(moving)
            relative = moved / math.sqrt(energy) if energy else None
            bounds.append(relative if moved else 0.0)
        return bounds

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """Return everything; of a symmetric matrix, one half."""
        return {
            "reason": self.reason,
            "products": {name: upper_half(products) for name, products in self.products.items()},
            "images": self.images,
            "sums": self.sums,
            "energies": list(self.energies),
            "steps": [dict(step) for step in self.steps],
            "estimates": list(self.estimates),
            "bounds": list(self.bounds),
        }

    def load_state_dict(self, state: Mapping[str, Any], tasks: int) -> None:
        """Restore a state of so many tasks; refuse one whose parts do not match."""
        self.reason = str(state["reason"])
        self.images, self.sums = int(state["images"]), int(state["sums"])
        counts = set()
        for name in ("energies", "steps", "estimates"):
            setattr(self, name, list(state[name]))
            counts.add(len(state[name]))
        self.bounds = list(state["bounds"])
        if counts != {tasks} or len(self.bounds) != (0 if self.reason else tasks):
            raise ValueError("movements of features are of other tasks")
        numbers = [*self.energies, *self.estimates, *(b for b in self.bounds if b is not None)]
        if not all(float(number) >= 0 for number in numbers):
            raise ValueError("movements of features are no lengths")
        expected = set() if self.reason else self.sites.keys()
        if state["products"].keys() != expected:
            raise ValueError("movements of features are of other layers")
        for name, half in state["products"].items():
            d = self.sites[name].dimension
            if tuple(half.shape) != (d * (d + 1) // 2,):
                raise ValueError(f"products of inputs of layer '{name}' have another shape")
        for name, rows in [item for step in self.steps for item in step.items()]:
            site = self.sites[name]
            if tuple(rows.shape) != (len(site.matrix(site.weight)),):
                raise ValueError(f"movements of outputs of layer '{name}' have another shape")
        self.products = {
            name: from_upper_half(half, self.sites[name].dimension)
            for name, half in state["products"].items()
        }


def parameter_name(name: str, site: Site) -> str:
    """Return the name of the parameter that a site is a part of."""
    return dotted(name.split("[")[0], site.parameter)


def drifts_in(
    tasks: Sequence[LearntTask], tune: str, movement: Mapping[str, Any] | None
) -> list[Drift]:
    """Return how far the features of each task have moved, from what a saved state has."""
    names = [task.name for task in tasks]
    if tune == "none":
        return [Drift(name, 0.0, 0.0, "no layer learns") for name in names]
    if movement is None:
        reason = (
            "a version of classgrad without it learnt the first task"
            if any(task.numbers for task in tasks)
            else "the learner has no class statistics"
        )
        return [Drift(name, None, None, reason) for name in names]
    if movement["reason"]:
        return [Drift(name, None, None, movement["reason"]) for name in names]
    later = [sum(movement["estimates"][number + 1 :]) for number in range(len(names))]
    return [
        Drift(name, None, None, "not one of its images was new")
        if bound is None
        else Drift(name, bound, min(estimate, bound))
        for name, bound, estimate in zip(names, movement["bounds"], later, strict=True)
    ]
