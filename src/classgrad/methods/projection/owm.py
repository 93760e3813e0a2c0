"""Orthogonal Weights Modification (Zeng, Chen, Cui, Yu; Nature Machine Intelligence 2019).

Every layer y = W x has a symmetric matrix P (d x d), initially the identity. With r the mean of the
layer's input over some samples (a row, 1 x d) and k = P rᵀ,

    P <- P - k kᵀ / (α + r k)

and a later gradient g of W becomes g P. Over all rows R so far P = (I + Σ rᵀ r / α)⁻¹: it shrinks
directions that inputs have used, the more the smaller α, and leaves the others. A step along g P
changes the output for a mean input r, learnt with α, by at most √α/2 ||g||. Within a task α falls
from nearly 1 to its last value a: α = a^λ with λ = 1/n, 2/n, ..., 1 over the n batches.

`update="task"`, the paper's form, updates P in a pass in evaluation mode over a finished task, so
that P is constant while a task is learnt and does not restrict the first one. `update="step"`, that
of the released code, updates P with every training batch, before P multiplies the gradient of that
batch, so that the first task is restricted too.

A convolution has a row for each patch of a mean image. By default (`patches="mean"`) the n patches
of an image are divided by √n, so that together they have the weight of one row, the mean of the
n matrices rᵀ r. With `patches="sum"`, as in the released code, each has the weight of a row: the
first convolution then sees 256 rows of 48 inputs with every batch, and no direction is left after
one task. Rows R with the same α are learnt together,

    P <- P - P Rᵀ (α I + R P Rᵀ)⁻¹ R P,

which equals one update after another (Woodbury). Only Rᵀ R matters: more rows than d are replaced
by the triangular factor of R, d rows with the same Rᵀ R. A Linear layer multiplies its few input
rows by P instead of its gradient, which is the same: g P = Δᵀ (X P).

With SGD without weight decay each gradient is multiplied by P once. With `update="step"` its
momentum holds gradients that were multiplied by an earlier P, as in the released code. For weight
decay and Adam, whose updates are not sums of gradients, the update W after - W before is multiplied
by P too, so the part that comes from the gradient is multiplied by P twice.

Differences from the released code: all layers' biases, and scale and shift of shared norms, are
frozen after the first task (its networks have none); λ reaches 1 in the last batch (there it stops
one batch short); the patches of an image weigh as much as one row; rows can be means of fewer
samples than a batch (`mean_of`); the best epoch is not
chosen by test accuracy. As there, by default every second patch along each axis counts
(`patch_stride`), and clipping, off unless it is set, comes after the product with P.
"""

from collections.abc import Sequence
from dataclasses import InitVar
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn

from classgrad.core.layers import Site, Source, tap
from classgrad.core.linalg import from_upper_half, upper_half
from classgrad.core.projector import Projection, Projector, updates_follow_gradients
from classgrad.errors import Diverged, UserError
from classgrad.methods.base import LayerRank, Method, Step
from classgrad.methods.projection.base import COLLECT_BATCH, layer_values
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.tasks import Task, batches

# Smaller values are lost in the rounding of R P Rᵀ.
Damping = Annotated[float, Field(ge=1e-8, le=1)]


class ShrinkingProjection(Projection):
    """Multiplies matrices by the P of one site."""

    rows_only = True  # a gradient does not show whether it was multiplied by P already

    def __init__(self, site: Site, matrix: Tensor | None = None) -> None:
        self.by_rows = False
        self.like = site.weight.detach()
        eye = torch.eye(site.dimension, dtype=torch.float64)
        self.set_matrix(eye if matrix is None else matrix)

    def set_matrix(self, matrix: Tensor) -> None:
        """Set P (d x d, float64, on the CPU), and its copy in the weights' type and device."""
        self.matrix, self.rounded = matrix, matrix.to(self.like)

    def project(self, matrix: Tensor) -> Tensor:
        """Return matrix P."""
        return matrix @ self.rounded.to(matrix.dtype)

    def leaks(self, gradient: Tensor, matrix: Tensor) -> bool:
        """Return False: gradients formed from rows are multiplied by P already."""
        return False


