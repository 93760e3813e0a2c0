"""Dynamically Expandable Networks (Yoon, Yang, Lee, Hwang; ICLR 2018).

In every round the trained weights have an L1 penalty μ: after every step of the optimiser,
w <- sign(w) max(|w| - r μ, 0), which leaves exact zeros. With `shrink="step"` r is the root mean
square of the step that the layer's trained weights have just taken: μ says how far a weight shrinks
for what it moves, whatever the optimiser and its rate. The first task trains all weights. Later
tasks have up to four rounds:

1. Head.  Only the new head is trained, on the existing features.
2. Selective retraining.  A breadth-first search from the head's non-zero weights down finds the
   units that are reached through non-zero weights. Only the weights that connect these units are
   trained, with the penalty λ₂/2 ||W||² + λ/2 ||W - W_before||², by its gradient.
3. Expansion.  If the loss on validation data (without any: on training data) is above τ, each layer
   gets k units. Only their weights and the head are trained, with a group lasso on g, all incoming
   parameters of a new unit: g <- max(1 - r λ_g / ||g||, 0) g. Units that are all zero are dropped.
4. Split.  Units whose incoming weights are farther than σ from those after the last task are
   copied, at most `splits` of a layer, the farthest first. The old unit gets its old weights back.
   Then all weights are trained, with the penalty λ/2 to those after the last task, for a copy to
   those of its original.

The penalty λ₂/2 ||W||² applies to all trained weights in rounds 2 to 4.

Timestamps: a task uses only the units that existed when it was learnt.

Choices of ours: every round has the epochs of the settings. New units start with outgoing weights
of zero. New units and the head see a copy in place of its original; an old unit sees it with a
weight that starts at zero. The head is free in all rounds but the second, as no other task has it.

Differences from the released code: softmax and cross-entropy instead of a sigmoid for each class;
the breadth-first search begins at all outputs (the code: at the first), the farthest units are
split (the code: the nearest above σ), also in tasks that added none, and a copy is pulled to its
original (the code: not at all). Its proximal steps subtract 1e-5 and 1e-3 after steps of Adam at
rate 1e-3, which are about as long as the rate: 0.01 and 1 times the step. With SGD, whose steps are
much shorter, constant thresholds zero the network, and so does the learning rate as r
(`shrink="rate"`, which was the only form at first). The code compares the loss of its last batch
with τ, and gives round 1 a tenth of the steps. It has Linear layers only; here a unit may be a
filter, and with BatchNorm a unit's scale and shift are trained, grouped, restored and copied with
it.
"""

from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn import functional

from classgrad import seeds
from classgrad.methods.base import Fit, Step
from classgrad.methods.structure.expanding import Expanding, added, among, newest_own
from classgrad.methods.structure.growing import (
    extended,
    grow,
    rearrange,
    unit_columns,
    width,
    wires,
)
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.networks.trunk import Wire
from classgrad.prediction.accuracy import inputs
from classgrad.tasks import Task


def reached(net: Network) -> dict[str, Tensor]:
    """Tell for every unit whether the newest head reaches it through non-zero weights."""
    through = (net.head_parameters(len(net.heads) - 1)[0] != 0).any(0)
    units = {}
    for wire, layer, _ in reversed(wires(net)):
        units[wire.target] = through.view(layer.weight.shape[0], -1).any(1)  # any position
        seen = (layer.weight[units[wire.target]] != 0).any(0)
        through = seen.reshape(len(seen), -1).any(1)
    return units


@torch.no_grad()
def loss_of(net: Network, task: Task) -> float:
    """Return the mean cross-entropy on validation data, or on training data if there is none."""
    split = task.valid if len(task.valid) else task.train
    total = 0.0
    with net.evaluating():
        for index, x in inputs(net, split, task.transform):
            loss = functional.cross_entropy(net(x, task.id), split.labels[index], reduction="sum")
            total += float(loss)
    return total / len(split)


