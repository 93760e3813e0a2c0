"""iCaRL (Rebuffi, Kolesnikov, Sperl, Lampert; CVPR 2017): exemplars, distillation, nearest means.

Exemplars.  At most K training images are kept (`memory`), m = K / t for each of the t classes so
far. Those of a new class are herded: each next exemplar brings the mean of the chosen embeddings φ
(of length 1) nearest to the mean of the class. Lists of older classes are truncated to their first
m. Classes belong to one task: a class name that returns in another task is counted again.

Learning.  Outputs g_y of all heads so far are sigmoids, each with its own cross-entropy. For images
of the new task and exemplars x_i, q_i^y is the output of the network before this task:

ℓ = - Σ_i [ Σ_{y new} δ_{y=y_i} log g_y(x_i) + δ_{y≠y_i} log(1 - g_y(x_i))
          + Σ_{y old} q_i^y log g_y(x_i) + (1 - q_i^y) log(1 - g_y(x_i)) ]

summed over outputs, averaged over images. From the part of the old outputs its value before the
task, a constant, is subtracted: it is 0 as long as no weight has moved. For that, q is of the same
batch and the same dropout mask as g (`classgrad.methods.distillation`).

Prediction.  The class of the given task whose mean of exemplars μ_y is nearest to φ(x), both of
length 1 (`NearestMeans`); the score is -||φ(x) - μ_y||². After every task the means of all classes
are computed again with the current network. While a task is learnt (validation), its head predicts.

Differences from the paper: it trains on the union of new images and exemplars; here every step has
a batch of the task and `memory_batch` exemplars, and averages over both. BatchNorm sees one task at
a time in testing, so exemplars of different tasks never share a pass: a step takes equally many
exemplars of a few tasks, drawn at random and weighted so that the expected loss is the mean over
all exemplars. The paper has one growing head that predicts any class; here tasks have heads and the
task is given. No augmentation. The released code averages over outputs, which are summed here.

Where embeddings depend on the task (norms per task), an old head sees every image through its
task's norms in evaluation mode, so without dropout and with stored statistics where there are any.
Where all tasks have one head, new and old outputs are the same: images of the task have their
labels as targets, exemplars the outputs before the task.
"""

from collections.abc import Iterator, Sequence
from dataclasses import InitVar
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from pydantic import Field, PrivateAttr
from torch import Generator, Tensor, nn
from torch.nn import functional

from classgrad import seeds
from classgrad.errors import UserError
from classgrad.methods.base import Step
from classgrad.methods.distillation import (
    Distilled,
    cross_entropies,
    drift,
    in_batches,
    logits_of,
    record,
)
from classgrad.methods.replay.base import BATCH_NORMS
from classgrad.methods.replay.buffer import MemorySize
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.tasks import Split, Task, Transform


