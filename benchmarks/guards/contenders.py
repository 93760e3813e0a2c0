"""The ways to learn a task after others: full fine-tuning, PEFT's OSF and LoRA, and our guard."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from benchmarks.guards.models import Model
from benchmarks.guards.tasks import Samples
from classgrad.guard.attach import Guard, attach
from classgrad.methods import CGP, GPM

Weights = Mapping[str, Tensor]


class FineTuning:
    """Everything learns, and nothing is kept."""

    label: ClassVar[str] = "full fine-tuning"
    settings: ClassVar[list[dict[str, Any]]] = [{}]  # to choose from, beside the learning rate
    note: ClassVar[dict[str, str]] = {}  # by model

    def __init__(self, **settings: Any) -> None:
        self.given = settings

    def begin_task(self, model: Model, task: int) -> nn.Module:
        """Return what is trained, with `requires_grad` where it learns."""
        return model

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the optimiser of a task."""

    def merge(self, net: nn.Module) -> Model:
        """Return the model, with what was learnt in its own weights."""
        assert isinstance(net, Model)
        return net

    def end_task(self, model: Model, samples: Samples, task: int) -> None:
        """Protect the task that was learnt."""

    def kept(self) -> int:
        """Return how many numbers are kept between tasks, beside the model."""
        return 0

    def inside(self, before: Weights, after: Weights) -> list[float]:
        """Return which share of each layer's update is along directions that are protected."""
        return []


class Guarded(FineTuning):
    """Our guard, in an ordinary training loop."""

    settings: ClassVar[list[dict[str, Any]]] = [{"epsilon": e} for e in (0.95, 0.99)]
    method: ClassVar[type[CGP] | type[GPM]]
    guard: Guard | None = None

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the guard watch it."""
        assert self.guard is not None
        self.guard.watch(optimizer)

    def end_task(self, model: Model, samples: Samples, task: int) -> None:
        """Protect what the samples of the task use."""
        if self.guard is None:  # nothing is protected while the first task is learnt
            self.guard = attach(model, self.method(**self.given))
        self.guard.end_task([samples], forward=lambda x: model(x, task))

    def kept(self) -> int:
        """Count the numbers that the guard would save."""
        assert self.guard is not None
        return sum(tensor.numel() for tensor in tensors(self.guard.state_dict()))

    def inside(self, before: Weights, after: Weights) -> list[float]:
        """Return ||ΔW S|| / ||ΔW|| of each layer; before the task's own directions are added."""
        assert self.guard is not None
        shares = []
        for name, subspace in self.guard.method.subspaces.items():
            if name in before:
                move = (after[name] - before[name]).flatten(1).double()
                shares.append(share(move @ subspace.basis, move))
        return shares


class GuardCGP(Guarded):
    """The guard with CGP."""

    label = "guard, CGP"
    method = CGP


class GuardGPM(Guarded):
    """The guard with GPM."""

    label = "guard, GPM"
    method = GPM


class Adapted(FineTuning):
    """A method of PEFT; what it has learnt is merged into the weights after each task."""

    def config(self, model: Model) -> Any:
        """Return PEFT's configuration."""
        raise NotImplementedError

    def begin_task(self, model: Model, task: int) -> nn.Module:
        """Wrap the model; beside what PEFT trains, the task's head learns."""
        from peft import get_peft_model

        net: nn.Module = get_peft_model(model, self.config(model))
        model.heads[task].requires_grad_(True)
        return net

    def merge(self, net: nn.Module) -> Model:
        """Merge, and remove PEFT's layers."""
        wrapped: Any = net
        model: Model = wrapped.merge_and_unload()
        return model.requires_grad_(True)


class OSF(Adapted):
    """Orthogonal subspace fine-tuning: the strongest singular directions of the weights stay."""

    label = "PEFT's OSF"
    settings: ClassVar[list[dict[str, Any]]] = [{"effective_rank": r} for r in (0.5, 0.9)]
    note: ClassVar[dict[str, str]] = {"CNN": "convolutions, which OSF does not have, frozen"}

    def config(self, model: Model) -> Any:
        """Return the configuration for all Linear layers."""
        from peft import OSFConfig

        return OSFConfig(target_modules=linear_layers(model), **self.given)

    def inside(self, before: Weights, after: Weights) -> list[float]:
        """Return ||ΔW - (I - U Uᵀ) ΔW (I - V Vᵀ)|| / ||ΔW|| of each Linear layer.

        U and V are the strongest singular directions of W before the task.
        """
        shares = []
        for name in (name for name, w in before.items() if w.dim() == 2):
            move, weight = (after[name] - before[name]).double(), before[name].double()
            rank = int(min(weight.shape) * self.given["effective_rank"])
            u, _, v = torch.linalg.svd(weight, full_matrices=False)
            u, v = u[:, :rank], v[:rank].T
            free = move - u @ (u.T @ move)
            free = free - (free @ v) @ v.T
            shares.append(share(move - free, move))
        return shares


class LoRA(Adapted):
    """Low-rank adapters."""

    label = "PEFT's LoRA"
    settings: ClassVar[list[dict[str, Any]]] = [{"r": r} for r in (2, 8)]

    def config(self, model: Model) -> Any:
        """Return the configuration for all layers, with α = 2 r."""
        from peft import LoraConfig

        names = list(model.layers())
        return LoraConfig(target_modules=names, lora_alpha=2 * self.given["r"], **self.given)


CONTENDERS: list[type[FineTuning]] = [FineTuning, OSF, LoRA, GuardCGP, GuardGPM]


def linear_layers(model: Model) -> list[str]:
    """Name the Linear layers of the trunk."""
    return [name for name, layer in model.layers().items() if isinstance(layer, nn.Linear)]


def share(part: Tensor, whole: Tensor) -> float:
    """Return the length of a part as a share of the whole, 0 if that is 0."""
    return float(part.norm() / whole.norm()) if whole.any() else 0.0


def tensors(state: Any) -> Iterator[Tensor]:
    """Yield all tensors in nested dicts and lists."""
    if isinstance(state, Tensor):
        yield state
    elif isinstance(state, Mapping):
        for value in state.values():
            yield from tensors(value)
    elif isinstance(state, list | tuple):
        for value in state:
            yield from tensors(value)