def soft_threshold_(values: Tensor, threshold: float | Tensor) -> None:
    """Move every value towards zero by `threshold`, in place; smaller ones become zero.

    >>> values = torch.tensor([0.5, -0.5, 0.2])
    >>> soft_threshold_(values, 0.25)
    >>> values.tolist()
    [0.25, -0.25, 0.0]
    """
    values.copy_(values.sign() * (values.abs() - threshold).clamp(min=0))


def shrink_groups_(groups: list[Tensor], threshold: float) -> None:
    """Shrink the norm of each group by `threshold`, in place; group i is row i of all tensors.

    >>> rows = torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    >>> shrink_groups_([rows], 1.0)
    >>> [[round(value, 4) for value in row] for row in rows.tolist()]
    [[2.4, 3.2], [0.0, 0.0]]
    """
    norms = torch.stack([g.flatten(1).square().sum(1) for g in groups]).sum(0).sqrt()
    tiny = torch.finfo(norms.dtype).tiny
    factors = (1 - threshold / norms.clamp(min=tiny)).clamp(min=0)
    for group in groups:
        group.mul_(factors.view(-1, *[1] * (group.dim() - 1)))


def unit_groups(net: Network, before: dict[str, int]) -> dict[str, list[Tensor]]:
    """Return, for each layer, views of the incoming parameters of units beyond `before`."""
    by_target = {}
    for wire, layer, norm in wires(net):
        groups = [layer.weight.detach()]
        if layer.bias is not None:
            groups.append(layer.bias.detach()[:, None])
        if norm is not None:
            scale, shift, *_ = norm.values(len(net.heads) - 1)
            groups += [norm.get_parameter(name).detach()[:, None] for name, _ in (scale, shift)]
        by_target[wire.target] = [group[before[wire.target] :] for group in groups]
    return by_target


def drop_zeros(net: Network, before: dict[str, int]) -> None:
    """Remove the units beyond the first `before` whose incoming parameters are all zero."""
    taken = {}
    for target, groups in unit_groups(net, before).items():
        alive = torch.stack([group.flatten(1).any(1) for group in groups]).any(0)
        kept = before[target] + alive.nonzero().flatten().cpu()
        taken[target] = torch.cat([torch.arange(before[target]), kept])
    if any(len(taken[target]) < number for target, number in width(net).items()):
        rearrange(net, taken)


@torch.no_grad()
def split(
    net: Network, copied: dict[str, list[int]], old: dict[str, Tensor], before: dict[str, int]
) -> dict[str, Tensor]:
    """Copy units, restore the old values of the originals, and return the anchors of the penalty.

    Units beyond the first `before`, copies among them, and the head see a copy in its original's
    place. `old` has the shared values after the last task, by name; the result has those for the
    copies too, and the current values of units that the task has added.
    """
    start = width(net)
    rearrange(net, {t: extended(torch.arange(n), copied[t]) for t, n in start.items()})
    anchors = {}
    for wire, layer, _ in wires(net):
        numbers = torch.tensor(copied[wire.target], dtype=torch.int64)
        first = start[wire.target]
        weight = layer.weight.detach()
        columns, behind = torch.zeros(0, dtype=torch.int64), weight.shape[1]
        if wire.source is not None:
            positions = weight.shape[1] // width(net)[wire.source]
            columns = unit_columns(torch.tensor(copied[wire.source], dtype=torch.int64), positions)
            behind = positions * start[wire.source]
        weight[: before[wire.target], behind:] = 0
        weight[before[wire.target] :, columns] = 0
        for name, values in shared_values(net, wire):
            saved = old[name]
            if saved.dim() == 1:
                values[numbers] = saved[numbers]
            else:
                values[numbers, : saved.shape[1]] = saved[numbers]
            anchor = values.clone()
            anchor[tuple(slice(size) for size in saved.shape)] = saved
            anchor[first:] = anchor[numbers]
            if values.dim() > 1:  # the old weights, from copies in place of originals
                anchor[first:, behind:] = anchor[first:, columns]
                anchor[first:, columns] = 0
            anchors[name] = anchor
    target = wires(net)[-1][0].target
    head = net.head_parameters(len(net.heads) - 1)[0].detach()
    positions = head.shape[1] // width(net)[target]
    head[:, unit_columns(torch.tensor(copied[target], dtype=torch.int64), positions)] = 0
    return anchors


