"""A network for a stream of tasks: one trunk for all, one linear head for each."""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from classgrad import seeds
from classgrad.errors import UserError
from classgrad.networks.blocks import has_no_hooks, run_both, run_each
from classgrad.networks.frozen import FrozenOutputs
from classgrad.networks.layers import ChannelSums, Dropout, PerTask, Selection, TaskBatchNorm
from classgrad.networks.shard import Shard, Sum
from classgrad.networks.trunk import Trunk
from classgrad.tasks import Split, Transform, batches

FROZEN_BATCH = 64  # images that go through frozen layers at once


class Network(nn.Module):
    """`net(x, task)` returns the logits of a task; `net.embed(x, task)` the input of its head.

    The trunk is any module from inputs to (n, embedding). With `shared_head` all tasks use one
    head, which a method then has to protect too.
    """

    def __init__(
        self, trunk: nn.Module, embedding: int, *, seed: int = 1, shared_head: bool = False
    ) -> None:
        super().__init__()
        self.trunk = trunk
        self.embedding = embedding
        self.seed = seed
        self.shared_head = shared_head
        self.precision: torch.dtype | None = None  # autocast type of the trunk; None: off
        self._shard: Shard | None = None  # set if inputs are a shard of a batch
        self._selection = Selection()
        self.heads = nn.ModuleList()
        self.find_layers()
        self.set_generator(seeds.generator(seed, "dropout"))

    def find_layers(self) -> None:
        """Find the layers with a state per task, and dropout; call it after replacing layers."""
        self._per_task = self._find_per_task()
        for layer in self._per_task:
            layer.selection = self._selection
        self._norms = [m for m in self.modules() if isinstance(m, TaskBatchNorm)]
        self._dropouts = [m for m in self.modules() if isinstance(m, Dropout)]

    def _find_per_task(self) -> list[PerTask]:
        """Return the layers in which a task is selected."""
        return [module for module in self.modules() if isinstance(module, PerTask)]

    def add_task(self, classes: int) -> None:
        """Append the head of the next task and its state in each layer that has one per task."""
        task = len(self.heads)
        if task and self.shared_head:
            outputs = self.head_parameters(0)[0].shape[0]
            if classes > outputs:
                raise UserError(
                    f"task {task + 1} has {classes} classes but the head shared by all has "
                    f"{outputs}: use heads=task"
                )
            self.heads.append(self.heads[0])
        else:
            with preserved_rng():
                head = nn.Linear(self.embedding, classes, bias=False)
            initialise(head, seeds.generator(self.seed, "head", task))
            self.heads.append(head.to(next(self.trunk.parameters())))
        if task:
            for layer in self._per_task:
                layer.add_task()

    @property
    def task_dependent(self) -> bool:
        """Whether the embedding of an input depends on the task."""
        return any(layer.task_dependent for layer in self._per_task)

    @property
    def batch_dependent(self) -> bool:
        """Whether the embedding of an input depends on the other inputs of its batch."""
        return any(norm.statistics == "batch" for norm in self._norms)

    def protected(self) -> nn.Module:
        """Return the part that tasks share, whose outputs for old inputs must not change."""
        return self if self.shared_head else self.trunk

    def shared_parameters(self) -> dict[str, nn.Parameter]:
        """Return the trainable parameters that tasks share, by their names in `protected()`.

        The heads of single tasks are left out, and so are scales and shifts with `affine="task"`.
        """
        per_task = {
            parameter
            for norm in self._norms
            if norm.affine == "task"
            for parameter in norm.parameters()
        }
        named = self.protected().named_parameters()
        return {name: p for name, p in named if p.requires_grad and p not in per_task}

    def head_parameters(self, task: int) -> list[nn.Parameter]:
        """Return the parameters of one task's head."""
        return list(self.heads[task].parameters())

    def set_generator(self, generator: torch.Generator) -> None:
        """Let all dropout layers draw from one generator."""
        for dropout in self._dropouts:
            dropout.generator = generator

    @contextmanager
    def frozen_bn_stats(self) -> Iterator[None]:
        """Let no batch in the block update the stored statistics of BatchNorm."""
        for norm in self._norms:
            norm.tracking = False
        try:
            yield
        finally:
            for norm in self._norms:
                norm.tracking = True

    @contextmanager
    def sharded(self, shard: Shard) -> Iterator[None]:
        """Treat inputs in the block as this shard of a batch.

        BatchNorm then uses the statistics of the whole batch, and dropout draws for all of it.
        """
        before = self._shard
        self._set_shard(None if shard.is_whole else shard)
        try:
            yield
        finally:
            self._set_shard(before)

    def _set_shard(self, shard: Shard | None) -> None:
        if shard is self._shard:
            return
        self._shard = shard
        for norm in self._norms:
            norm.shard = shard
        for dropout in self._dropouts:
            dropout.shard = shard

    @torch.no_grad()
    def recalibrate(self, task: int, batches: Iterable[Tensor], total: Sum | None = None) -> None:
        """Set the stored statistics of a task to those of these inputs, without dropout.

        The statistics that training leaves behind were measured with dropout, which raises the
        variance, and with weights that have moved since. `total` sums over processes that each
        have some of the inputs.
        """
        norms = [
            norm
            for norm in self._norms
            if norm.training and norm.statistics != "batch" and not norm.fixed
        ]
        if not norms:
            return
        self.select(task)  # for a process that gets no input
        with self.evaluating():
            for norm in norms:
                norm.sums = ChannelSums()
            try:
                for x in batches:
                    self(x, task)
                for norm in norms:
                    norm.recalibrate(total)
            finally:
                for norm in norms:
                    norm.sums = None

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Switch to evaluation mode in the block."""
        before = self.training
        self.eval()
        try:
            yield
        finally:
            self.train(before)

    @contextmanager
    def detached_batch_stats(self) -> Iterator[None]:
        """Treat batch statistics as constants, so no gradient passes from sample to sample."""
        for norm in self._norms:
            norm.constant = True
        try:
            yield
        finally:
            for norm in self._norms:
                norm.constant = False

    def select(self, task: int) -> None:
        """Select a task in every layer with a state per task, for this thread."""
        if self.training:  # by one thread, whose backward pass may call layers again in others
            self._selection.task = task
        else:
            self._selection.select_here(task)

    def embed(self, x: Tensor, task: int) -> Tensor:
        """Map inputs to embeddings, with the layers' state of one task."""
        self.select(task)
        with self._autocast(x):
            features: Tensor = self.trunk(_channels_last(x))
        return self._like(x, features)

    def embed_both(self, x: Tensor, copies: Tensor, task: int) -> tuple[Tensor, Tensor]:
        """Map inputs and altered copies of them to embeddings; the copies update no statistics.

        Each has its own batch statistics. Linear layers see both at once, where the trunk's layers
        are known to follow one another.
        """
        together = self._is_sequence() and has_no_hooks(self.trunk) and self.frozen_outputs is None
        if not together:
            embedding = self.embed(x, task)
            with self.frozen_bn_stats():
                return embedding, self.embed(copies, task)
        self.select(task)
        with self._autocast(x):
            first, second = run_both(
                list(self.trunk.children()),
                _channels_last(x),
                _channels_last(copies),
                self.frozen_bn_stats,
            )
        return self._like(x, first), self._like(x, second)

    def same_length(self, inputs: Tensor, size: int) -> list[Tensor]:
        """Return the places of inputs in batches, none of which has to be padded."""
        places = torch.arange(len(inputs))
        if not isinstance(self.trunk, Trunk):
            return list(places.split(size)) if len(places) else []
        lengths = self.trunk.lengths(inputs)
        groups = [places[lengths == length] for length in lengths.unique()]
        return [part for group in groups for part in group.split(size)]

    @property
    def frozen_outputs(self) -> FrozenOutputs | None:
        """What the trunk's first, frozen layers make of inputs, where it is looked up."""
        return self.trunk.frozen_outputs if isinstance(self.trunk, Trunk) else None

    @frozen_outputs.setter
    def frozen_outputs(self, table: FrozenOutputs | None) -> None:
        if isinstance(self.trunk, Trunk):
            self.trunk.frozen_outputs = table

    def frozen_layers(self) -> list[nn.Module]:
        """Return the trunk's first layers, if what they make of an input never changes."""
        if isinstance(self.trunk, Trunk) and self._is_sequence():
            return self.trunk.frozen_layers()
        return []

    def add_frozen_outputs(self, split: Split, transform: Transform) -> None:
        """Add what the frozen layers make of images to what is looked up, if anything is."""
        if self.frozen_outputs is None:
            return
        dtype = next(self.parameters()).dtype
        for index in batches(len(split), FROZEN_BATCH):
            x = transform(split.unit_images(index, dtype))
            with self._autocast(x):
                self.frozen_outputs.add(_channels_last(x))

    def embed_each(self, x: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        """Map inputs to embeddings for each of these tasks; what tasks share is computed once."""
        if not self.task_dependent:
            return [self.embed(x, tasks[0])] * len(tasks)
        with self._autocast(x):
            features = self._forward_each(_channels_last(x), tasks)
        return [self._like(x, output) for output in features]

    def _forward_each(self, x: Tensor, tasks: Sequence[int]) -> list[Tensor]:
        if self._is_sequence():
            return run_each(list(self.trunk.children()), x, tasks, self.select)
        outputs = []
        for task in tasks:
            self.select(task)
            outputs.append(self.trunk(x))
        return outputs

    def _is_sequence(self) -> bool:
        """Tell whether the layers of the trunk follow one another."""
        return type(self.trunk).forward is Trunk.forward

    def _like(self, x: Tensor, features: Tensor) -> Tensor:
        """Return features in the precision of the inputs, where the trunk has another."""
        return features if self.precision is None else features.to(x.dtype)

    def _autocast(self, x: Tensor) -> AbstractContextManager[object]:
        if self.precision is None:
            return nullcontext()
        return torch.autocast(x.device.type, self.precision)

    def classify(self, features: Tensor, task: int) -> Tensor:
        """Map embeddings to the logits of one task."""
        self.select(task)
        logits: Tensor = self.heads[task](features)
        return logits

    if TYPE_CHECKING:  # nn.Module says Any

        def __call__(self, x: Tensor, task: int) -> Tensor:
            """Map inputs to the logits of one task."""

    def forward(self, x: Tensor, task: int) -> Tensor:
        """Map inputs to the logits of one task; only its head is computed."""
        return self.classify(self.embed(x, task), task)


def preserved_rng() -> AbstractContextManager[None]:
    """Restore PyTorch's global generator, which the constructors of layers draw from."""
    return torch.random.fork_rng(devices=[])


def _channels_last(x: Tensor) -> Tensor:
    """Lay out images like the weights, see `channels_last`."""
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 else x


def channels_last(module: nn.Module) -> None:
    """Lay out convolution weights channels last: 15 % off a training step of AlexNet-5."""
    for weight in module.parameters():
        if weight.dim() == 4:
            weight.data = weight.data.contiguous(memory_format=torch.channels_last)


def initialise(module: nn.Module, generator: torch.Generator, scheme: str = "default") -> None:
    """Draw every weight of a Linear layer, convolution or embedding from `generator`.

    `default` is PyTorch's own uniform in ±1/√fan_in for weights and biases, `relu` the Kaiming
    uniform in ±√(6/fan_in) for weights, with zero biases.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Embedding):
            fan_in = layer.weight[0].numel()
            bound = math.sqrt((6 if scheme == "relu" else 1) / fan_in)
            with torch.no_grad():
                draw(layer.weight, bound, generator)
                bias = getattr(layer, "bias", None)
                if bias is not None:
                    bias_bound = 0.0 if scheme == "relu" else bound
                    draw(bias, bias_bound, generator)


def draw(values: Tensor, bound: float, generator: torch.Generator) -> None:
    """Fill a tensor with uniform random numbers between -bound and bound."""
    # On the CPU, where the generators are: the same draws on every device.
    drawn = torch.empty_like(values, device="cpu")
    values.copy_(drawn.uniform_(-bound, bound, generator=generator))
