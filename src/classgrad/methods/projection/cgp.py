"""Class Gradient Projection (Chen, Zhang, Song, Gao; ACM MM 2022), with all its parts.

Class bases.  After a task, for every layer and class, C holds the inputs of up to `samples`
training samples, by default of those classified correctly (BR-GTL; `correct_only=False` is BR-STD).
The main directions of C outside the basis S join S until it holds the share ε of ||C||² (Eq.
k-rank2).

Base refining.  P is the unit mean of the raw layer inputs of a class (Eq. prototype). A class whose
P has a cosine above η with that of an earlier class joins that class's group and adds fewer
directions. Among the classes of the first task, whose data are all available, a group's matrices
are concatenated and decomposed together; later, only S and prototypes of old classes are left, and
`rule` decides which directions count (`classgrad.core.selection`):

- `alg1`: as many directions as the class needs alone, stored ones included (Algorithm 1)
- `joint`: the strongest directions, stored or new, that hold ε (TRGP, which the paper cites)
- `official`: what the released CIFAR-100 script does, relative to the group's directions
- `gpm`: no classes: one pooled matrix per task

η = 1 switches refining off: plain CGP, which keeps no prototypes.

Contrast.  L = L_ce + λ L_con, where L_con pulls the embedding of an image towards that of its
AugMix copy and pushes it away from all others in the batch, at temperature μ.

Differences from the paper: Eq. k-rank2 compares with ||C||² (it prints ||Ĉ||²) and Eq. commonbase
is diag(Sᵀ C Cᵀ S); L_con is a mean over the batch, as in the code, not a sum; `alg1` never adds
more than plain.

Differences from the released code: one orthonormal S per layer and one projection, instead of
overlapping groups and one projection for each; the cosine keeps its sign; a group keeps all its
members; k is the smallest count that reaches ε (`gpm_compat=True` takes one less for the first
basis); ε stops growing at `energy_limit`. The AugMix copies are complete and new in every epoch,
with AugMix's own nine operations at severity 3 (the released code: thirteen at severity 1, one
chain only, drawn once); `severity` can be set.
"""

from collections.abc import Callable
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor
from torch.nn import functional

from classgrad.core import selection
from classgrad.core.collect import ClassInputs, Collected
from classgrad.core.subspace import Representation
from classgrad.data.augmix import augmix, refuse_range
from classgrad.errors import UserError
from classgrad.methods.base import LayerRank, Step
from classgrad.methods.projection.budget import Budgeted
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.tasks import Task


