"""Class Gradient Projection (Chen, Zhang, Song, Gao; ACM MM 2022), with all its parts.

Class bases.  After a task, for every layer and class, C holds the inputs of up to `samples`
training samples, by default of those classified correctly (BR-GTL; `correct_only=False` is BR-STD).
The main directions of C outside the basis S join S until it holds the share ε of ||C||² (Eq.
k-rank2).

Base refining.  A class that is like an earlier one, by the cosine of their prototypes, adds fewer
directions. The paper and its released code describe this in ways that contradict each other;
`reading` chooses one of them, and `first_task`, `count`, `against` and `projection` answer single
questions otherwise (`classgrad.methods.projection.refining`). η = 1 switches refining off: plain
CGP, which keeps no prototypes.

Contrast.  L = L_ce + λ L_con, where L_con pulls the embedding of an image towards that of its
AugMix copy and pushes it away from all others in the batch, at temperature μ.

Differences from the paper: Eq. k-rank2 compares with ||C||² (it prints ||Ĉ||²;
`k_rank2_as_printed=True` does so, too) and Eq. commonbase is diag(Sᵀ C Cᵀ S); L_con is a mean over
the batch, as in the code, not a sum.

Differences from the released code, also of the reading `released`: the cosine keeps its sign; a
class that adds no direction still has a prototype and a group; k is the smallest count that reaches
ε (`gpm_compat=True` takes one less for the first basis and for those of pairs); ε stops growing at
`energy_limit`. The AugMix copies are complete and new in every epoch, with AugMix's own nine
operations at severity 3. The released code has `operations=all`, `severity=1`, `copy_crop=True`,
`copy_flip=True`, and one chain only, drawn once.
"""

from collections.abc import Callable
from dataclasses import InitVar, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.collect import ClassInputs, Collected
from classgrad.core.projector import Projection, SequentialProjection
from classgrad.data.augmix import augmix, crop, flip, refuse_range
from classgrad.errors import UserError, shown
from classgrad.methods.base import LayerRank, Step
from classgrad.methods.projection.budget import Budgeted
from classgrad.methods.projection.refining import (
    READINGS,
    Against,
    ClassInput,
    Count,
    FirstTask,
    Groups,
    Order,
    Reading,
    ReadingName,
    Refining,
)
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.settings import Migration
from classgrad.tasks import Task

INSTEAD = {
    "official": "it was not the released rule: give reading=released",
    "gpm": "take the method gpm",
}