class OWM(Method):
    """Multiply every gradient by a matrix that shrinks what earlier inputs have used."""

    name: ClassVar[str] = "owm"
    summary: ClassVar[str] = "Orthogonal Weights Modification (Nature Machine Intelligence 2019)"
    aliases: ClassVar[dict[str, str]] = {"alpha": "damping"}
    on_cpu: ClassVar[bool] = True  # P is in double precision, which not every device has
    parallel: ClassVar[bool] = True

    damping: Damping | dict[str, Damping] = Field(
        default=1e-3, description="last α of every task; or values by layer name, '*' for the rest"
    )
    update: Literal["task", "step"] = Field(
        default="task",
        description="when P learns: at the end of a task, or from every training batch",
    )
    mean_of: int = Field(
        default=COLLECT_BATCH,
        ge=1,
        le=COLLECT_BATCH,
        description="update=task: samples averaged for one row r",
    )
    patch_stride: int = Field(
        default=2,
        ge=1,
        description="stride along each axis between the patches of a convolution that count",
    )
    patches: Literal["mean", "sum"] = Field(
        default="mean",
        description="whether all patches of an image together count as one row, or each as one",
    )
    clip: float = Field(
        default=0.0, ge=0, description="largest norm of all gradients together; 0: any"
    )

    if TYPE_CHECKING:  # aliases, see Settings
        alpha: InitVar[Damping | dict[str, Damping]] = damping

    _projections: dict[str, ShrinkingProjection] = PrivateAttr(default_factory=dict)
    _frozen: list[str] = PrivateAttr(default_factory=list)
    _projector: Projector | None = PrivateAttr(default=None)

    @property
    def matrices(self) -> dict[str, Tensor]:
        """P by site (d x d, float64), without sites that have learnt nothing yet."""
        return {name: projection.matrix for name, projection in self._projections.items()}

    @property
    def projector(self) -> Projector:
        """The projector of the network given to `wrap`."""
        assert self._projector is not None, "wrap a network first"
        return self._projector

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Protect the part of the network that tasks share."""
        self._projector = Projector(net.protected(), self.processes.most_rows)
        layer_values(self.damping, self.projector.sites)
        return net

    def begin_task(self, net: Network, task: Task) -> None:
        """Form the gradients of Linear layers from rows multiplied by P."""
        if self.update == "step":
            for name in self.projector.sites:
                self._projection(name)
            self.projector.set_projections(self._projections, self._frozen)
        self.projector.install()

    def continue_task(self, net: Network, task: Task) -> None:
        """Resume the task as it was begun."""
        self.begin_task(net, task)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return cross-entropy; with update=step P learns from the batch before `backward`."""
        if self.update == "task":
            return super().loss(net, step)
        with tap(self.projector.sites.values()) as seen:
            loss = super().loss(net, step)
        self._learn(seen, (step.number + 1) / step.steps, len(step.batch), step.shard)
        return loss

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Multiply the gradients by P, then clip them."""
        self.projector.project_gradients()
        if self.clip:
            moved = [p for group in step.optimizer.param_groups for p in group["params"]]
            nn.utils.clip_grad_norm_(moved, self.clip)
        if not updates_follow_gradients(step.optimizer):
            self.projector.keep_weights()

    def after_step(self, net: Network, step: Step) -> None:
        """Multiply the update by P, for optimisers that need it."""
        self.projector.after_step()

    @torch.no_grad()
    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Learn P from the task's data, and freeze all parameters that are not weight matrices."""
        self.projector.remove()
        if self.update == "task":
            net.eval()
            dtype = next(net.parameters()).dtype
            order = list(batches(len(task.train), COLLECT_BATCH, generator))
            for number, index in enumerate(order, start=1):
                with self.sharded(net, len(index)) as shard:
                    images = task.train.unit_images(index[shard.part], dtype)
                    with tap(self.projector.sites.values()) as seen:
                        net(task.transform(images), task.id)
                    self._learn(seen, number / len(order), self.mean_of, shard)
        self._frozen = self.projector.non_matrix_parameters(net.protected().modules())
        self.projector.set_projections(self._projections, self._frozen)
        self.broadcast_state(net)

    def _learn(
        self, seen: dict[Source, list[Tensor]], share: float, mean_of: int, shard: Shard
    ) -> None:
        """Update P of every layer that was called; `share` is λ."""
        last = layer_values(self.damping, self.projector.sites)
        for name, site in self.projector.sites.items():
            for x in seen.get(site.source, []):
                rows = mean_rows(
                    site, x, mean_of, self.patch_stride, shard, together=self.patches == "mean"
                )
                if not rows.isfinite().all():
                    raise Diverged(f"layer '{name}' saw an input that is not a finite number")
                projection = self._projection(name)
                try:
                    projection.set_matrix(
                        woodbury_update(projection.matrix, rows, last[name] ** share)
                    )
                except torch.linalg.LinAlgError:
                    raise UserError(
                        f"layer '{name}' has inputs too large for damping={last[name]:g}: raise it"
                    ) from None

    def _projection(self, name: str) -> ShrinkingProjection:
        """Return the projection of a site; P is the identity if it has not learnt."""
        if name not in self._projections:
            self._projections[name] = ShrinkingProjection(self.projector.sites[name])
        return self._projections[name]

    def close(self) -> None:
        """Remove every hook."""
        if self._projector is not None:
            self._projector.remove()

    def gradient_projector(self) -> Projector | None:
        """Return the projector."""
        return self._projector

    def layer_ranks(self) -> list[LayerRank]:
        """Return d - trace P for each layer: the total number of directions shrunk away."""
        ranks = []
        for name, site in self.projector.sites.items():
            used = (
                site.dimension - float(self.matrices[name].trace())
                if name in self._projections
                else 0
            )
            ranks.append(LayerRank(name, site.dimension, round(used)))
        return ranks

    def state_dict(self) -> dict[str, Any]:
        """Return P of every layer that has learnt, and the names of frozen parameters.

        P is symmetric: half of it is enough.
        """
        halves = {name: upper_half(p) for name, p in self.matrices.items()}
        return {"matrices": halves, "frozen": list(self._frozen)}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        self._projector = Projector(net.protected(), self.processes.most_rows)
        sites = self.projector.sites
        self._projections = {
            name: ShrinkingProjection(sites[name], whole(p, sites[name].dimension))
            for name, p in state["matrices"].items()
        }
        self._frozen = list(state["frozen"])
        self.projector.set_projections(self._projections, self._frozen)