def shared_values(net: Network, wire: Wire) -> list[tuple[str, Tensor]]:
    """Return the shared incoming parameters of a layer's units, by name."""
    names = {f"{wire.layer}.weight", f"{wire.layer}.bias"}
    norm = wire.norm and net.trunk.get_submodule(wire.norm)
    if isinstance(norm, TaskBatchNorm) and norm.affine == "first":
        names |= {f"{wire.norm}.scale_0", f"{wire.norm}.shift_0"}
    named = net.trunk.named_parameters()
    return [(f"trunk.{name}", p.detach()) for name, p in named if name in names]


class DEN(Expanding):
    """Retrain what a task needs; add units where that is not enough; split units that drifted."""

    name: ClassVar[str] = "den"
    summary: ClassVar[str] = "Dynamically Expandable Networks: retrain, add, split (ICLR 2018)"
    aliases: ClassVar[dict[str, str]] = {
        "mu": "l1",
        "lambda": "drift",
        "tau": "loss_threshold",
        "sigma": "split_threshold",
        "k": "expansion",
    }
    first_task_is_finetune: ClassVar[bool] = False

    l1: float = Field(default=0.01, ge=0, description="L1 penalty of trained weights (μ)")
    l2: float = Field(default=1e-4, ge=0, description="weight decay of retrained weights")
    drift: float = Field(
        default=0.5, ge=0, description="penalty on the distance from the old weights (λ)"
    )
    group_lasso: float = Field(default=1.0, ge=0, description="penalty on a new unit's norm")
    loss_threshold: float = Field(default=0.01, ge=0, description="add units above this loss (τ)")
    expansion: int = Field(default=10, ge=0, description="units added to each layer (k)")
    split_threshold: float = Field(
        default=0.05, ge=0, description="copy units that moved farther (σ)"
    )
    splits: int = Field(default=10, ge=0, description="copied units of a layer, at most")
    shrink: Literal["step", "rate"] = Field(
        default="step",
        description="what l1 and group_lasso are relative to: the step taken, or the learning rate",
    )

    if TYPE_CHECKING:  # aliases, see Settings
        mu: InitVar[float] = l1
        tau: InitVar[float] = loss_threshold
        sigma: InitVar[float] = split_threshold
        k: InitVar[int] = expansion

    _task: int = PrivateAttr(default=-1)
    _round: str = PrivateAttr(default="done")  # first; or head, selected, expanded, split; done
    _before: dict[str, int] = PrivateAttr(default_factory=dict)  # units before the newest ones
    _old: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # anchors of the penalty
    _unmoved: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # weights before a step

    def begin_task(self, net: Network, task: Task) -> None:
        """Keep the weights and free the head, unless the task has begun before."""
        if self._task == task.id:
            return
        self._task, self._round, self._before = task.id, "head" if task.id else "first", width(net)
        if task.id:
            self._old = {f"trunk.{n}": p.detach().clone() for n, p in net.trunk.named_parameters()}
        self.set_free(net, newest_own(net) if task.id else None)

    def rounds(self, task: Task) -> int:
        """Return how many rounds a task has, at most."""
        return 4 if task.id else 1

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Train in rounds, from the current one."""
        while self._round != "done":
            if self._free != {}:  # empty if the head reaches no unit
                fit([task])
            self._next_round(net, task)

    def _next_round(self, net: Network, task: Task) -> None:
        """Go to the next round in which there is something to train."""
        finished = self._round
        if finished == "head":
            self._round = "selected"
            self.set_free(net, sub_network(net))
        elif finished == "selected" and self.expansion and loss_of(net, task) > self.loss_threshold:
            self._round = "expanded"
            rng = seeds.generator(net.seed, "expansion", task.id)
            grow(net, dict.fromkeys(width(net), self.expansion), rng)
            self.set_free(net, added(net, self._before))
        elif finished in ("selected", "expanded"):
            drop_zeros(net, self._before)
            drifted = self._drifted(net)
            self._round = "split" if any(drifted.values()) else "done"
            if self._round == "split":
                start = width(net)
                self._old = split(net, drifted, self._old, self._before)
                self._before = start
            self.set_free(net, everything(net))
        else:
            self._round = "done"

    def _drifted(self, net: Network) -> dict[str, list[int]]:
        """Return for each layer the units that moved too far, the farthest first."""
        drifted = {}
        for wire, layer, _ in wires(net):
            old = self._old[f"trunk.{wire.layer}.weight"]
            now = layer.weight.detach()[: old.shape[0], : old.shape[1]]
            moved = torch.linalg.vector_norm((now - old).flatten(1), dim=1)
            order = moved.sort(descending=True, stable=True).indices[: self.splits]
            drifted[wire.target] = [i for i in order.tolist() if moved[i] > self.split_threshold]
        return drifted

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Add the gradients of the penalties, then mask."""
        if self._round in ("selected", "expanded", "split"):
            for name, parameter in net.named_parameters():
                if name in (self._free or {}) and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self.l2)
                    if self._round != "expanded" and name in self._old:
                        parameter.grad.add_(parameter.detach() - self._old[name], alpha=self.drift)
        super().adjust_gradients(net, step)
        if self.shrink == "step":
            weights = self._l1_weights(net, step.task.id)
            self._unmoved = {name: weight.detach().clone() for name, weight in weights.items()}

    def _l1_weights(self, net: Network, task: int) -> dict[str, Tensor]:
        """Return the weights that are trained and have the L1 penalty, by name."""
        weights = {f"trunk.{wire.layer}.weight": layer.weight for wire, layer, _ in wires(net)}
        weights[f"heads.{task}.weight"] = net.head_parameters(task)[0]
        return {n: w for n, w in weights.items() if self._free is None or n in self._free}

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Apply the proximal steps of L1 and of the group lasso."""
        super().after_step(net, step)
        rate = step.optimizer.param_groups[0]["lr"]
        moved = {}  # per weight matrix
        for name, weight in self._l1_weights(net, step.task.id).items():
            free = None if self._free is None else self._free[name]
            if self.shrink == "step":
                moved[name] = weight - self._unmoved[name]
                rate = root_mean_square(moved[name] if free is None else moved[name][free])
            soft_threshold_(weight, rate * self.l1 if free is None else rate * self.l1 * free)
        if self._round == "expanded":
            groups = unit_groups(net, self._before)
            for wire, _, _ in wires(net):
                if self.shrink == "step":
                    new = moved[f"trunk.{wire.layer}.weight"][self._before[wire.target] :]
                    rate = root_mean_square(new)
                shrink_groups_(groups[wire.target], rate * self.group_lasso)
        self._unmoved = {}

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Keep only the number of units of each task."""
        self._task, self._round, self._old, self._before = -1, "done", {}, {}
        self.set_free(net, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the units of every task and, within a task, its round and the old weights."""
        progress = {"task": self._task, "round": self._round}
        weights = {"before": dict(self._before), "old": dict(self._old)}
        return {**super().state_dict(), **progress, **weights}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        super().load_state_dict(state, net)
        self._task, self._round = state["task"], state["round"]
        self._before, self._old = dict(state["before"]), dict(state["old"])


def root_mean_square(values: Tensor) -> float:
    """Return the root mean square of some values, of none 0."""
    return float(values.square().mean().sqrt()) if values.numel() else 0.0


def everything(net: Network) -> dict[str, Tensor]:
    """Mark all shared weights, and what only the newest task has."""
    device = next(net.parameters()).device
    units = {t: torch.ones(n, dtype=torch.bool, device=device) for t, n in width(net).items()}
    return {**among(net, units), **newest_own(net)}


def sub_network(net: Network) -> dict[str, Tensor]:
    """Mark the weights between units the newest head reaches, and its task's own parameters."""
    chosen = reached(net)
    seen = chosen[wires(net)[-1][0].target]
    free = {**among(net, chosen), **newest_own(net)}
    head = f"heads.{len(net.heads) - 1}.weight"
    return {**free, head: free[head] & unit_columns(seen, net.embedding // len(seen))}
