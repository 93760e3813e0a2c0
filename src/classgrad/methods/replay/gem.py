"""Gradient Episodic Memory (Lopez-Paz, Ranzato; NIPS 2017).

The memory holds samples of finished tasks. With g the gradient of the current batch and g_k that of
the samples of finished task k, over the trunk and all heads, a step must not raise the loss of any
of them: g_kᵀ g̃ >= 0 for all k. If g violates one of these constraints, it is replaced by the
closest g̃ that satisfies all, found in the dual: with the rows g_k in G,

    min_v ½ vᵀ (G Gᵀ + ridge I) v + (G g)ᵀ v  subject to  v >= margin,   g̃ = Gᵀ v + g.

With margin γ = 0 and no ridge, g̃ is the projection of g onto the cone. The margin is the least
weight of every g_k in g̃, which favours earlier tasks. The ridge keeps v finite where the g_k are
linearly dependent; gradients whose square is far below it are hardly corrected. The step that the
optimiser makes of g̃ is projected onto the cone exactly, with neither margin nor ridge, so that it
satisfies all constraints whatever the optimiser adds (`classgrad.methods.replay.base`).

Differences from the paper: γ is a lower bound of v, as in the released code, where the paper adds
it to v; `memory` counts samples of all tasks together, with an equal share for each task so far
(the paper: 256 per task); a step uses `memory_batch` random samples of each task (0: all, as in the
paper); kept samples are drawn at random with balanced classes, not the last ones seen.
"""

from dataclasses import InitVar
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from classgrad.errors import Diverged
from classgrad.methods.base import Step
from classgrad.methods.replay.base import Episodic, Gradient
from classgrad.networks.network import Network


class GEM(Episodic):
    """Find the closest gradient that raises the loss of no finished task."""

    name: ClassVar[str] = "gem"
    summary: ClassVar[str] = "Gradient Episodic Memory: one constraint per task (NIPS 2017)"
    aliases: ClassVar[dict[str, str]] = {"gamma": "margin"}

    memory_batch: int = Field(
        default=64,
        ge=0,
        description="samples of each finished task in every step; 0: all that are kept",
    )
    margin: float = Field(
        default=0.5, ge=0, le=1e6, description="least weight of each task's gradient in a step (γ)"
    )
    ridge: float = Field(default=1e-3, gt=0, description="added to the diagonal of G Gᵀ")

    if TYPE_CHECKING:  # aliases, see Settings
        gamma: InitVar[float] = margin

    def references(self, net: Network, step: Step) -> list[Gradient]:
        """Return the rows g_k, one for each finished task."""
        tasks = self._memory.tasks(least=self._least)
        return [self.task_gradient(net, task, step) for task in tasks]

    def correction(self, along: Tensor, square: Tensor) -> Tensor | None:
        """Replace the gradient if it points against that of a finished task."""
        return closest_within(along, square, self.margin, self.ridge)

    def closest(self, along: Tensor, square: Tensor) -> Tensor | None:
        """Project a direction onto the cone of those that raise the loss of no finished task."""
        return closest_within(along, square)

    def task_gradient(self, net: Network, task: int, step: Step) -> Gradient:
        """Return g_k, the gradient of the mean loss over kept samples of a task."""
        count = len(self._memory.parts[task])
        if self.memory_batch:
            count = max(self.memory_batch, self._per_task)
        index = self._memory.rows(task, count, step.generator)
        return self.gradient_of(self.task_loss(net, task, index, step.generator), step)


def closest_within(
    along: Tensor, square: Tensor, margin: float = 0.0, ridge: float = 0.0
) -> Tensor | None:
    """Return the v of g̃ = Gᵀ v + g from G g and G Gᵀ, or None if G g >= 0."""
    if (along >= 0).all():
        return None
    if not square.isfinite().all():
        raise Diverged("the gradient of kept samples is not a finite number: lower learning_rate")
    square = square + ridge * torch.eye(len(square), dtype=square.dtype)
    kept = square.diagonal() > 0  # without a ridge, a row of zeros constrains nothing
    v = torch.zeros_like(along)
    v[kept] = minimise_above(square[kept][:, kept], along[kept], margin)
    return v


def minimise_above(q: Tensor, c: Tensor, lower: float = 0.0) -> Tensor:
    """Return the v >= lower that minimises ½ vᵀ Q v + cᵀ v; Q (n x n) is positive definite.

    With u = v - lower, that is the non-negative least squares problem min ‖A u - b‖ for any A and b
    with Aᵀ A = Q and Aᵀ b = -(c + Q lower), here by the eigenvectors of Q. Q is scaled to a unit
    diagonal first: gradients of tasks differ by orders of magnitude, and the eigenvectors of the
    small ones would otherwise be lost in rounding. Directions in which Q is zero up to rounding
    cost nothing and are left out.

    >>> q = torch.tensor([[2.0, 1.0], [1.0, 2.0]])
    >>> minimise_above(q, torch.tensor([-3.0, 1.0]), 0.0).round(decimals=9).tolist()
    [1.5, 0.0]
    """
    from scipy.optimize import nnls

    q, c = q.double(), c.double()
    scale = q.diagonal().rsqrt()
    values, vectors = torch.linalg.eigh(q * scale * scale[:, None])
    kept = values > len(c) * torch.finfo(q.dtype).eps * values[-1]
    roots, vectors = values[kept].sqrt(), vectors[:, kept]
    a, b = roots[:, None] * vectors.T, -(vectors.T @ (scale * (c + lower * q.sum(1)))) / roots
    u, _ = nnls(a.numpy(), b.numpy(), maxiter=100 * len(c))
    return torch.from_numpy(np.asarray(u)) * scale + lower