def whole(half: Tensor, dimension: int) -> Tensor:
    """Return the matrix of an upper half; a whole matrix, as earlier versions saved, as it is.

    >>> whole(torch.tensor([1.0, 2.0, 3.0]), 2).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    return half if half.dim() == 2 else from_upper_half(half, dimension)


def mean_rows(
    site: Site,
    x: Tensor,
    mean_of: int,
    patch_stride: int,
    shard: Shard | None = None,
    *,
    together: bool = False,
) -> Tensor:
    """Input of a layer (n, ...) -> rows of its means over about `mean_of` samples each, float64.

    With `together` the rows of a mean are divided by the square root of their number, so that they
    have the Rᵀ R of one row.
    """
    if shard is None or shard.is_whole:
        parts = x.tensor_split(max(1, len(x) // mean_of))
        means = torch.stack([part.mean(0) for part in parts])
    else:
        means = means_of_whole(x, max(1, shard.whole // mean_of), shard)
    rows = site.rows(means, patch_stride).cpu().double()
    return rows * (len(means) / len(rows)) ** 0.5 if together and len(rows) > len(means) else rows


def means_of_whole(x: Tensor, groups: int, shard: Shard) -> Tensor:
    """Shard of an input -> means of the whole over `groups` groups of samples of about one size."""
    parts = torch.arange(shard.whole).tensor_split(groups)
    sizes = torch.tensor([len(part) for part in parts])
    group = torch.arange(groups).repeat_interleave(sizes)[shard.part]
    sums = x.new_zeros(groups, *x.shape[1:]).index_add(0, group.to(x.device), x)
    return shard.sum(sums) / sizes.to(x).view(-1, *[1] * (x.dim() - 1))


def woodbury_update(p: Tensor, rows: Tensor, alpha: float) -> Tensor:
    """P (d x d) and rows R (n x d) -> P - P Rᵀ (α I + R P Rᵀ)⁻¹ R P, symmetric like P.

    >>> woodbury_update(torch.eye(2), torch.tensor([[1.0, 0.0]]), alpha=1.0).tolist()
    [[0.5, 0.0], [0.0, 1.0]]
    """
    if len(rows) > len(p):
        rows = torch.linalg.qr(rows, mode="r").R  # fewer rows with the same Rᵀ R
    r_p = rows @ p
    inner = r_p @ rows.T
    inner.diagonal().add_(alpha)
    half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), r_p, upper=False)
    p = torch.addmm(p, half.T, half, alpha=-1)
    return (p + p.T) / 2
