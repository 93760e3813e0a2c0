"""The protocol of a method. Its defaults are finetuning: learn each task, protect nothing."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import torch
from pydantic import ConfigDict
from torch import Tensor, nn
from torch.nn import functional

from classgrad.checkpoints.encoding import decode, encode, file_pieces, from_file
from classgrad.checkpoints.files import parse_json
from classgrad.core.projector import Projector
from classgrad.devices import to_device
from classgrad.distributed import World, world
from classgrad.errors import UserError
from classgrad.networks.network import Network
from classgrad.networks.shard import Shard
from classgrad.settings import Settings
from classgrad.tasks import Task


@dataclass(frozen=True)
class Step:
    """One training step: `images` in [0, 1], `x` the network's inputs made of them, labels `y`.

    The samples are `task.train` at `index`. The task has at most `steps` steps, of which `number`
    came before this one. With several processes, each has a shard of the samples at `batch`. A
    fresh optimiser was made for this task: all its momentum is from this task, even where it was
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
        """Return the rows of the whole batch, given those for `x`; differentiable."""
        return self.shard.gather(rows)

    @property
    def epoch(self) -> int:
        """Number of the epoch, from 0."""
        return self.number // self.per_epoch


@dataclass(frozen=True)
class LayerRank:
    """How much of a layer is protected: `rank` of `dimension` directions.

    Where similar classes share directions: the group of each class so far, and its cosine with the
    class by which it joined the group, 1 for the first of a group.

    Where a task selects units: how many the newest task uses, and how many its training has
    switched on or off.
    """

    name: str
    dimension: int
    rank: int
    groups: tuple[int, ...] = ()
    cosines: tuple[float, ...] = ()
    units: int | None = None
    switched: int | None = None


@dataclass(frozen=True)
class Held:
    """The share of a class's energy, 0 to 1, that a layer's basis holds, at least.

    `promised` is the ε the class was learnt with. Tasks count from 0; label None is a whole task.
    """

    layer: str
    task: int
    label: int | None
    promised: float
    share: float


class Fit(Protocol):
    """The training loop over some tasks, for `epochs` epochs or as many as the settings say.

    With a `factor` it is that many times as long, and so is the schedule of the learning rate.
    """

    def __call__(
        self, tasks: Sequence[Task], epochs: int | None = None, *, factor: int = 1
    ) -> None:
        """Train."""


