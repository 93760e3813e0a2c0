"""The ways to tune a network task after task: a guard, PEFT's OSF and LoRA, EWC, and nothing."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.sentences.top import Top
from classgrad.guard.attach import Guard, attach
from classgrad.methods import CGP, GPM

FISHER = 300  # sentences of a task that importance is estimated on


class FineTuning:
    """Every weight of the last blocks learns, and nothing is kept."""

    label: ClassVar[str] = "no guard"
    settings: ClassVar[list[dict[str, Any]]] = [{}]  # to choose from, beside the learning rate

    def __init__(self, **settings: Any) -> None:
        self.given = settings

    def begin_task(self, model: Top, task: int) -> nn.Module:
        """Return what is trained, with `requires_grad` where it learns."""
        return model

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Note the optimiser of a task."""

    def penalty(self, net: nn.Module) -> Tensor | float:
        """Return what is added to the loss."""
        return 0.0

    def merge(self, net: nn.Module) -> Top:
        """Return the model, with what was learnt in its own weights."""
        assert isinstance(net, Top)
        return net

    def end_task(self, model: Top, numbers: Tensor, labels: Tensor, task: int) -> None:
        """Protect the task that was learnt."""


class Guarded(FineTuning):
    """Our guard, in an ordinary training loop."""

    settings: ClassVar[list[dict[str, Any]]] = [{"epsilon": e} for e in (0.97, 0.99)]
    method: ClassVar[type[CGP] | type[GPM]]
    guard: Guard | None = None

    def watch(self, optimizer: torch.optim.Optimizer) -> None:
        """Let the guard watch it."""
        if self.guard is not None:
            self.guard.watch(optimizer)

    def end_task(self, model: Top, numbers: Tensor, labels: Tensor, task: int) -> None:
        """Protect what the sentences of the task use."""
        if self.guard is None:  # nothing is protected while the first task is learnt
            self.guard = attach(model, self.method(**self.given), pretrained=True)
        batches = list(zip(numbers.split(64), labels.split(64), strict=True))
        model.cache[0].collecting = True
        self.guard.end_task(batches, forward=lambda x: model(x, task))
        model.cache[0].collecting = False


class GuardCGP(Guarded):
    """The guard with CGP."""

    label = "guard, CGP"
    method = CGP


class GuardGPM(Guarded):
    """The guard with GPM."""

    label = "guard, GPM"
    method = GPM


class EWC(FineTuning):
    """Elastic weight consolidation: weights that mattered for old tasks are held by springs.

    Importance is the mean of squared gradients of the likelihood of the true labels, summed over
    tasks, as in online EWC without decay.
    """

    label = "EWC"
    settings: ClassVar[list[dict[str, Any]]] = [{"strength": s} for s in (1e3, 1e5)]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.importance: dict[str, Tensor] = {}
        self.anchor: dict[str, Tensor] = {}

    def penalty(self, net: nn.Module) -> Tensor | float:
        """Return λ/2 Σ F (w - w*)²."""
        strength: float = self.given["strength"]
        total: Tensor | float = 0.0
        for name, weight in weights(net).items():
            if name in self.anchor:
                total = total + (self.importance[name] * (weight - self.anchor[name]) ** 2).sum()
        return strength / 2 * total

    def end_task(self, model: Top, numbers: Tensor, labels: Tensor, task: int) -> None:
        """Add the importance of weights for a task."""
        chosen = torch.arange(0, len(numbers), max(len(numbers) // FISHER, 1))
        known = weights(model)
        for place in chosen:
            logits = model(numbers[place][None], task)
            loss = functional.cross_entropy(logits, labels[place][None])
            gradients = torch.autograd.grad(loss, list(known.values()))
            for name, gradient in zip(known, gradients, strict=True):
                share = gradient.square() / len(chosen)
                self.importance[name] = self.importance.get(name, 0.0) + share
        self.anchor = {name: weight.detach().clone() for name, weight in known.items()}


class Adapted(FineTuning):
    """A method of PEFT; what it has learnt is merged into the weights after each task."""

    def config(self, model: Top) -> Any:
        """Return PEFT's configuration."""
        raise NotImplementedError

    def begin_task(self, model: Top, task: int) -> nn.Module:
        """Wrap the model; beside what PEFT trains, the task's head learns."""
        from peft import get_peft_model

        net: nn.Module = get_peft_model(model, self.config(model))
        model.heads[task].requires_grad_(True)
        return net

    def merge(self, net: nn.Module) -> Top:
        """Merge, and remove PEFT's layers."""
        wrapped: Any = net
        model: Top = wrapped.merge_and_unload()
        model.requires_grad_(False)
        for layer in model.linear().values():
            layer.weight.requires_grad_(True)
        return model


class OSF(Adapted):
    """Orthogonal subspace fine-tuning: the strongest singular directions of the weights stay."""

    label = "PEFT's OSF"
    settings: ClassVar[list[dict[str, Any]]] = [{"effective_rank": r} for r in (0.5, 0.9)]

    def config(self, model: Top) -> Any:
        """Return the configuration for the layers of the blocks."""
        from peft import OSFConfig

        return OSFConfig(target_modules=list(model.linear()), **self.given)


class LoRA(Adapted):
    """Low-rank adapters, with α = 2 r."""

    label = "PEFT's LoRA"
    settings: ClassVar[list[dict[str, Any]]] = [{"r": 8}]

    def config(self, model: Top) -> Any:
        """Return the configuration for the layers of the blocks."""
        from peft import LoraConfig

        names = list(model.linear())
        return LoraConfig(target_modules=names, lora_alpha=2 * self.given["r"], **self.given)


def weights(net: nn.Module) -> dict[str, Tensor]:
    """Return what learns of the blocks, by name."""
    return {
        name: weight
        for name, weight in net.named_parameters()
        if weight.requires_grad and "heads" not in name
    }


CONTENDERS: list[type[FineTuning]] = [FineTuning, EWC, OSF, LoRA, GuardCGP, GuardGPM]