class Groups:
    """Prototypes of the classes so far, the group of each, and the basis columns of each group."""

    def __init__(self) -> None:
        self.prototypes: list[Tensor] = []
        self.group_of: list[int] = []
        self.cosines: list[float] = []  # with the most similar class; 1 for the first of a group
        self.columns: list[list[int]] = []

    def __len__(self) -> int:
        return len(self.columns)

    def find(self, prototype: Tensor, similarity: float) -> tuple[int, float]:
        """Return the group of the most similar class if its cosine exceeds η, else a new one.

        Also return that cosine (1 for a new group).
        """
        if self.prototypes:
            if self.prototypes[0].shape != prototype.shape:
                raise UserError(
                    f"a layer's inputs now have {len(prototype)} numbers, before "
                    f"{len(self.prototypes[0])}: class prototypes need images of one size"
                )
            cosines = torch.stack(self.prototypes).to(prototype) @ prototype
            nearest = int(cosines.argmax())
            # Rounding can give equal prototypes a cosine above 1; with η = 1 they must not merge.
            cosine = min(float(cosines[nearest]), 1.0)
            if cosine > similarity:
                return self.group_of[nearest], cosine
        return self.open(), 1.0

    def open(self) -> int:
        """Start a new group."""
        self.columns.append([])
        return len(self.columns) - 1

    def join(self, group: int, prototype: Tensor, cosine: float) -> None:
        """Add a class to a group."""
        self.prototypes.append(prototype.float())
        self.group_of.append(group)
        self.cosines.append(cosine)

    def gain(self, group: int, columns: list[int]) -> None:
        """Add basis columns to a group."""
        self.columns[group] = sorted({*self.columns[group], *columns})

    def forget(self, number: int) -> None:
        """Drop the prototype of a class: no later class is similar to it."""
        self.prototypes[number] = torch.zeros_like(self.prototypes[number])

    def keep(self, columns: list[int]) -> None:
        """Renumber the columns after all others were dropped from the basis."""
        renumbered = {old: new for new, old in enumerate(columns)}
        self.columns = [[renumbered[c] for c in group if c in renumbered] for group in self.columns]

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as tensors, numbers and lists."""
        return {
            "prototypes": torch.stack(self.prototypes),
            "group_of": list(self.group_of),
            "cosines": list(self.cosines),
            "columns": [list(columns) for columns in self.columns],
        }

    @classmethod
    def from_state(cls, state: dict[str, Any]) -> "Groups":
        """Return the groups of a state."""
        groups = cls()
        groups.prototypes = list(state["prototypes"])
        groups.group_of = list(state["group_of"])
        groups.cosines = list(state["cosines"])
        groups.columns = [list(columns) for columns in state["columns"]]
        return groups


class CGP(Budgeted):
    """Protect the share ε of every class; refine bases of similar classes; learn by contrast."""

    name: ClassVar[str] = "cgp"
    summary: ClassVar[str] = "Class Gradient Projection: bases per class, BR, contrast (MM 2022)"
    parallel: ClassVar[bool] = True
    aliases: ClassVar[dict[str, str]] = {
        "epsilon": "energy",
        "eta": "similarity",
        "lambda": "contrast",
        "mu": "temperature",
    }

    similarity: float = Field(
        default=0.7,
        ge=-1,
        le=1,
        description="cosine above which classes share a group (η); 1: never",
    )
    contrast: float = Field(
        default=0.1, ge=0, description="weight of the contrastive loss (λ); 0: off"
    )
    temperature: float = Field(
        default=0.5, gt=0, description="temperature of the contrastive loss (μ)"
    )
    rule: Literal["alg1", "joint", "official", "gpm"] = Field(
        default="alg1", description="which directions a class similar to an earlier one adds"
    )
    correct_only: bool = Field(
        default=True,
        description="bases from samples classified correctly (BR-GTL), else from any (BR-STD)",
    )
    severity: float = Field(default=3, gt=0, le=10, description="strength of AugMix, 0 to 10")

    if TYPE_CHECKING:  # aliases, see Settings
        eta: InitVar[float] = similarity
        mu: InitVar[float] = temperature

    _groups: dict[str, Groups] = PrivateAttr(default_factory=dict)

    def begin_task(self, net: Network, task: Task) -> None:
        """Refuse images that AugMix cannot handle before any is learnt."""
        super().begin_task(net, task)
        images = task.train.images
        if self.contrast and images.is_floating_point() and images.isfinite().all():
            refuse_range(images)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return L_ce + λ L_con (Eq. loss); the copies do not enter L_ce."""
        if self.contrast == 0:
            return super().loss(net, step)
        shard = step.shard
        copies = augmix(
            step.images,
            severity=self.severity,
            generator=step.generator,
            among=None if shard.is_whole else (shard.start, shard.whole),
        )
        embedding = net.embed(step.x, step.task.id)
        with net.frozen_bn_stats():  # predictions use statistics of real images
            of_copies = net.embed(step.task.transform(copies), step.task.id)
        entropy = functional.cross_entropy(net.classify(embedding, step.task.id), step.y)
        contrast = contrastive(embedding, of_copies, self.temperature, shard)
        return entropy + self.contrast * contrast

    def grow(self, gather: Callable[..., Collected]) -> Collected:
        """Add directions of every class of the task to every layer, in the order of classes."""
        collected = gather(correct_only=self.correct_only)
        classes = list(collected.classes.values())
        for name in self._subspaces:
            seen = [c for c in classes if name in c.representations]
            if not seen:
                continue
            groups = self._groups.setdefault(name, Groups())
            if self.rule == "gpm":
                self._grow_pooled(name, seen, groups)
            elif self._learnt == 0:
                self._grow_first(name, seen, groups)
            else:
                self._grow_later(name, seen, groups)
        return collected

    def _prototype(self, c: ClassInputs, name: str) -> Tensor:
        """Return the prototype of a class at a layer: an empty one where refining is off."""
        return torch.zeros(0) if self.similarity >= 1 else c.prototype(name)

    @property
    def _opening(self) -> Callable[[Tensor, Representation, float], selection.Selection]:
        """The rule for the directions of a class that opens a group."""
        return selection.complete if self.rule == "official" else selection.plain

    def _grow_pooled(self, name: str, classes: list[ClassInputs], groups: Groups) -> None:
        pooled = Representation.pooled([c.representations[name] for c in classes])
        chosen = selection.plain(self._subspaces[name].basis, pooled, self.thresholds()[name])
        group = groups.open()
        for c in classes:
            groups.join(group, self._prototype(c, name), 1.0)
        groups.gain(group, chosen.stored + self.add(name, chosen.new))

    def _grow_first(self, name: str, classes: list[ClassInputs], groups: Groups) -> None:
        """In the first task: group the classes, then decompose the pooled inputs of each group."""
        members: dict[int, list[Representation]] = {}
        for c in classes:
            group, cosine = groups.find(self._prototype(c, name), self.similarity)
            groups.join(group, self._prototype(c, name), cosine)
            members.setdefault(group, []).append(c.representations[name])
        for group, parts in members.items():
            basis, pooled = self._subspaces[name].basis, Representation.pooled(parts)
            chosen = self._opening(basis, pooled, self.thresholds()[name])
            groups.gain(group, chosen.stored + self.add(name, chosen.new))

    def _grow_later(self, name: str, classes: list[ClassInputs], groups: Groups) -> None:
        """In later tasks: compare each class with S; similar ones follow the refining rule."""
        epsilon = self.thresholds()[name]
        for c in classes:
            basis, own = self._subspaces[name].basis, c.representations[name]
            known = len(groups)
            group, cosine = groups.find(self._prototype(c, name), self.similarity)
            if group == known:
                chosen = self._opening(basis, own, epsilon)
            elif self.rule == "official":
                chosen = selection.official(basis, own, epsilon, groups.columns[group])
            else:
                chosen = getattr(selection, self.rule)(basis, own, epsilon)
            groups.join(group, self._prototype(c, name), cosine)
            groups.gain(group, chosen.stored + self.add(name, chosen.new))

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected; with refining also which classes merged."""
        refined = self._groups if self.similarity < 1 else {}
        merged = {name: (tuple(g.group_of), tuple(g.cosines)) for name, g in refined.items()}
        return [
            LayerRank(layer.name, layer.dimension, layer.rank, *merged.get(layer.name, ()))
            for layer in super().layer_ranks()
        ]

    def forget_class(self, number: int) -> None:
        """Forget the prototypes of a class; its directions stay, as others may share them."""
        for groups in self._groups.values():
            groups.forget(number)

    def keep(self, site: str, columns: list[int]) -> None:
        """Drop all but these columns of a site's basis, from its groups too."""
        super().keep(site, columns)
        self._groups[site].keep(columns)

    def state_dict(self) -> dict[str, Any]:
        """Return bases, prototypes and groups."""
        groups = {name: groups.state_dict() for name, groups in self._groups.items()}
        return {**super().state_dict(), "groups": groups}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        super().load_state_dict(state, net)
        self._groups = {name: Groups.from_state(part) for name, part in state["groups"].items()}


def contrastive(
    embedding: Tensor, of_copies: Tensor, temperature: float, shard: Shard | None = None
) -> Tensor:
    """Embeddings z, z' (n x d) -> mean_i -log(exp(z_i·z'_i / μ) / Σ_{k≠i} exp(z_i·z_k / μ)).

    Both are normalised first; k runs over all 2n embeddings but z_i itself, and only the n images
    are anchors, as in the paper's formula. With a shard of a batch, k runs over the whole batch.
    """
    shard = shard or Shard(len(embedding), 0, len(embedding))
    z = functional.normalize(embedding, dim=1)
    images, copies = shard.gather(z), shard.gather(functional.normalize(of_copies, dim=1))
    positives = torch.arange(shard.start, shard.stop, device=z.device)
    other_images = (z @ images.T / temperature).scatter(1, positives[:, None], -torch.inf)
    logits = torch.cat([z @ copies.T / temperature, other_images], dim=1)
    return functional.cross_entropy(logits, positives)
