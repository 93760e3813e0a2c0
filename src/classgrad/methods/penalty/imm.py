"""Incremental Moment Matching (Lee, Kim, Jun, Ha, Zhang; NIPS 2017).

Each task starts from the weights the task before ended with and is held near them by weight
transfer, the loss L_ce + λ ||θ - θ_{t-1}||². For prediction the weights of all tasks are merged:

- `merge="mean"`: θ = (1/T) Σ_t θ_t
- `merge="mode"`: θ = Σ_t F_t θ_t / Σ_t F_t, weight by weight, with F_t the Fisher information of
  task t at its own weights (as in `penalty.ewc`); where it is 0 for all tasks, the mean.

Both are kept as a running average: task t moves the merged weights towards θ_t by a share of 1/t or
of F_t / Σ F. After a task the network has the merged weights; `begin_task` gives it those of the
last task back. Parameters of single tasks (heads, a scale and shift per task) are not merged.

Stored statistics of BatchNorm (norm=stored) stay those of a task's own weights: they cannot be
measured again with merged weights for earlier tasks, whose data are gone, and therefore are not for
the current task either. With norm=batch nothing is stored.

Differences from HAT's code (Serrà et al.; ICML 2018): its mean variant continues learning from the
merged weights; its mode variant never writes the merged weights back to the network, so it is
finetuning with weight transfer; its penalty is (λ/2) ||.||². All tasks have equal shares there too,
whereas the paper tunes them.
"""

from typing import Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from classgrad.methods.penalty.base import Anchored, Strength, weights_of
from classgrad.methods.penalty.ewc import fisher
from classgrad.networks.network import Network
from classgrad.tasks import Task


class IMM(Anchored):
    """Learn each task from the weights of the last; predict with their average."""

    name: ClassVar[str] = "imm"
    summary: ClassVar[str] = "Incremental Moment Matching: merged weights (NIPS 2017)"

    strength: Strength = Field(default=0.005, description="weight of the transfer penalty (λ)")
    merge: Literal["mean", "mode"] = Field(
        default="mode", description="merge with equal shares, or by Fisher information"
    )
    samples: int = Field(default=2000, ge=2, description="mode: training samples to estimate F")

    _merged: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _precision: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # Σ F, for the mode

    def begin_task(self, net: Network, task: Task) -> None:
        """Continue from the weights the last task ended with."""
        write(net, self._anchor)

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Keep the task's own weights, and give the network the merged ones."""
        own = weights_of(net)
        equal = 1 / (self._learnt + 1)
        shares = {name: weight.new_tensor(equal) for name, weight in own.items()}
        if self.merge == "mode":
            new = fisher(net, task, self.samples, generator)
            before = self._precision
            self._precision = {n: before[n] + new[n] if before else new[n] for n in new}
            # The first F above 0 has a share of 1 and replaces the mean until then.
            shares = {
                n: torch.where(total > 0, new[n] / total, equal)
                for n, total in self._precision.items()
            }
        before = self._merged or own
        self._merged = {name: before[name].lerp(own[name], shares[name]) for name in own}
        self.keep(own, {name: weight.new_ones(()) for name, weight in own.items()})
        write(net, self._merged)

    def state_dict(self) -> dict[str, Any]:
        """Return the last task's own weights, the merged ones and, for the mode, Σ F."""
        merged, precision = dict(self._merged), dict(self._precision)
        return {**super().state_dict(), "merged": merged, "precision": precision}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        super().load_state_dict(state, net)
        self._merged, self._precision = dict(state["merged"]), dict(state["precision"])


@torch.no_grad()
def write(net: Network, weights: dict[str, Tensor]) -> None:
    """Give the network these weights."""
    parameters = net.shared_parameters()
    for name, weight in weights.items():
        parameters[name].copy_(weight)
