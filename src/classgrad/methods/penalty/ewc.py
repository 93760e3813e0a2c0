"""Elastic Weight Consolidation (Kirkpatrick et al.; PNAS 2017), as merged online by HAT's code.

After a task, F holds for each weight the diagonal of the Fisher information: the mean over training
samples of (∂ log p(y|x) / ∂θ)², a gradient per sample. The loss of the next task is

    L_ce + (λ/2) Σ_k F_k (θ_k - θ*_k)².

`merge="average"` keeps one F and one θ* for all tasks, as the code of HAT (Serrà et al.; ICML 2018)
does: after task t, F <- ((t - 1) F_old + F_new) / t, and θ* are the weights after the latest task.
`merge="sum"` is the paper's one penalty for each task, with its own F_t and θ*_t. Their sum is, up
to a constant, one penalty with F = Σ F_t and θ* = Σ F_t θ*_t / F, which is what is stored.

`fisher="labels"` takes y from the data (the empirical Fisher, as HAT's code does);
`fisher="sampled"` draws y from the network's own prediction: the Fisher information proper.

Differences from HAT's code: it squares the mean gradient of batches of 20, in training mode with
dropout; here gradients are squared per sample. The two differ from layer to layer by factors that
depend on the mean gradient and on how gradients in a batch cancel, so its λ = 5000 does not carry
over by any factor: choose λ on validation data. Gradients are not clipped, and the penalty acts by
an implicit step (`classgrad.methods.penalty.base`).
"""

from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from classgrad.methods.base import World
from classgrad.methods.penalty.base import Anchored, Strength, weights_of
from classgrad.methods.penalty.sensitivity import sensitivity
from classgrad.networks.network import Network
from classgrad.tasks import Task


class EWC(Anchored):
    """Pull each weight to its anchor by its Fisher information."""

    name: ClassVar[str] = "ewc"
    summary: ClassVar[str] = "Elastic Weight Consolidation: Fisher penalty (PNAS 2017)"
    factor: ClassVar[float] = 1.0  # the penalty has λ/2
    parallel: ClassVar[bool] = True

    strength: Strength = Field(default=250.0, description="weight of the penalty (λ)")
    samples: int = Field(default=2000, ge=2, description="training samples to estimate F, at most")
    fisher: Literal["labels", "sampled"] = Field(
        default="labels",
        description="labels of the data, or drawn from the prediction (true Fisher)",
    )
    merge: Literal["average", "sum"] = Field(
        default="average",
        description="F averaged, latest weights (HAT's code); or penalties summed",
    )

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Merge this task's F and weights with those of the tasks before."""
        sampled = self.fisher == "sampled"
        # Sampled labels come from one generator in order, so each process goes over all batches.
        turns = None if sampled else self.processes
        new = fisher(net, task, self.samples, generator, sampled=sampled, processes=turns)
        weights = weights_of(net)
        if self._learnt == 0:
            self.keep(weights, new)
        elif self.merge == "average":
            t = self._learnt + 1
            f = {name: ((t - 1) * self._importance[name] + new[name]) / t for name in new}
            self.keep(weights, f)
        else:
            f = {name: self._importance[name] + new[name] for name in new}
            # Where F is 0 the anchor has no effect, so any share will do.
            anchor = {
                name: self._anchor[name].lerp(weights[name], (new[name] / f[name]).nan_to_num(0))
                for name in new
            }
            self.keep(anchor, f)
        self.broadcast_state(net)


def fisher(
    net: Network,
    task: Task,
    samples: int,
    generator: torch.Generator,
    *,
    sampled: bool = False,
    processes: World | None = None,
) -> dict[str, Tensor]:
    """Return the diagonal Fisher information of what all tasks share, by parameter name."""

    def log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
        if sampled:
            probabilities = logits.detach().softmax(1).cpu()  # where the generator is
            drawn = torch.multinomial(probabilities, 1, generator=generator)
            labels = drawn.flatten().to(labels.device)
        return -functional.cross_entropy(logits, labels, reduction="none")

    parameters = net.shared_parameters()
    return sensitivity(
        net,
        task,
        parameters,
        log_likelihood,
        torch.square,
        samples,
        generator,
        processes=processes,
    )