class Method(Settings):
    """An algorithm that learns a stream of tasks.

    Fields are the hyper-parameters; private attributes hold what a method keeps between tasks, and
    `state_dict` has to return it. Methods are called in the order they are written here.
    """

    model_config = ConfigDict(frozen=False)
    kind = "hyper-parameter"
    name: ClassVar[str]
    summary: ClassVar[str]
    joint: ClassVar[bool] = False  # learns all tasks at once: only the final accuracy has a meaning
    revisits: ClassVar[bool] = False  # trains the heads of earlier tasks too
    first_task_is_finetune: ClassVar[bool] = True  # learns the first task exactly as finetune does
    rehearsal_free: ClassVar[bool] = True  # keeps no samples, and needs no tasks in advance
    on_cpu: ClassVar[bool] = False  # its state stays on the CPU, wherever the network is
    parallel: ClassVar[bool] = False  # can be trained by several processes, with the same result

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Change the network once; it has the head of the first task already."""
        return net

    def begin_task(self, net: Network, task: Task) -> None:
        """Add or freeze parameters; the optimiser is built after this."""

    def continue_task(self, net: Network, task: Task) -> None:
        """Resume a task that was cut short, instead of `begin_task`; all states are loaded."""

    def parameters(self, net: Network, tasks: Sequence[Task]) -> Iterator[nn.Parameter]:
        """Yield the parameters to optimise: the trunk, and the heads of the current tasks.

        If `revisits`, the heads of all tasks so far.
        """
        yield from net.trunk.parameters()
        task_ids = range(len(net.heads)) if self.revisits else [task.id for task in tasks]
        heads = [p for task in task_ids for p in net.head_parameters(task)]
        yield from dict.fromkeys(heads)

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Train on a task; `fit` runs the training loop over the tasks it is given."""
        fit([task])

    def rounds(self, task: Task) -> int:
        """Return how many times, at most, `fit_task` calls `fit`."""
        return 1

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the mean loss of a batch, or of this process's shard of it."""
        return functional.cross_entropy(net(step.x, step.task.id), step.y)

    def before_backward(self, net: Network, step: Step) -> None:
        """Prepare for the gradients of a loss, which are all None."""

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Edit the gradients, between `backward` and the optimiser's step."""

    def after_step(self, net: Network, step: Step) -> None:
        """Edit the weights after the optimiser's step."""

    def best_so_far(self, net: Network) -> None:
        """Note that these weights are the best yet, so that the task may end with them.

        Called after an epoch, by a schedule that goes back to the best weights.
        """

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Store what protects this task from later ones, computed from its training data only."""

    def close(self) -> None:
        """Remove every hook; called when a task ends, also by an exception."""

    def forget_class(self, number: int) -> None:
        """Drop what is kept for one class alone; `number` is its index in the order of learning."""

    def layer_ranks(self) -> list[LayerRank]:
        """Return how much of each layer is protected."""
        return []

    def gradient_projector(self) -> Projector | None:
        """Return what projects the gradients of single layers, if anything does."""
        return None

    def held(self) -> list[Held]:
        """Return the share of each class that is still protected, for a method with a budget."""
        return []

    def stored_parameters(self, net: Network) -> int:
        """Return the number of non-zero parameters stored for all tasks, heads included."""
        return sum(int(parameter.count_nonzero()) for parameter in net.parameters())

    def memory_bytes(self) -> int:
        """Return the bytes kept between tasks, besides the network."""
        return sum(nbytes(value) for value in self.state_dict().values())

    def state_dict(self) -> dict[str, Any]:
        """Return the state kept between tasks: tensors, numbers, strings, lists and dicts."""
        return {}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state whose tensors are on the network's device, or on the CPU if `on_cpu`."""

    def restore(self, state: dict[str, Any], net: Network) -> None:
        """Load a state whose tensors are on any device."""
        device = torch.device("cpu") if self.on_cpu else next(net.parameters()).device
        self.load_state_dict(to_device(a_dict(state), device), net)

    # For methods that several processes can train. With one process every call is a no-op.

    @property
    def processes(self) -> World:
        """The processes that train together, to sum over them and to take turns at batches."""
        return world()

    @contextmanager
    def sharded(self, net: Network, count: int) -> Iterator[Shard]:
        """Split a batch of `count` samples in the block; yield this process's shard."""
        with world().sharding(count) as shard, net.sharded(shard):
            yield shard

    def broadcast_state(self, net: Network) -> None:
        """Broadcast the main process's state, so that rounding cannot make processes diverge."""
        state = broadcast_state(world(), self.state_dict)
        if not world().is_main_process:
            self.restore(state, net)


def checked_method(method: object) -> Method:
    """Return a method that was given as an object; refuse anything else, such as a class."""
    if isinstance(method, Method):
        return method
    given = f"the class {method.__name__}" if isinstance(method, type) else repr(method)
    instead = f"{method.__name__}()" if isinstance(method, type) else "an object such as CGP()"
    raise UserError(f"{given} is not a method: give {instead}")


def broadcast_state(together: World, get: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the state that `get` gives in the main process."""
    text, values = b"", b""
    if together.is_main_process:
        state = get()
        if together.size == 1:
            return state
        tree, tensors = encode(state)
        text = json.dumps(tree, allow_nan=False).encode()
        values = b"".join(file_pieces(tensors))
    text, values = together.broadcast_bytes(text), together.broadcast_bytes(values)
    if together.is_main_process:
        return state
    return dict(decode(parse_json(text), from_file(values)))


def a_dict(state: Any) -> dict[str, Any]:
    """Return a part of a saved state that has to be a dict: PyTorch warns of tensor["name"]."""
    if not isinstance(state, dict):
        raise TypeError(f"a {type(state).__name__} instead of a dict")
    return state


def nbytes(value: Any) -> int:
    """Return the bytes of all tensors in nested dicts, lists and tuples."""
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return sum(nbytes(part) for part in value.values())
    if isinstance(value, list | tuple):
        return sum(nbytes(part) for part in value)
    return 0
