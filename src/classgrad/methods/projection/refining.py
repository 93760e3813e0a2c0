"""Base refining of CGP (MM 2022): classes that are alike share a group and add fewer directions.

P is the unit mean of the raw inputs of a layer for a class (Eq. prototype). Two classes are alike
if the cosine of their P exceeds η. What that changes is described in three ways that contradict
each other: Algorithm 1 of the paper, its text, and the released CIFAR-100 script. They differ in
four questions, and a *reading* is a set of answers to them:

| | `algorithm` | `text` | `released` | `pooled` |
|---|---|---|---|---|
| `first_task`: classes alike in it | `separate` | `pair` | `pairs` | `group` |
| `count`: directions of such a class | `own` | `missing` | `missing` | `capped` |
| `against`: what counts as stored | `all` | `all` | `group` | `all` |
| `projection` of gradients | `once` | `once` | `in_turn` | `once` |

- `first_task`. In the first task the inputs of all classes are known. `separate`: that makes no
  difference. `pair`: the inputs of a class and of the most similar earlier one are decomposed
  together (Eq. k-rank1), and the result replaces the directions of both. `pairs`: so with each
  similar class in turn, and each result replaces the directions of that class's whole group.
  `group`: the inputs of all classes of a group are decomposed together.
- `count`. See `classgrad.core.selection`.
- `against`. `all`: all directions of the layer. `group`: those of the group, and every group with a
  similar class is extended; a class that opens a group is compared with the last group only.
- `projection`. `once`: g - g S Sᵀ, with S an orthonormal basis of all directions. `in_turn`: g is
  multiplied by I - B Bᵀ for one group after another. Bases of groups are not orthogonal to each
  other, so the result has a part along all groups but the last.

`pooled` is none of the paper's, and protects the most.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from classgrad.core import selection
from classgrad.core.selection import Selection
from classgrad.core.subspace import Representation, Subspace
from classgrad.errors import UserError
from classgrad.methods.base import a_dict
from classgrad.methods.projection.growing_subspace import GrowingSubspace

FirstTask = Literal["separate", "pair", "pairs", "group"]
Count = Literal["own", "missing", "capped", "joint"]
Against = Literal["all", "group"]
Order = Literal["once", "in_turn"]
ReadingName = Literal["algorithm", "text", "released", "pooled"]


@dataclass(frozen=True)
class Reading:
    """Answers to the four questions."""

    first_task: FirstTask
    count: Count
    against: Against
    projection: Order

    @property
    def bases_by_group(self) -> bool:
        """Whether every group has a basis of its own."""
        return self.against == "group" or self.projection == "in_turn"


READINGS: dict[str, Reading] = {
    "algorithm": Reading("separate", "own", "all", "once"),
    "text": Reading("pair", "missing", "all", "once"),
    "released": Reading("pairs", "missing", "group", "in_turn"),
    "pooled": Reading("group", "capped", "all", "once"),
}


class Groups:
    """Prototypes of the classes so far, the group of each, and the basis of each group.

    Groups have bases only in readings that need them. If `centred`, classes are compared by their
    mean inputs minus the mean over all classes so far, so prototypes keep their length.
    """

    def __init__(self, centred: bool = False) -> None:
        self.centred = centred
        self.prototypes: list[Tensor] = []
        self.group_of: list[int] = []
        self.cosines: list[float] = []  # with the class it joined by; 1 for a group's first
        self.bases: list[Tensor] = []  # as they are stored, see `Subspace`
        self.count = 0

    def similar(self, prototype: Tensor, similarity: float) -> list[tuple[int, float]]:
        """Return the earlier classes whose cosine exceeds η, with that cosine."""
        if not self.prototypes:
            return []
        if self.prototypes[0].shape != prototype.shape:
            raise UserError(
                f"a layer's inputs now have {len(prototype)} numbers, before "
                f"{len(self.prototypes[0])}: class prototypes need images of one size"
            )
        earlier = torch.stack(self.prototypes).to(prototype)
        if self.centred:
            known = earlier.any(1, keepdim=True)  # not those that were forgotten
            mean = (earlier.sum(0) + prototype) / (known.sum() + 1)
            earlier = torch.nn.functional.normalize((earlier - mean) * known, dim=1)
            prototype = torch.nn.functional.normalize(prototype - mean, dim=0)
        # Rounding can give equal prototypes a cosine above 1; with η = 1 they must not merge.
        cosines = (earlier @ prototype).clamp(max=1.0).tolist()
        return [(number, value) for number, value in enumerate(cosines) if value > similarity]

    def open(self) -> int:
        """Start a new group."""
        self.count += 1
        return self.count - 1

    def join(self, group: int, prototype: Tensor, cosine: float) -> None:
        """Add a class to a group."""
        self.prototypes.append(prototype.float())
        self.group_of.append(group)
        self.cosines.append(cosine)

    def exact_bases(self) -> list[Tensor]:
        """Return the basis of each group in float64."""
        return [Subspace(columns).basis for columns in self.bases]

    def forget(self, number: int) -> None:
        """Drop the prototype of a class: no later class is similar to it."""
        self.prototypes[number] = torch.zeros_like(self.prototypes[number])

    def state_dict(self) -> dict[str, Any]:
        """Return everything, as tensors, numbers and lists."""
        state = {
            "prototypes": torch.stack(self.prototypes),
            "group_of": list(self.group_of),
            "cosines": list(self.cosines),
        }
        return {**state, "bases": list(self.bases)} if self.bases else state

    @classmethod
    def from_state(cls, state: dict[str, Any], centred: bool = False) -> "Groups":
        """Return the groups of a state."""
        groups, state = cls(centred), a_dict(state)
        groups.prototypes = list(state["prototypes"])
        groups.group_of = list(state["group_of"])
        groups.cosines = list(state["cosines"])
        groups.bases = list(state.get("bases", []))
        groups.count = max(groups.group_of, default=-1) + 1
        return groups


@dataclass(frozen=True)
class ClassInput:
    """The prototype and the representation of a class at one layer."""

    prototype: Tensor
    representation: Representation


class Refining:
    """Adds the classes of one task to the subspace and the groups of one layer."""

    def __init__(
        self,
        subspace: Subspace,
        groups: Groups,
        reading: Reading,
        threshold: Callable[[Representation], float],
        similarity: float,
        *,
        fewer: bool = False,
        of_residual: bool = False,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.groups, self.reading = groups, reading
        self.threshold, self.similarity = threshold, similarity  # ε of a representation
        self.fewer = fewer  # one direction fewer for the first basis, and for those of pairs
        self.of_residual = of_residual
        self.dtype = dtype  # in which the bases of groups are stored
        self._none = Subspace.empty(subspace.dimension)
        self._all = GrowingSubspace(subspace)
        self._bases = [GrowingSubspace(Subspace(basis)) for basis in groups.bases]
        self.held: list[float] = []  # share of each class's energy, at least
        self._share = 0.0  # of the last class
        self._added = self._none.basis  # the last directions that were added
        self._own: list[Tensor] = []  # with `pair`, the directions of each class of the first task

    def learn(self, classes: Sequence[ClassInput], *, first_task: bool) -> Subspace:
        """Add these classes, one after another; return the subspace of the layer."""
        together = self.reading.first_task if first_task else "separate"
        if together == "group":
            self._pool(classes)
        else:
            self._add_classes(classes, together)
        self.groups.bases = [basis.subspace.stored(self.dtype).columns for basis in self._bases]
        whole = self._all.subspace
        if together != "separate":  # some classes were decomposed together
            self.held = [c.representation.held_energy(whole.basis) for c in classes]
        return whole

    def _add_classes(self, classes: Sequence[ClassInput], together: str) -> None:
        """Add classes, one after another."""
        for number, c in enumerate(classes):
            similar = self.groups.similar(c.prototype, self.similarity)
            if not similar:
                self._open(c)
            elif together == "pair":
                self._replace_pair(c, classes, similar)
            elif together == "pairs":
                self._replace_groups(c, classes, similar)
            else:
                self._refine(c, similar)
            if together == "pair" and len(self._own) == number:
                self._own.append(self._added)
            self.held.append(self._share)
        if together == "pair" and self.reading.bases_by_group:
            self._set_group_bases()

    def _open(self, c: ClassInput) -> None:
        """Open a group for a class that is like no other."""
        group = self.groups.open()
        self.groups.join(group, c.prototype, 1.0)
        self._add(group, self._choose("plain", self._stored(group - 1), c.representation))

    def _pool(self, classes: Sequence[ClassInput]) -> None:
        """Group the classes, then decompose the pooled inputs of each group."""
        members: dict[int, list[Representation]] = {}
        for c in classes:
            similar = self.groups.similar(c.prototype, self.similarity)
            number, cosine = nearest(similar) if similar else (-1, 1.0)
            group = self.groups.group_of[number] if similar else self.groups.open()
            self.groups.join(group, c.prototype, cosine)
            members.setdefault(group, []).append(c.representation)
        for group, parts in members.items():
            pooled = Representation.pooled(parts)
            self._add(group, self._choose("plain", self._stored(group - 1), pooled))

    def _replace_pair(
        self, c: ClassInput, classes: Sequence[ClassInput], similar: list[tuple[int, float]]
    ) -> None:
        """Decompose a class with the most similar one; the result replaces the bases of both."""
        other, cosine = nearest(similar)
        self.groups.join(self.groups.group_of[other], c.prototype, cosine)
        common = self._common(c, classes[other])
        self._own[other] = common
        self._own.append(common)
        self._all = GrowingSubspace(self._union(self._own))

    def _replace_groups(
        self, c: ClassInput, classes: Sequence[ClassInput], similar: list[tuple[int, float]]
    ) -> None:
        """Decompose a class with each similar one; each result replaces a whole group's basis."""
        for other, _ in similar:
            common = Subspace(self._common(c, classes[other]))
            self._bases[self.groups.group_of[other]] = GrowingSubspace(common)
        other, cosine = similar[-1]
        self.groups.join(self.groups.group_of[other], c.prototype, cosine)
        self._all = GrowingSubspace(self._union([basis.subspace.basis for basis in self._bases]))

    def _refine(self, c: ClassInput, similar: list[tuple[int, float]]) -> None:
        """Add the directions that a class similar to earlier ones needs."""
        if self.reading.against == "all":
            similar = [nearest(similar)]
        groups = dict.fromkeys(self.groups.group_of[number] for number, _ in similar)
        for group in groups:
            stored = self._stored(group)
            self._add(group, self._choose(self.reading.count, stored, c.representation))
        number, cosine = similar[-1]
        self.groups.join(self.groups.group_of[number], c.prototype, cosine)

    def _choose(self, rule: str, stored: GrowingSubspace, c: Representation) -> Selection:
        chosen: selection.Rule = getattr(selection, rule)
        return stored.choose(chosen, c, self.threshold(c), of_residual=self.of_residual)

    def _stored(self, group: int) -> GrowingSubspace:
        """Return the directions that count as stored for a class of a group."""
        if self.reading.against == "all":
            return self._all
        return self._bases[group] if 0 <= group < len(self._bases) else GrowingSubspace(self._none)

    def _add(self, group: int, chosen: Selection) -> None:
        """Add new directions to a group, and to the subspace."""
        new = chosen.new
        if self.fewer and self._all.rank == 0:
            new = new[:, :-1]
        self._added, self._share = new, chosen.held(new.shape[1])
        self._all.add(new)
        if self.reading.bases_by_group or self.reading.first_task == "pairs":
            self._bases += [
                GrowingSubspace(self._none) for _ in range(group + 1 - len(self._bases))
            ]
            self._bases[group].add(new)

    def _common(self, one: ClassInput, other: ClassInput) -> Tensor:
        """Return the directions of two classes together (Eq. k-rank1)."""
        pooled = Representation.pooled([other.representation, one.representation])
        common = selection.plain(self._none.basis, pooled, self.threshold(pooled)).new
        return common[:, :-1] if self.fewer else common

    def _union(self, bases: Sequence[Tensor]) -> Subspace:
        """Return the span of some bases; one that is there several times counts once."""
        distinct = {id(basis): basis for basis in bases}.values()
        return self._none.extended(torch.cat(list(distinct), dim=1))

    def _set_group_bases(self) -> None:
        by_group: dict[int, list[Tensor]] = {}
        for group, own in zip(self.groups.group_of, self._own, strict=True):
            by_group.setdefault(group, []).append(own)
        self._bases = [GrowingSubspace(self._union(by_group[group])) for group in sorted(by_group)]


def nearest(similar: list[tuple[int, float]]) -> tuple[int, float]:
    """Return the class with the largest cosine, the first of several."""
    return max(similar, key=lambda pair: pair[1])
