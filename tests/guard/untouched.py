"""What a refused call must leave as it was: a model's layers, weights, norms and hooks."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.guard.attach import Guard
from classgrad.networks import TaskBatchNorm


class Before:
    """A model, and its optimiser if given, as they are now."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.model, self.optimizer = model, optimizer
        self.facts = dict(self._facts())
        self.values = {name: tensor.detach().clone() for name, tensor in self._tensors()}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        # Not a state dict, which would let a guard with project_every project.
        yield from self.model.named_parameters(remove_duplicate=False)
        yield from self.model.named_buffers(remove_duplicate=False)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        for name, module in self.model.named_modules(remove_duplicate=False):
            yield f"layer {name}", module
            yield f"attributes of {name}", vars(module).keys() | set()
            yield f"training of {name}", module.training
            for label, hooks in vars(module).items():
                if label.endswith("_hooks"):
                    yield f"{label} of {name}", list(hooks.values())
            if isinstance(module, TaskBatchNorm):
                yield f"tasks of {name}", (module.tasks, module.task)
        for name, tensor in self._tensors():
            yield f"tensor {name}", id(tensor)
            yield f"requires_grad of {name}", tensor.requires_grad
            yield f"grad of {name}", tensor.grad is None
            for label in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                yield f"{label} of {name}", list((getattr(tensor, label) or {}).values())
        for label, hooks in vars(self.optimizer).items() if self.optimizer else ():
            if label.endswith("_hooks"):
                yield f"{label} of the optimiser", list(hooks.values())

    def changed(self) -> list[str]:
        """Name all that is not as it was, weights and statistics to the bit."""
        now, values = dict(self._facts()), dict(self._tensors())
        facts = [name for name in now.keys() | self.facts if now.get(name) != self.facts.get(name)]
        return facts + [
            f"values of {name}"
            for name, before in self.values.items()
            if not before.is_meta and not torch.equal(values.get(name, torch.empty(0)), before)
        ]


class BeforeGuarded(Before):
    """A guarded model; also what its guard knows."""

    def __init__(self, guard: Guard, optimizer: torch.optim.Optimizer | None = None) -> None:
        self.guard = guard
        super().__init__(guard.model, optimizer)

    def _facts(self) -> Iterator[tuple[str, Any]]:
        yield from super()._facts()
        yield "ranks", self.guard.layer_ranks()
        yield "frozen", list(self.guard.method.frozen)
        yield "tasks", len(self.guard._history)