class NearestMeans(Network):
    """Heads while training; in evaluation mode -||z - μ_y||² for each class y of the task.

    z is the embedding and μ_y the mean of the class, both of length 1. Tasks without means use
    their heads. The means are buffers, so they are saved and moved with the network.
    """

    means_known: Tensor  # how many tasks have means, from the first on

    def __init__(
        self, trunk: nn.Module, embedding: int, *, seed: int = 1, shared_head: bool = False
    ) -> None:
        super().__init__(trunk, embedding, seed=seed, shared_head=shared_head)
        device = next(trunk.parameters()).device
        self.register_buffer("means_known", torch.tensor(0, device=device))

    @classmethod
    def of(cls, net: Network) -> Self:
        """Return a network with the trunk and the heads of `net`, or `net` if it is one already."""
        if isinstance(net, cls):
            return net
        wrapped = cls(net.trunk, net.embedding, seed=net.seed, shared_head=net.shared_head)
        wrapped.heads = net.heads
        for task in range(len(net.heads)):
            wrapped._add_means(task, net.head_parameters(task)[0].shape[0])
        return wrapped.train(net.training)

    def add_task(self, classes: int) -> None:
        """Append the head of the next task, and a buffer for its means."""
        super().add_task(classes)
        self._add_means(len(self.heads) - 1, classes)

    def _add_means(self, task: int, classes: int) -> None:
        like = next(self.trunk.parameters())
        means = torch.zeros(classes, self.embedding, dtype=like.dtype, device=like.device)
        self.register_buffer(f"means_{task}", means)

    @property
    def means(self) -> list[Tensor]:
        """Unit means (classes x embedding) of the tasks that have them."""
        return [self.get_buffer(f"means_{task}") for task in range(int(self.means_known))]

    def set_means(self, means: list[Tensor]) -> None:
        """Predict the first tasks by these means, which are scaled to length 1."""
        for task, task_means in enumerate(means):
            self.get_buffer(f"means_{task}").copy_(functional.normalize(task_means, dim=1))
        self.means_known.fill_(len(means))

    def classify(self, features: Tensor, task: int) -> Tensor:
        """Map embeddings to the logits of one task, or to its scores by nearest means."""
        if self.training or task >= int(self.means_known):
            return super().classify(features, task)
        z, means = functional.normalize(features, dim=1), self.get_buffer(f"means_{task}")
        return 2 * z @ means.T - z.square().sum(1, keepdim=True) - means.square().sum(1)


def herd(features: Tensor, count: int) -> Tensor:
    """Rows (n x d) -> up to `count` of their indices; the mean of the first k is near that of all.

    Greedy: the k-th is p_k = argmin_x ||μ - (φ(x) + Σ_{j<k} φ(p_j)) / k||, of those not chosen yet.

    >>> herd(torch.tensor([[0.0], [4.0], [5.0], [11.0]]), 3)  # mean 5; then (5 + 4) / 2, ...
    tensor([2, 1, 3])
    """
    features = features.cpu().double()  # on the CPU, as not every device has double precision
    mean, squares = features.mean(0), features.square().sum(1)
    ideal = torch.zeros_like(mean)  # k μ - Σ_{j<k} φ(p_j): the best possible k-th
    penalty = torch.zeros_like(squares)  # minus infinity once chosen
    chosen: list[int] = []
    for _ in range(min(count, len(features))):
        ideal = ideal + mean
        nearness = 2 * features @ ideal - squares  # ||ideal||² - ||ideal - φ||²
        best = int((nearness + penalty).argmax())
        chosen.append(best)
        ideal = ideal - features[best]
        penalty[best] = -torch.inf
    return torch.tensor(chosen)


def choose(split: Split, features: Tensor, count: int) -> Split:
    """Return up to `count` samples of every class in the order of herding, class after class."""
    kept = []
    for label in split.labels.unique():
        index = (split.labels == label).nonzero().flatten()
        kept.append(index[herd(features[index], count)])
    return _part(split, torch.cat(kept))


def truncate(split: Split, count: int) -> Split:
    """Return the first `count` samples of every class."""
    kept = [(split.labels == label).nonzero().flatten()[:count] for label in split.labels.unique()]
    return _part(split, torch.cat(kept))


def _part(split: Split, index: Tensor) -> Split:
    return Split(split.images[index], split.labels[index])


# Fewest exemplars of one task in a pass, without BatchNorm: a step has a pass for each.
PER_TASK = 16


