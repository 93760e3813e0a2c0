"""Dynamically Expandable Networks (Yoon, Yang, Lee, Hwang; ICLR 2018).

In every round what is trained has an L1 penalty μ: after every step of the optimiser, at rate r,
w <- sign(w) max(|w| - r μ, 0), which leaves exact zeros. In the first task that is everything.
Later tasks have up to four rounds:

1. Head.  Only the new head is learnt, on the features there are.
2. Selective retraining.  From the head's non-zero weights down, breadth first, the units that are
   reached through non-zero weights make a sub-network. Only what connects them is trained, with the
   penalty λ₂/2 ||W||² + λ/2 ||W - W_before||², by its gradient.
3. Expansion.  If the loss on validation data (without any: on training data) is above τ, each layer
   gets k units. Only their weights and the head are trained, with a group lasso on each new unit g,
   all that makes its value: g <- max(1 - r λ_g / ||g||, 0) g. Units that are all zero are dropped.
4. Split.  Units whose incoming weights are farther than σ from where the last task left them are
   copied, at most `splits` of a layer, the farthest first. The old unit gets its old weights back,
   the copy is trained further, with the penalty λ/2 to the old weights.

The pull λ₂/2 ||W||² is on all that is trained in rounds 2 to 4.

Timestamps: a task uses only the units there were when it was learnt.

Choices of ours: every round has the epochs of the settings. New units start with outgoing weights
of zero. New units and the head see a copy in place of its original; an old unit sees it with a
weight that starts at zero. The head is free in all rounds but the second, as no other task has it.
The rate r is the optimiser's, without regard to momentum.

Differences from the released code: softmax and cross-entropy instead of a sigmoid for each class;
the breadth-first search begins at all outputs (the code: at the first), the farthest units are
split (the code: the nearest above σ), also in tasks that added none. Its proximal steps subtract μ
and λ_g themselves, at rate 1e-3; here they are multiplied by the rate, so the defaults are a
thousand times its values. It compares the loss of its last batch with τ, and gives round 1 a tenth
of the steps. It has Linear layers only; here a unit may be a filter, and with BatchNorm a unit's
scale and shift are trained, grouped, restored and copied with it.
"""

