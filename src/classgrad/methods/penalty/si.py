"""Synaptic Intelligence (Zenke, Poole, Ganguli; ICML 2017).

While a task is learnt, each weight accumulates its contribution to the decrease of the loss,
ω <- ω - g Δθ at every step, with g the gradient of the cross-entropy alone: over small steps
Σ_k ω_k is the decrease of the loss. At the task's end

    Ω <- max(0, Ω + ω / ((θ - θ_start)² + ξ)),

and the loss of the next task is L_ce + c Σ_k Ω_k (θ_k - θ*_k)², with θ* the weights after the
latest task.

Δθ is the whole movement of a step, including the pull to θ*, as in the paper and its code: only
then does ω follow the path of the weights. With the optimiser's part alone, a weight that does not
move because gradient and pull are in balance would gain importance in every step.

As in the released code, it is the sum that is clamped at 0: a negative ω of a task, which noise in
the gradients and the pull can cause, reduces earlier importance.

Differences from the released code: the penalty acts by an implicit step
(`classgrad.methods.penalty.base`). Weight decay moves weights without being part of g. Where the
schedule restores the best weights at the task's end (plateau), which the released code does not
know, θ is those, and ω the sum over the path up to them.
"""

from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from classgrad.methods.base import Step
from classgrad.methods.penalty.base import Anchored, Strength, weights_of
from classgrad.networks.network import Network
from classgrad.tasks import Task


class SI(Anchored):
    """Pull each weight to its anchor by its contribution to the decrease of the loss."""

    name: ClassVar[str] = "si"
    summary: ClassVar[str] = "Synaptic Intelligence: importance along the path (ICML 2017)"
    aliases: ClassVar[dict[str, str]] = {"c": "strength", "xi": "damping"}

    strength: Strength = Field(default=0.1, description="weight of the penalty (c)")
    damping: float = Field(
        default=0.1, ge=1e-12, description="added to squared distances, keeps Ω finite (ξ)"
    )

    if TYPE_CHECKING:  # aliases, see Settings
        c: InitVar[Strength] = strength
        xi: InitVar[float] = damping

    _path: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _best_path: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # up to the best weights
    _before: dict[str, Tensor] = PrivateAttr(default_factory=dict)  # during a step only

    def begin_task(self, net: Network, task: Task) -> None:
        """Start the path: the anchor is where the task starts, in the first task too."""
        self._anchor = weights_of(net)
        self._path = {name: torch.zeros_like(p) for name, p in self._anchor.items()}
        self._best_path = {}

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Keep the weights before the step."""
        self._before = weights_of(net)

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Pull to the anchor, then add -g Δθ to the path."""
        super().after_step(net, step)
        for name, parameter in net.shared_parameters().items():
            if parameter.grad is not None:
                moved = self._before[name].sub_(parameter)  # -Δθ
                self._path[name].addcmul_(parameter.grad, moved)
        self._before = {}

    def best_so_far(self, net: Network) -> None:
        """Keep the path to these weights, in case the task ends with them."""
        self._best_path = copied(self._path)

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Turn the path to the weights the task ended with into importance."""
        weights, omega = weights_of(net), {}
        for name, path in (self._best_path or self._path).items():
            per_move = path / ((weights[name] - self._anchor[name]).square() + self.damping)
            omega[name] = (self._importance.get(name, 0) + per_move).clamp(min=0)
        self.keep(weights, omega)
        self._path, self._best_path = {}, {}

    def state_dict(self) -> dict[str, Any]:
        """Return anchor and importance and, within a task, the path so far and to the best."""
        paths = {"path": copied(self._path), "best_path": copied(self._best_path)}
        return {**super().state_dict(), **paths}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        super().load_state_dict(state, net)
        self._path = copied(state["path"])
        self._best_path = copied(state.get("best_path", {}))  # older states have none


def copied(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy that later steps do not change."""
    return {name: tensor.clone() for name, tensor in tensors.items()}
