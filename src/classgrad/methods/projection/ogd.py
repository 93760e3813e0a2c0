"""Orthogonal Gradient Descent (Farajtabar, Azizan, Mott, Li; AISTATS 2020), variant OGD-GTL.

After a task, for `samples` of its training samples (x, y), the gradient of the logit of the true
class, ∇ f_y(x; w) with respect to all parameters w that tasks share, joins an orthonormal basis S
(one vector per row). Later gradients become

    g <- g - Sᵀ (S g),

so that to first order in the step no stored logit changes. w is one flat vector: weights, biases,
and scale and shift of norms that tasks share. Parameters of a single task, its head and with
affine=task its scale and shift, move in no other task and are not part of w.

Samples go through the network in evaluation mode, in random batches of 64, because BatchNorm may
use their statistics. These count as constants (`Network.detached_batch_stats`): the gradient is
that of one sample's logit through its own activations, one `backward` for each.

New gradients are divided by their length, projected out of S and orthogonalised as a block, twice;
a gradient that depends on others (all but 1e-10 of its energy is in their span) adds nothing. S has
the precision of the network and takes #vectors x #parameters numbers, and every step reads it
twice, so `samples` and `max_vectors` are budgets: when `max_vectors` are held, later tasks add
none, and those held stay.

For SGD without weight decay, projecting the gradients is enough. For weight decay, Adam and
momentum from before S grew, the update w after - w before is projected too.

Differences from the paper: gradients are orthogonalised in blocks, with dependent ones dropped,
where the paper's Gram-Schmidt takes one after another; BatchNorm, which its networks do not have.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from classgrad.core.projector import TrustedOptimizers
from classgrad.methods.base import LayerRank, Method, Step
from classgrad.methods.flat import gather, gram, split, write
from classgrad.methods.projection.base import COLLECT_BATCH
from classgrad.networks.network import Network
from classgrad.tasks import Task, batches

# A gradient with less than this share of its energy outside the span of others depends on them.
DEPENDENT = 1e-10


class OGD(Method):
    """Keep updates orthogonal to the gradients of earlier tasks' logits."""

    name: ClassVar[str] = "ogd"
    summary: ClassVar[str] = "Orthogonal Gradient Descent: stored gradients, OGD-GTL (AISTATS 2020)"
    parallel: ClassVar[bool] = True  # the main process computes what a task adds to S

    samples: int = Field(
        default=200, ge=1, description="training samples whose gradients a task adds"
    )
    max_vectors: int = Field(
        default=2000,
        ge=1,
        description="directions to hold in all; once reached, no task adds more",
    )

    _weights: list[nn.Parameter] = PrivateAttr(default_factory=list)
    _basis: Tensor = PrivateAttr(default_factory=lambda: torch.zeros(0, 0))
    _before: Tensor | None = PrivateAttr(default=None)
    _trusted_optimizers: TrustedOptimizers = PrivateAttr(default_factory=TrustedOptimizers)

    @property
    def basis(self) -> Tensor:
        """Orthonormal rows (vectors x parameters) that no later update has a part in."""
        return self._basis

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Find the parameters that tasks share."""
        self._weights = list(net.shared_parameters().values())
        self._hold(torch.zeros(0, sum(weight.numel() for weight in self._weights)))
        return net

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Remove the part of the gradient that would change stored logits."""
        self._before = None
        if not len(self._basis):
            return
        gradient = gather(self._weights, [weight.grad for weight in self._weights])
        write(self._weights, self._project_(gradient))
        if not self._trusted_optimizers.includes(
            step.optimizer, self._weights, step.fresh_optimizer
        ):
            self._before = gather(self._weights, self._weights)

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Project the update too, for optimisers that need it."""
        if self._before is not None:
            update = gather(self._weights, self._weights) - self._before
            after = self._project_(update).add_(self._before)
            for weight, part in zip(self._weights, split(self._weights, after), strict=True):
                weight.copy_(part)
        self._before = None

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Add the gradients of some of the task's samples."""
        count = min(self.samples, len(task.train), self.max_vectors - len(self._basis))
        if count and self._weights:  # none if the trunk is frozen
            basis = self._basis.to(self._weights[0])

            def new() -> Tensor:
                return outside(basis, self.gradients(net, task, count, generator))

            self._hold(torch.cat([basis, self.processes.broadcast_rows(new, basis)]))

    def gradients(self, net: Network, task: Task, count: int, generator: torch.Generator) -> Tensor:
        """Return ∇ f_y(x; w) of `count` random training samples (count x parameters)."""
        net.eval()
        gradients = self._weights[0].detach().new_empty(count, self._basis.shape[1])
        done = 0
        for index in batches(len(task.train), COLLECT_BATCH, generator):
            chosen = index[: count - done]
            with net.detached_batch_stats():
                x = task.transform(task.train.unit_images(index, gradients.dtype))
                rows = torch.arange(len(chosen))
                logits = net(x, task.id)[rows, task.train.labels[chosen]]
            for logit in logits:
                parts = torch.autograd.grad(
                    logit, self._weights, retain_graph=True, materialize_grads=True
                )
                gradients[done] = gather(self._weights, parts)
                done += 1
            if done == count:
                break
        return gradients

    def _hold(self, basis: Tensor) -> None:
        self._basis = basis
        self._trusted_optimizers.forget()

    def _project_(self, flat: Tensor) -> Tensor:
        """Return g - Sᵀ (S g), computed in place."""
        return flat.addmv_(self._basis.T, self._basis @ flat, alpha=-1)

    def layer_ranks(self) -> list[LayerRank]:
        """Return how many directions are held, of all parameters as one vector."""
        held, dimension = self._basis.shape
        return [LayerRank("parameters", dimension, held)] if dimension else []

    def state_dict(self) -> dict[str, Any]:
        """Return the basis."""
        return {"basis": self._basis}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        self._weights = list(net.shared_parameters().values())
        self._hold(state["basis"])


def outside(basis: Tensor, rows: Tensor) -> Tensor:
    """Orthonormal basis (k x p) and rows (m x p) -> orthonormal rows that extend its span."""
    rows = nn.functional.normalize(rows, dim=1)
    # Twice, because the first pass magnifies rounding in rows that are nearly inside the basis.
    for _ in range(2):
        rows = orthonormal(rows - (rows @ basis.T) @ basis)
    return rows


def orthonormal(rows: Tensor) -> Tensor:
    """Rows of at most unit length (m x p, m << p) -> orthonormal rows, without dependent ones.

    They are products of the rows with the eigenvectors of the small m x m Gram matrix, divided by
    the roots of its eigenvalues.
    """
    values, vectors = torch.linalg.eigh(gram([[row] for row in rows]))
    kept = values > DEPENDENT
    directions: Tensor = (vectors[:, kept] / values[kept].sqrt()).T.to(rows) @ rows
    return directions