from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from classgrad import seeds
from classgrad.methods.base import Fit, Step
from classgrad.methods.structure.expanding import Expanding, added, among, newest_own
from classgrad.methods.structure.growing import grow, spread, width, wires
from classgrad.methods.structure.units import (
    drop_zeros,
    loss_of,
    reached,
    shrink_groups,
    soft_threshold,
    split,
    unit_groups,
)
from classgrad.networks.network import Network
from classgrad.tasks import Task


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
    free_start: ClassVar[bool] = False

    l1: float = Field(default=0.01, ge=0, description="L1 penalty of what is trained (μ)")
    l2: float = Field(default=1e-4, ge=0, description="pull of retrained weights to zero")
    drift: float = Field(
        default=0.5, ge=0, description="pull of retrained weights to their old values (λ)"
    )
    group_lasso: float = Field(default=1.0, ge=0, description="price of a new unit's norm")
    loss_threshold: float = Field(default=0.01, ge=0, description="add units above this loss (τ)")
    expansion: int = Field(default=10, ge=0, description="units added to each layer (k)")
    split_threshold: float = Field(
        default=0.05, ge=0, description="copy units that moved farther (σ)"
    )
    splits: int = Field(default=10, ge=0, description="copied units of a layer, at most")

    if TYPE_CHECKING:  # aliases, see Settings
        mu: InitVar[float] = l1
        tau: InitVar[float] = loss_threshold
        sigma: InitVar[float] = split_threshold
        k: InitVar[int] = expansion

    _task: int = PrivateAttr(default=-1)
    _round: str = PrivateAttr(default="done")  # first; or head, selected, expanded, split; done
    _before: dict[str, int] = PrivateAttr(default_factory=dict)  # units before the newest came
    _old: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # weights to be drawn to

    def begin_task(self, net: Network, task: Task) -> None:
        """Remember the weights and free the head, unless the task has begun before."""
        if self._task == task.id:
            return
        self._task, self._round, self._before = task.id, "head" if task.id else "first", width(net)
        if task.id:
            self._old = {f"trunk.{n}": p.detach().clone() for n, p in net.trunk.named_parameters()}
        self.set_free(net, newest_own(net) if task.id else None)

    def rounds(self, task: Task) -> int:
        """Return how often, at most, a task is gone through."""
        return 4 if task.id else 1

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Train in rounds, from the one that is under way."""
        while self._round != "done":
            if self._free != {}:  # nothing is, where the head reaches no unit
                fit([task])
            self._next_round(net, task)

    def _next_round(self, net: Network, task: Task) -> None:
        """Go from one round to the next that has something to do."""
        finished = self._round
        if finished == "head":
            self._round = "selected"
            self.set_free(net, sub_network(net))
        elif finished == "selected" and self.expansion and loss_of(net, task) > self.loss_threshold:
            self._round = "expanded"
            chance = seeds.generator(net.seed, "expansion", task.id)
            grow(net, dict.fromkeys(width(net), self.expansion), chance)
            self.set_free(net, added(net, self._before))
        elif finished in ("selected", "expanded"):
            drop_zeros(net, self._before)
            drifted = self._drifted(net)
            self._round = "split" if any(drifted.values()) else "done"
            if self._round == "split":
                start = width(net)
                self._old = split(net, drifted, self._old, self._before)
                self._before = start
            self.set_free(net, added(net, self._before))
        else:
            self._round = "done"

    def _drifted(self, net: Network) -> dict[str, list[int]]:
        """Return for each layer the units that moved too far, the farthest first."""
        found = {}
        for wire, layer, _ in wires(net):
            old = self._old[f"trunk.{wire.layer}.weight"]
            now = layer.weight.detach()[: old.shape[0], : old.shape[1]]
            moved = torch.linalg.vector_norm((now - old).flatten(1), dim=1)
            order = moved.sort(descending=True, stable=True).indices[: self.splits]
            found[wire.target] = [i for i in order.tolist() if moved[i] > self.split_threshold]
        return found

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Add the gradients of the penalties, then mask."""
        if self._round in ("selected", "expanded", "split"):
            for name, parameter in net.named_parameters():
                if name in (self._free or {}) and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self.l2)
                    if self._round != "expanded" and name in self._old:
                        parameter.grad.add_(parameter.detach() - self._old[name], alpha=self.drift)
        super().adjust_gradients(net, step)

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Apply the proximal steps of L1 and of the group lasso."""
        super().after_step(net, step)
        rate = step.optimizer.param_groups[0]["lr"]
        weights = {f"trunk.{wire.layer}.weight": layer.weight for wire, layer, _ in wires(net)}
        weights[f"heads.{step.task.id}.weight"] = net.head_parameters(step.task.id)[0]
        for name, weight in weights.items():
            if self._free is None:
                soft_threshold(weight, rate * self.l1)
            elif name in self._free:
                soft_threshold(weight, rate * self.l1 * self._free[name])
        if self._round == "expanded":
            for groups in unit_groups(net, self._before).values():
                shrink_groups(groups, rate * self.group_lasso)

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Keep nothing but how many units each task has."""
        self._task, self._round, self._old, self._before = -1, "done", {}, {}
        self.set_free(net, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the units of every task and, within a task, its round and the old weights."""
        own = {"task": self._task, "round": self._round}
        return {**super().state_dict(), **own, "before": dict(self._before), "old": dict(self._old)}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state."""
        super().load_state_dict(state, net)
        self._task, self._round = state["task"], state["round"]
        self._before, self._old = dict(state["before"]), dict(state["old"])


def sub_network(net: Network) -> dict[str, Tensor]:
    """Mark what connects the units the newest head reaches, and what only its task has."""
    chosen = reached(net)
    seen = chosen[wires(net)[-1][0].target]
    free = {**among(net, chosen), **newest_own(net)}
    head = f"heads.{len(net.heads) - 1}.weight"
    return {**free, head: free[head] & spread(seen, net.embedding // len(seen))}
