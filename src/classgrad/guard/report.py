"""What a guard protects, freezes and watches, as text and as plain values."""

import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from torch import nn

from classgrad.core.layers import dotted, is_norm, layer_kind
from classgrad.core.projector import EMBEDDINGS, Projector, has_running_statistics, is_depthwise
from classgrad.errors import counted
from classgrad.methods.base import Held, LayerRank
from classgrad.methods.projection.forecast import Capacity

WIDTH = 80
NAME_WIDTH = 40
MOST_ROWS = 40  # of a table in the text; `as_dict` has all


@dataclass(frozen=True)
class FrozenParameter:
    """A parameter that no guarded step changes, and why."""

    name: str
    reason: str
    numbers: int


@dataclass(frozen=True)
class Report:
    """All that a guard knows; `print` shows it in 80 columns."""

    method: str
    tasks: int
    classes: int
    layers: Sequence[LayerRank]
    held: Sequence[Held]
    frozen: Sequence[FrozenParameter]
    optimizers: Sequence[str]
    capacity: Capacity

    def as_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON has."""
        return {
            "method": self.method,
            "tasks": self.tasks,
            "classes": self.classes,
            "layers": [
                {"name": layer.name, "rank": layer.rank, "dimension": layer.dimension}
                for layer in self.layers
            ],
            "held": [asdict(held) for held in self.held],
            "frozen": [asdict(parameter) for parameter in self.frozen],
            "optimizers": list(self.optimizers),
            "capacity": self.capacity.as_dict(),
        }

    def __str__(self) -> str:
        blocks = [
            [f"{self.method}, {counted(self.tasks, 'task')}, {counted(self.classes, 'class')}"],
            self._layer_lines(),
            self._class_lines(),
            self._frozen_lines(),
            self._other_lines(),
        ]
        return "\n\n".join("\n".join(lines) for lines in blocks if lines)

    def _layer_lines(self) -> list[str]:
        least = least_held({layer.name: [] for layer in self.layers}, self.held)
        fullest = sorted(self.layers, key=lambda layer: -layer.rank / layer.dimension)[:MOST_ROWS]
        lines = [f"{'layer':<{NAME_WIDTH}} {'rank':>7} {'of':>7} {'full':>6} {'least held':>14}"]
        for layer in self.layers:
            if layer in fullest:
                held = least.get(layer.name)
                lines.append(
                    f"{fitted(layer.name, NAME_WIDTH):<{NAME_WIDTH}} {layer.rank:>7,} "
                    f"{layer.dimension:>7,} {layer.rank / layer.dimension:>6.0%} "
                    f"{'-' if held is None else percent(held.share):>14}"
                )
        if len(self.layers) > MOST_ROWS:
            lines.append(f"and {len(self.layers) - MOST_ROWS} layers that are less full")
        return lines

    def _class_lines(self) -> list[str]:
        """Return a line for each class, or for each task of a method that pools its classes."""
        by_class: dict[str, list[Held]] = {}
        for held in self.held:
            by_class.setdefault(label_of(held), []).append(held)
        worst = sorted(by_class.items(), key=lambda pair: min(held.share for held in pair[1]))
        if not worst:
            return []
        lines = [f"{'class':<22} {'least held':>10} {'promised':>10}  layer"]
        chosen = {label for label, _ in worst[:MOST_ROWS]}
        for label, helds in by_class.items():
            if label in chosen:
                held = min(helds, key=lambda held: held.share)
                lines.append(
                    f"{fitted(label, 22):<22} {percent(held.share):>10} "
                    f"{percent(held.promised):>10}  {fitted(held.layer, WIDTH - 46)}"
                )
        if len(by_class) > MOST_ROWS:
            lines.append(f"and {len(by_class) - MOST_ROWS} of which more is held")
        return lines

    def _frozen_lines(self) -> list[str]:
        by_reason: dict[str, list[FrozenParameter]] = {}
        for parameter in self.frozen:
            by_reason.setdefault(parameter.reason, []).append(parameter)
        if not by_reason:
            return []
        lines = [f"{'frozen':<30} {'tensors':>7} {'numbers':>11}  names"]
        for reason, parameters in by_reason.items():
            numbers = sum(parameter.numbers for parameter in parameters)
            names = ", ".join(parameter.name for parameter in parameters)
            lines.append(
                f"{reason:<30} {len(parameters):>7,} {numbers:>11,}  {ended(names, WIDTH - 52)}"
            )
        return lines

    def _other_lines(self) -> list[str]:
        watched = ", ".join(self.optimizers) or "no optimizer: steps are not guarded"
        lines = [("watched", watched)]
        if self.tasks:
            lines.append(("free rank", str(self.capacity)))
        return [
            line
            for title, text in lines
            for line in textwrap.wrap(
                text, WIDTH, initial_indent=f"{title:<10} ", subsequent_indent=" " * 11
            )
        ]


def least_held(layers: Mapping[str, Any], held: Sequence[Held]) -> dict[str, Held]:
    """Return the class of each layer of which least is held."""
    least: dict[str, Held] = {}
    for one in held:
        if one.layer in layers and (one.layer not in least or one.share < least[one.layer].share):
            least[one.layer] = one
    return least


def frozen_parameters(
    model: nn.Module, projector: Projector, frozen: Sequence[str], frozen_norms: Sequence[str]
) -> Iterator[FrozenParameter]:
    """Yield every parameter that is frozen, by the guard or by the user, and why."""
    protected = {site.layer for site in projector.sites.values()}
    protected |= {
        inner for site in projector.sites.values() for inner in site.kind.inner_modules(site.layer)
    }
    names = set(frozen)
    for prefix, module in model.named_modules():
        for label, parameter in module.named_parameters(recurse=False):
            name = dotted(prefix, label)
            if not parameter.requires_grad:
                yield FrozenParameter(name, "requires_grad is off", parameter.numel())
            elif name in names:
                reason = (
                    "norm with running statistics"
                    if prefix in frozen_norms and has_running_statistics(module)
                    else reason_of(module, module in protected)
                )
                yield FrozenParameter(name, reason, parameter.numel())


def reason_of(module: nn.Module, protected: bool) -> str:
    """Return why a parameter of a layer that is no weight matrix is frozen."""
    if is_norm(module):
        return "scale or shift of a norm"
    if is_depthwise(module):
        return "depthwise convolution"
    if protected:
        return "bias of a protected layer"
    if layer_kind(module) is not None:
        return "bias"
    if isinstance(module, EMBEDDINGS):
        return "embedding"
    return "token or other parameter"


def label_of(held: Held) -> str:
    """Return what a share belongs to; tasks count from 0, as in `Guard.use_task`."""
    return f"task {held.task}" if held.label is None else f"{held.label} (task {held.task})"


def percent(share: float) -> str:
    """Return a share in per cent, rounded down, so that 100.00 means all.

    >>> percent(0.99999), percent(1.0)
    ('99.99 %', '100.00 %')
    """
    return f"{int(share * 10000 + 1e-9) / 100:.2f} %"


def fitted(name: str, width: int) -> str:
    """Return a name that is not longer than `width`; the middle of a longer one is left out.

    >>> fitted("blocks.0.attention.out", 15)
    'blocks.…ion.out'
    """
    if len(name) <= width:
        return name
    head = (width - 1) // 2
    return f"{name[:head]}…{name[head + 1 - width :]}"


def ended(text: str, width: int) -> str:
    """Return the beginning of a text."""
    return text if len(text) <= width else f"{text[: width - 2]} …"