class ICaRL(Distilled):
    """Learn each task with exemplars of the old ones, and predict by the nearest class mean."""

    name: ClassVar[str] = "icarl"
    summary: ClassVar[str] = "iCaRL: exemplars, distillation, nearest class means (CVPR 2017)"
    aliases: ClassVar[dict[str, str]] = {"K": "memory"}
    first_task_is_finetune: ClassVar[bool] = False
    rehearsal_free: ClassVar[bool] = False
    exclusive: ClassVar[tuple[tuple[str, ...], ...]] = (("memory", "memory_mb"),)

    memory: int = Field(default=2000, ge=1, description="exemplars kept in all (K)")
    memory_mb: float | None = Field(
        default=None,
        gt=0,
        description="MB (10^6 bytes) for exemplars and class means, instead of a number",
    )
    memory_batch: int = Field(default=64, ge=2, description="exemplars in a step")
    bn_samples: int = Field(
        default=32, ge=2, description="fewest exemplars of a task in a pass through BatchNorm"
    )

    if TYPE_CHECKING:  # aliases, see Settings
        K: InitVar[int] = memory

    _size: MemorySize = PrivateAttr(default=MemorySize(0, ""))
    _transforms: list[Transform] = PrivateAttr(default_factory=list)
    _exemplars: list[Split] = PrivateAttr(default_factory=list)  # by task
    _recorded: Tensor | None = PrivateAttr(default=None)  # outputs for the current task's images
    _exemplar_recorded: list[Tensor] = PrivateAttr(default_factory=list)  # by task
    _mean_bytes: int = PrivateAttr(default=0)
    _normed: bool = PrivateAttr(default=False)

    @property
    def exemplars(self) -> list[Split]:
        """Exemplars of each task so far, class after class, in the order of herding."""
        return self._exemplars

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Let the network predict by nearest means."""
        classes = sum(task.classes for task in stream)
        means = classes * net.embedding * next(net.parameters()).itemsize
        size = self._size = MemorySize.of(self.memory, self.memory_mb, stream, aside=means)
        if size.samples < classes:
            raise UserError(
                f"{size.setting} is less than one exemplar for each of the {classes} classes "
                f"of the stream: give at least {size.least(classes)}"
            )
        fewest = min(task.classes for task in stream) * (size.samples // classes)
        if fewest < 2 and any(isinstance(m, TaskBatchNorm) for m in net.modules()):
            raise UserError(
                f"{size.setting} leaves a task with a single exemplar, "
                f"which has no batch statistics: give at least {size.least(2 * classes)}"
            )
        self._transforms = [task.transform for task in stream]
        self._normed = any(isinstance(module, BATCH_NORMS) for module in net.modules())
        return NearestMeans.of(net)

    def begin_task(self, net: Network, task: Task) -> None:
        """Record the network's outputs for new images and exemplars, or keep the network itself."""
        if task.id == 0:
            return
        if self.needs_teacher(net, task):
            self.keep_teacher(net)
            return
        outputs = partial(record, net, generator=seeds.generator(net.seed, "answers", task.id))
        kept = list(zip(self._exemplars, self._transforms, strict=False))
        if net.shared_head:  # new images have labels as targets, see the module docstring
            self._exemplar_recorded = [outputs(*part, tasks=[k]) for k, part in enumerate(kept)]
        else:
            self._recorded = outputs(task.train, task.transform, tasks=range(task.id))
            self._exemplar_recorded = [outputs(*part, tasks=range(task.id)) for part in kept]

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return ℓ, averaged over the batch and the exemplars of this step."""
        task = step.task.id
        outputs = net.head_parameters(task)[0].shape[0]
        labels = functional.one_hot(step.y, outputs).to(step.x.dtype)
        earlier = None
        if self._recorded is not None:
            earlier = self._recorded[step.index]
        elif not net.shared_head:
            earlier = self.teacher_logits(net, step.x, range(task))
        total = len(step.x) * loss_of_heads(net, step.x, task, labels, earlier)
        count = float(len(step.x))
        drawn = list(self.draw(step.generator))
        for old, rows, weight in drawn:
            images = self._exemplars[old].unit_images(rows, step.x.dtype)
            if step.task.augment is not None:
                images = step.task.augment(images, step.generator, None)
            x = self._transforms[old](images)
            earlier = self.teacher_logits(net, x, [old] if net.shared_head else range(task))
            if earlier is None:
                earlier = self._exemplar_recorded[old][rows]
            if net.shared_head:
                loss = drift(logits_of(net, x, [old])[0], earlier)
            else:
                with net.frozen_bn_stats():  # a task's statistics are of its own images
                    no_class = x.new_zeros(len(rows), outputs)
                    loss = loss_of_heads(net, x, task, no_class, earlier)
            # More exemplars than asked for, drawn for BatchNorm's sake, do not count for more.
            share = min(len(rows), self.memory_batch / len(drawn))
            total = total + share * weight * loss
            count += share
        return total / count

    def draw(self, generator: Generator) -> Iterator[tuple[int, Tensor, float]]:
        """Yield the exemplars of a step: a task, rows of its exemplars, and their weight.

        The expected mean of weight x (mean over rows) is the mean over all exemplars.
        """
        sizes = [len(split) for split in self._exemplars]
        fewest = self.bn_samples if self._normed else PER_TASK
        groups = min(len(sizes), max(1, self.memory_batch // fewest))
        for task in torch.randperm(len(sizes), generator=generator)[:groups].tolist():
            share = max(self.memory_batch // groups, fewest if self._normed else 1)
            rows = torch.randint(sizes[task], (share,), generator=generator)
            yield task, rows, sizes[task] * len(sizes) / sum(sizes)

    def end_task(self, net: Network, task: Task, generator: Generator) -> None:
        """Herd the new classes, truncate the lists of old ones, and compute all means."""
        assert isinstance(net, NearestMeans), "the network comes from `wrap`"
        self._recorded, self._exemplar_recorded, self._teacher = None, [], None
        classes = task.classes + sum(int(s.labels.max()) + 1 for s in self._exemplars)
        share = self._size.samples // classes
        embeddings = self._embeddings(net, task.id, task.train, generator)
        self._exemplars = [truncate(split, share) for split in self._exemplars]
        self._exemplars.append(choose(task.train, embeddings, share))
        means = []
        for number, split in enumerate(self._exemplars):
            z = self._embeddings(net, number, split, generator)
            means.append(torch.stack([z[split.labels == y].mean(0) for y in split.labels.unique()]))
        net.set_means(means)
        self._mean_bytes = sum(m.nbytes for m in net.means)

    def _embeddings(self, net: Network, task: int, split: Split, generator: Generator) -> Tensor:
        """Return the embeddings of a task's images, of length 1."""
        transform = self._transforms[task]
        z = in_batches(net, split, transform, lambda x: net.embed(x, task), generator)
        return functional.normalize(z, dim=1)

    def memory_bytes(self) -> int:
        """Return the bytes of exemplars, means and, within a task, recorded outputs."""
        return super().memory_bytes() + self._mean_bytes

    def state_dict(self) -> dict[str, Any]:
        """Return exemplars and earlier outputs or network; the means are in the network's state."""
        return {
            **super().state_dict(),
            "exemplars": [{"images": s.images, "labels": s.labels} for s in self._exemplars],
            "answers": self._recorded,
            "exemplar_answers": list(self._exemplar_recorded),
        }

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state, for the network that belongs to it."""
        assert isinstance(net, NearestMeans), "the network comes from `wrap`"
        super().load_state_dict(state, net)
        self._exemplars = [Split(**part) for part in state["exemplars"]]
        self._recorded = state["answers"]
        self._exemplar_recorded = list(state["exemplar_answers"])
        self._mean_bytes = sum(m.nbytes for m in net.means)


def loss_of_heads(
    net: Network, x: Tensor, task: int, targets: Tensor, earlier: Tensor | None
) -> Tensor:
    """Return the loss of the outputs of a task's head and the old ones, averaged over inputs.

    `targets` are those of the task's own outputs, `earlier` has the old heads' earlier logits.
    """
    features = net.embed(x, task)
    logits = net.heads[task](features)
    loss = cross_entropies(logits, targets)
    if earlier is not None:
        loss = loss + drift(torch.cat(logits_of(net, x, range(task), features), 1), earlier)
    return loss
