"""APD with hierarchical knowledge consolidation, APD(2) of the same paper (Yoon et al.; ICLR 2020).

Every s tasks (`consolidate_every`), and layer by layer, the own parts τ_i of all finished tasks are
grouped by k-means, k = 0.4 for each task (`clusters`): 2 for 5, 4 for 10. Entries that are nearly
the same for all tasks of a group, max_i τ_i - min_i τ_i <= 0.01 (`spread`), move to a common part
of the group, with (max + min) / 2 as their value; the rest stays with its task:

    θ_i = σ ⊙ m_i + (common part of i's group) + τ_i.

A weight changes by at most half of `spread`. A task alone in its group keeps its whole part. When
groups are formed again, common parts are first added back to each of their tasks. In between,
common parts do not move; the own parts follow σ as in APD.

k-means is Lloyd's algorithm, from k tasks drawn at random, with at most 100 iterations. It needs
only the inner products of the parts: the squared distance of part i to the mean of group G is
P_ii - 2 mean_{j in G} P_ij + mean_{j,l in G} P_jl, with P_ij the product of τ_i and τ_j.

Differences from the released code: as for APD; k is rounded, there truncated, and k-means always
starts from random tasks, there also from its last centres. A task learnt after a grouping has only
its own part until the next.
"""

from collections.abc import Sequence
from typing import ClassVar

import torch
from pydantic import Field
from torch import Generator, Tensor

from classgrad.methods.structure.apd import APD, Decomposed, Sparse
from classgrad.networks.network import Network
from classgrad.tasks import Task

MAX_ITERATIONS = 100  # of k-means


class APD2(APD):
    """APD that moves nearly equal entries of similar tasks to a common part of their group."""

    name: ClassVar[str] = "apd2"
    summary: ClassVar[str] = "APD(2): what similar tasks keep is consolidated (ICLR 2020)"

    consolidate_every: int = Field(default=5, ge=1, description="tasks between two groupings")
    clusters: float = Field(
        default=0.4, gt=0, le=1, description="groups for each task learnt so far"
    )
    spread: float = Field(
        default=0.01,
        ge=0,
        description="entries that differ by at most this within a group become common",
    )

    def end_task(self, net: Network, task: Task, generator: Generator) -> None:
        """Keep the own parts, and consolidate them every `consolidate_every` tasks."""
        super().end_task(net, task, generator)
        if self.learnt % self.consolidate_every == 0:
            for layer in self.layers.values():
                consolidate(layer, self.clusters, self.spread, generator)


@torch.no_grad()
def consolidate(layer: Decomposed, clusters: float, spread: float, generator: Generator) -> None:
    """Group the finished tasks of a layer, and move nearly equal entries to common parts."""
    whole = [Sparse.of(layer.tau(task)) for task in range(len(layer.own))]
    layer.own, layer.common = list(whole), [None] * len(whole)
    count = max(1, round(clusters * len(whole)))
    groups = k_means(products(whole, layer.weight), count, generator)
    for group in range(count):
        tasks = [task for task, of in enumerate(groups) if of == group]
        if len(tasks) < 2:
            continue
        common, rest = split([whole[task] for task in tasks], spread, layer.weight)
        for task, own in zip(tasks, rest, strict=True):
            layer.own[task], layer.common[task] = own, common


def split(parts: Sequence[Sparse], spread: float, like: Tensor) -> tuple[Sparse, list[Sparse]]:
    """Return the common part of some parts, and the rest of each.

    Parts are made dense one at a time, as there may be many.
    """
    low = high = parts[0].dense(like)
    for part in parts[1:]:
        dense = part.dense(like)
        low, high = torch.minimum(low, dense), torch.maximum(high, dense)
    alike = high - low <= spread
    common = Sparse.of((low + high) / 2 * alike)
    return common, [Sparse.of(part.dense(like) * ~alike) for part in parts]


def products(parts: Sequence[Sparse], like: Tensor) -> Tensor:
    """Return the Gram matrix of the parts, in double precision."""
    gram = torch.zeros(len(parts), len(parts), dtype=torch.float64)
    for i, left in enumerate(parts):
        flat = left.dense(like).flatten().cpu().double()
        for j, right in enumerate(parts[: i + 1]):
            index, value = right.index.cpu(), right.value.cpu().double()
            gram[i, j] = gram[j, i] = flat.index_select(0, index) @ value
    return gram


def k_means(gram: Tensor, count: int, generator: Generator) -> list[int]:
    """Return the group of each point, from the Gram matrix of the points.

    A group that loses all its points stays empty.
    """
    points = len(gram)
    groups = torch.full((points,), -1)
    share = torch.zeros(count, points, dtype=gram.dtype)  # of each point in the mean of each group
    share[torch.arange(count), torch.randperm(points, generator=generator)[:count]] = 1
    for _ in range(MAX_ITERATIONS):
        # Without ||x_i||², which is the same for all groups.
        distance = (share @ gram * share).sum(1)[:, None] - 2 * share @ gram
        distance[share.sum(1) == 0] = torch.inf
        nearest = distance.argmin(0)
        if torch.equal(nearest, groups):
            break
        groups = nearest
        members = torch.nn.functional.one_hot(groups, count).T.to(gram.dtype)
        share = members / members.sum(1, keepdim=True).clamp(min=1)
    return groups.tolist()