def reading_of_rule(rule: str) -> dict[str, str]:
    """Return the settings that took the place of `rule`."""
    if rule in ("alg1", "joint"):
        return {"reading": "pooled", **({"count": "joint"} if rule == "joint" else {})}
    given = shown(rule)
    raise UserError(f"rule={given} is gone; {INSTEAD.get(given, 'give a reading instead')}")


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
    reading: ReadingName = Field(
        default="algorithm", description="which description of base refining is followed"
    )
    first_task: FirstTask | None = Field(
        default=None, description="classes that are alike in the first task; as the reading has it"
    )
    count: Count | None = Field(
        default=None, description="directions of a class like an earlier one; as the reading has it"
    )
    against: Against | None = Field(
        default=None, description="the directions that count as stored; as the reading has it"
    )
    projection: Order | None = Field(
        default=None, description="how gradients are projected; as the reading has it"
    )
    centred: bool = Field(
        default=False, description="compare prototypes without the mean of all classes so far"
    )
    k_rank2_as_printed: bool = Field(
        default=False, description="protect the share ε of what is new in a class, as Eq. k-rank2"
    )
    correct_only: bool = Field(
        default=True,
        description="bases from samples classified correctly (BR-GTL), else from any (BR-STD)",
    )
    severity: float = Field(default=3, gt=0, le=10, description="strength of AugMix, 0 to 10")
    operations: Literal["augmix", "all"] = Field(
        default="augmix",
        description="AugMix's own nine operations, or all 13, with colour and brightness",
    )
    copy_crop: bool = Field(
        default=False, description="crop a copy at random, 4 pixels padded, before AugMix"
    )
    copy_flip: bool = Field(default=False, description="flip a copy at random before AugMix")
    classify_copies: bool = Field(
        default=False, description="cross-entropy of copies, too, as Algorithm 1 can be read"
    )
    positives: Literal["copy", "class"] = Field(
        default="copy",
        description="what an image is pulled towards: its copy, or all images of its class",
    )

    removed: ClassVar[dict[str, Migration]] = {"rule": reading_of_rule}

    if TYPE_CHECKING:  # aliases, see Settings
        eta: InitVar[float] = similarity
        mu: InitVar[float] = temperature

    _groups: dict[str, Groups] = PrivateAttr(default_factory=dict)

    def begin_task(self, net: Network, task: Task) -> None:
        """Refuse images that AugMix cannot handle before any is learnt."""
        super().begin_task(net, task)
        images = task.train.images
        uses_copies = self.contrast or self.classify_copies
        if uses_copies and images.is_floating_point() and images.isfinite().all():
            refuse_range(images)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return L_ce + λ L_con (Eq. loss)."""
        if self.contrast == 0 and not self.classify_copies:
            return super().loss(net, step)
        copies = step.task.transform(self.copies(step))
        embedding, of_copies = net.embed_both(step.x, copies, step.task.id)
        entropy = functional.cross_entropy(net.classify(embedding, step.task.id), step.y)
        if self.classify_copies:
            logits = net.classify(of_copies, step.task.id)
            entropy = (entropy + functional.cross_entropy(logits, step.y)) / 2
        if self.contrast == 0:
            return entropy
        labels = step.task.train.labels[step.batch] if self.positives == "class" else None
        contrast = contrastive(embedding, of_copies, self.temperature, step.shard, labels)
        return entropy + self.contrast * contrast

    def copies(self, step: Step) -> Tensor:
        """Return an altered copy of every image."""
        images, generator, among = step.images, step.generator, step.shard.among
        if self.copy_crop:
            images = crop(images, generator=generator, among=among)
        if self.copy_flip:
            images = flip(images, generator=generator, among=among)
        operations = "all" if self.operations == "all" else "standard"
        return augmix(
            images,
            severity=self.severity,
            operations=operations,
            generator=generator,
            among=among,
        )

    @property
    def groups(self) -> dict[str, Groups]:
        """Groups of similar classes by site."""
        return self._groups

    def refining(self) -> Reading:
        """Return the answers to the questions of base refining."""
        given = {name: getattr(self, name) for name in ("first_task", "count", "against")}
        given["projection"] = self.projection
        chosen = {name: value for name, value in given.items() if value is not None}
        return replace(READINGS[self.reading], **chosen)

    def attach(self, model: nn.Module, *, freezes_rest: bool = False) -> None:
        """Protect this model from now on; refuse a budget where groups have bases of their own."""
        super().attach(model, freezes_rest=freezes_rest)
        if self.max_basis_mb is not None and self.refining().bases_by_group:
            raise UserError(
                "max_basis_mb needs one basis for each layer: give against=all, projection=once"
            )

    def grow(self, gather: Callable[..., Collected]) -> Collected:
        """Add directions of every class of the task to every layer, in the order of classes."""
        collected = gather(correct_only=self.correct_only)
        for name in self._subspaces:
            seen = [c for c in collected.classes.values() if name in c.representations]
            if seen:
                self._learn_layer(name, seen)
            if self.max_basis_mb is None:  # a budget will need the representations once more
                for c in seen:
                    del c.representations[name]
        return collected

    def _learn_layer(self, name: str, seen: list[ClassInputs]) -> None:
        """Add directions of these classes to a layer, in their order."""
        refining = Refining(
            self._subspaces[name],
            self._groups.setdefault(name, Groups(self.centred)),
            self.refining(),
            partial(self.share_to_hold, name),
            self.similarity,
            fewer=self.gpm_compat,
            of_residual=self.k_rank2_as_printed,
            dtype=self.stored_type(name),
        )
        classes = [ClassInput(self._prototype(c, name), c.representations[name]) for c in seen]
        self._subspaces[name] = refining.learn(classes, first_task=self._learnt == 0)
        for c, share in zip(seen, refining.held, strict=True):
            c.note_held(name, share)

    @property
    def removes_directions(self) -> bool:
        """Whether steps along protected directions are removed at once, and not group by group."""
        return self.refining().projection == "once"

    def protect(self) -> None:
        """Protect the current subspaces, at once or group by group."""
        if self.removes_directions:
            super().protect()
            return
        sites = self.projector.sites
        projections: dict[str, Projection] = {
            name: SequentialProjection(groups.exact_bases(), sites[name].weight)
            for name, groups in self._groups.items()
            if self._subspaces[name].rank
        }
        self.projector.set_projections(projections, self._frozen)

    def _prototype(self, c: ClassInputs, name: str) -> Tensor:
        """Return the prototype of a class at a layer: an empty one where refining is off."""
        if self.similarity >= 1:
            return torch.zeros(0)
        return c.mean(name) if self.centred else c.prototype(name)

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

    def state_dict(self) -> dict[str, Any]:
        """Return bases, prototypes and groups."""
        groups = {name: groups.state_dict() for name, groups in self._groups.items()}
        return {**super().state_dict(), "groups": groups}

    def load_memory(self, state: dict[str, Any]) -> None:
        """Load a state for the attached model; groups first: they may be what is protected."""
        self._groups = {
            name: Groups.from_state(part, self.centred) for name, part in state["groups"].items()
        }
        super().load_memory(state)


def contrastive(
    embedding: Tensor,
    of_copies: Tensor,
    temperature: float,
    shard: Shard | None = None,
    labels: Tensor | None = None,
) -> Tensor:
    """Embeddings z, z' (n x d) -> mean_i -log(exp(z_i·z'_i / μ) / Σ_{k≠i} exp(z_i·z_k / μ)).

    Both are normalised first; k runs over all 2n embeddings but z_i itself, and only the n images
    are anchors, as in the paper's formula. With a shard of a batch, k runs over the whole batch.
    Given the labels of the whole batch, z'_i is replaced by each other embedding of the class of i,
    and the mean is taken over them (supervised contrast).
    """
    shard = shard or Shard(len(embedding), 0, len(embedding))
    z = functional.normalize(embedding, dim=1)
    images, copies = shard.gather(z), shard.gather(functional.normalize(of_copies, dim=1))
    positives = torch.arange(shard.start, shard.stop, device=z.device)
    other_images = (z @ images.T / temperature).scatter(1, positives[:, None], -torch.inf)
    logits = torch.cat([z @ copies.T / temperature, other_images], dim=1)
    if labels is None:
        return functional.cross_entropy(logits, positives)
    labels = labels.to(z.device)
    alike = labels[positives][:, None] == labels
    others = alike.scatter(1, positives[:, None], False)  # copies of the class, and other images
    chosen = torch.cat([alike, others], dim=1)
    shares = logits.log_softmax(1).masked_fill(~chosen, 0)
    return -(shares.sum(1) / chosen.sum(1)).mean()
