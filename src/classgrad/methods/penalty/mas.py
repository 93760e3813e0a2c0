"""Memory Aware Synapses (Aljundi, Babiloni, Elhoseiny, Rohrbach, Tuytelaars; ECCV 2018).

After a task, Ω grows for each weight by the mean over samples of |∂ ||f(x)||² / ∂θ|: how much the
squared length of the output, the logits of the task's own head, depends on the weight. No label is
used. The loss of the next task is

    L_ce + λ Σ_k Ω_k (θ_k - θ*_k)²,

with θ* the weights after the latest task.

Differences from the released code: it takes the absolute value of the gradient of a whole batch,
where opposite signs cancel; here, as the paper has it, of each sample. The penalty acts by an
implicit step (`classgrad.methods.penalty.base`).
"""

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from classgrad.methods.penalty.base import Anchored, Strength, weights_of
from classgrad.methods.penalty.sensitivity import sensitivity
from classgrad.networks.network import Network
from classgrad.tasks import Task


class MAS(Anchored):
    """Pull each weight to its anchor by how much the outputs depend on it."""

    name: ClassVar[str] = "mas"
    summary: ClassVar[str] = "Memory Aware Synapses: output sensitivity (ECCV 2018)"

    strength: Strength = Field(default=1.0, description="weight of the penalty (λ)")
    samples: int = Field(default=2000, ge=2, description="training samples to estimate Ω, at most")

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Add this task's sensitivities, and make the current weights the anchor."""
        parameters = net.shared_parameters()
        new = sensitivity(net, task, parameters, squared_length, torch.abs, self.samples, generator)
        old = self._importance
        self.keep(weights_of(net), {n: old[n] + new[n] for n in new} if old else new)


def squared_length(logits: Tensor, labels: Tensor) -> Tensor:
    """Return ||f(x)||² of each sample; labels are not used."""
    return logits.square().sum(1)
