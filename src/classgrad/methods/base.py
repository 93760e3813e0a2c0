"""The protocol of a method. Its defaults are finetuning: learn each task, protect nothing."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from pydantic import ConfigDict
from torch import Tensor, nn
from torch.nn import functional

from classgrad.checkpoints.encoding import decode, encode
from classgrad.checkpoints.manifest import parse_json
from classgrad.checkpoints.tensors import file_pieces, from_file
from classgrad.devices import moved
from classgrad.distributed import World, world
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.settings import Settings
from classgrad.tasks import Task


@dataclass(frozen=True)
class Step:
    """One training step: `images` in [0, 1], `x` what the network sees of them, labels `y`.

    The samples are `task.train` at `index`; `number` steps of the task came before it, of at most
    `steps`. Several processes have a shard each of the samples at `batch`; one has all of them. A
    fresh optimiser was made for this task: all its momentum is of this task, even where it was
    loaded.
    """

    task: Task
    index: Tensor
    images: Tensor
    x: Tensor
    y: Tensor
    optimizer: torch.optim.Optimizer
    generator: torch.Generator
    number: int
    per_epoch: int
    steps: int
    batch: Tensor
    shard: Shard
    fresh_optimizer: bool = False

    def gather(self, rows: Tensor) -> Tensor:
        """Return rows for the whole batch, given those for `x`; gradients come back."""
        return self.shard.gather(rows)

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self.number // self.per_epoch


@dataclass(frozen=True)
class LayerRank:
    """How much of a layer is protected: `rank` of `dimension` directions.

    Where classes that resemble each other share directions: the group of each class so far, and its
    cosine with the class that decided that, 1 for the first of a group.
    """

    name: str
    dimension: int
    rank: int
    groups: tuple[int, ...] = ()
    cosines: tuple[float, ...] = ()


@dataclass(frozen=True)
class Held:
    """What a layer's basis holds of a class, at least, as a share of its energy, 0 to 1.

    `promised` is the ε the class was learnt with. Tasks count from 0; without a label it is a whole
    task.
    """

    layer: str
    task: int
    label: int | None
    promised: float
    share: float


class Fit(Protocol):
    """The training loop: over these tasks, for so many epochs instead of those of the settings."""

    def __call__(self, tasks: Sequence[Task], epochs: int | None = None) -> None:
        """Train."""


class Method(Settings):
    """How a stream of tasks is learnt.

    Fields are the hyper-parameters; what a method remembers between tasks is in private attributes
    and goes through `state_dict`. The calls come in the order they are written here.
    """

    model_config = ConfigDict(frozen=False)
    kind = "hyper-parameter"
    name: ClassVar[str]
    summary: ClassVar[str]
    joint: ClassVar[bool] = False  # learns all tasks at once, so only the end can be judged
    revisits: ClassVar[bool] = False  # moves the heads of earlier tasks too
    first_task_is_finetune: ClassVar[bool] = True  # learns the first task just as finetuning does
    rehearsal_free: ClassVar[bool] = True  # needs no tasks in advance, and keeps no sample of them
    on_cpu: ClassVar[bool] = False  # what it keeps stays on the CPU, wherever the network is
    parallel: ClassVar[bool] = False  # can be trained by several processes, with the same result

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Change the network once; it has the head of the first task already."""
        return net

    def begin_task(self, net: Network, task: Task) -> None:
        """Add or freeze parameters; the optimiser is built after this."""

    def continue_task(self, net: Network, task: Task) -> None:
        """Take up a task in its middle, instead of `begin_task`: method and network are loaded."""

    def parameters(self, net: Network, tasks: Sequence[Task]) -> Iterator[nn.Parameter]:
        """Yield what the optimiser may move: the trunk, and the heads of the current tasks.

        Where earlier heads are revisited, those of all tasks so far.
        """
        yield from net.trunk.parameters()
        here = range(len(net.heads)) if self.revisits else [task.id for task in tasks]
        heads = [p for task in here for p in net.head_parameters(task)]
        yield from dict.fromkeys(heads)

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Train on a task; `fit` runs the loop over the tasks it is given."""
        fit([task])

    def rounds(self, task: Task) -> int:
        """Return how often, at most, `fit_task` calls `fit`."""
        return 1

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the loss of one batch; of a shard of one, its mean over the shard."""
        return functional.cross_entropy(net(step.x, step.task.id), step.y)

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Edit the gradients, between `backward` and the optimiser's step."""

    def after_step(self, net: Network, step: Step) -> None:
        """Edit the weights after the optimiser's step."""

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Remember what later tasks must not disturb, from this task's training data only."""

    def close(self) -> None:
        """Take back every hook; called at the end of a task, however it ended."""

    def forget_class(self, number: int) -> None:
        """Drop what is kept of one class alone; `number` counts all classes as they were learnt."""

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected."""
        return []

    def held(self) -> list[Held]:
        """Return what is still protected of each class, where a limit made the method drop some."""
        return []

    def stored_parameters(self, net: Network) -> int:
        """Return how many parameters are kept for all tasks, heads included; zeros do not count."""
        return sum(int(parameter.count_nonzero()) for parameter in net.parameters())

    def memory_bytes(self) -> int:
        """Return the bytes of what is kept between tasks, beside the network."""
        return sum(nbytes(value) for value in self.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept between tasks: tensors, numbers, strings, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state; its tensors are where the network is, or `on_cpu`."""

    def restore(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state that was kept, wherever its tensors are."""
        device = torch.device("cpu") if self.on_cpu else next(net.parameters()).device
        self.load_state_dict(moved(state, device), net)

    # For methods that several processes can train. With one process every call is a no-op.

    @property
    def processes(self) -> World:
        """The processes that train together, for sums over them and for turns at batches."""
        return world()

    @contextmanager
    def sharded(self, net: Network, count: int) -> Iterator[Shard]:
        """Split a batch of so many samples in the block; yield the shard the network is to see."""
        with world().sharding(count) as shard, net.sharded(shard):
            yield shard

    def broadcast_state(self, net: Network) -> None:
        """Take over the main process's state, so that rounding cannot drive processes apart."""
        if world().size == 1:
            return
        text, values = b"", b""
        if world().is_main_process:
            tree, tensors = encode(self.state_dict())
            text = json.dumps(tree, allow_nan=False).encode()
            values = b"".join(file_pieces(tensors))
        text, values = world().broadcast_bytes(text), world().broadcast_bytes(values)
        if not world().is_main_process:
            self.restore(decode(parse_json(text), from_file(values)), net)


def nbytes(value: Any) -> int:
    """Return the bytes of all tensors in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(nbytes(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(nbytes(part) for part in value)
    return 0
