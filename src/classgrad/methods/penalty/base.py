"""The base of the penalty methods: weights are pulled towards an anchor.

The loss of a later task is L(θ) + λ Σ_k Ω_k (θ_k - θ*_k)², with an importance Ω per weight. The
penalty is not part of the loss that is differentiated; after each step of the optimiser it moves
the weights by its own implicit (proximal) step,

    θ <- (θ + h θ*) / (1 + h),    h = rate * d²penalty/dθ² = rate * 2 λ Ω,

where the rate is the optimiser's effective step size, how far it moves a weight in the long run for
a gradient of 1 in every step: the learning rate for SGD, divided by (1 - momentum) with momentum,
and for Adam divided by √v, the root mean square of the weight's gradients. For small h this is the
gradient step of the penalty, θ - rate * 2 λ Ω (θ - θ*); the weights converge where the gradient of
the whole penalised loss is zero; and no λ can make them overshoot, whereas a gradient step diverges
once h exceeds 2.

Difference from the released code of these methods: there the penalty's gradient is part of the
optimiser's step, so it enters momentum and √v too, and large λ diverges unless gradients are
clipped. Validation uses plain cross-entropy here, the penalised loss in HAT's code.
"""

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor

from classgrad.methods.base import Method, Step
from classgrad.networks.network import Network

Strength = Annotated[float, Field(ge=0, le=1e30)]  # finite in single precision too


class Anchored(Method):
    """Learn by plain cross-entropy; pull shared weights to an anchor, by their importance."""

    aliases: ClassVar[dict[str, str]] = {"lambda": "strength"}
    factor: ClassVar[float] = 2.0  # second derivative of the penalty, over λ Ω

    strength: Strength = Field(default=1.0, description="weight of the penalty (λ)")

    _learnt: int = PrivateAttr(default=0)
    _anchor: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _importance: dict[str, Tensor] = PrivateAttr(default_factory=dict)
    _pull: tuple[list[Tensor], ...] | None = PrivateAttr(default=None)

    @property
    def anchor(self) -> dict[str, Tensor]:
        """The weights that later tasks are pulled to (θ*), by name."""
        return self._anchor

    @property
    def importance(self) -> dict[str, Tensor]:
        """How strongly each weight is pulled (Ω; for EWC the Fisher information F)."""
        return self._importance

    def keep(self, anchor: dict[str, Tensor], importance: dict[str, Tensor]) -> None:
        """Pull to this anchor from now on."""
        self._learnt += 1
        self._anchor, self._importance, self._pull = anchor, importance, None

    @torch.no_grad()
    def after_step(self, net: Network, step: Step) -> None:
        """Pull the weights to the anchor: θ + h/(1 + h) (θ* - θ)."""
        if not self._importance or step.optimizer.param_groups[0]["lr"] == 0:
            return
        if self._pull is None:
            self._pull = self._prepared(net)
        weights, anchors, inverse_curvature = self._pull
        # 1/h, because h may be 0 or too large for a float.
        shares = torch._foreach_mul(inverse_curvature, inverse_step_size(step.optimizer, weights))
        torch._foreach_add_(shares, 1)
        torch._foreach_reciprocal_(shares)
        torch._foreach_lerp_(weights, anchors, shares)

    def _prepared(self, net: Network) -> tuple[list[Tensor], ...]:
        """Return weights, anchors and 1 / second derivative of the penalty, in one order."""
        weights = net.shared_parameters()
        inverse_curvature = [
            (self.factor * self.strength * self._importance[name]).reciprocal() for name in weights
        ]
        return list(weights.values()), [self._anchor[name] for name in weights], inverse_curvature

    def state_dict(self) -> dict[str, Any]:
        """Return anchor and importance, and the number of tasks they are of."""
        return {
            "learnt": self._learnt,
            "anchor": dict(self._anchor),
            "importance": dict(self._importance),
        }

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        self._learnt, self._pull = state["learnt"], None
        self._anchor, self._importance = dict(state["anchor"]), dict(state["importance"])


def inverse_step_size(
    optimizer: torch.optim.Optimizer, weights: list[Tensor]
) -> float | list[Tensor]:
    """Return 1 / rate, one for all weights or, with Adam and AdamW, one for each."""
    group = optimizer.param_groups[0]
    if "betas" not in group:
        return float((1 - group["momentum"]) / group["lr"])
    inverses = []
    for weight in weights:
        state = optimizer.state.get(weight)
        if state is None:  # no gradient yet: the learning rate
            inverses.append(weight.new_tensor(1 / group["lr"]))
            continue
        correction = 1 - group["betas"][1] ** float(state["step"])  # v starts at 0
        root = (state["exp_avg_sq"] / correction).sqrt_()
        inverses.append(root.add_(group["eps"]).div_(group["lr"]))
    return inverses


def weights_of(net: Network) -> dict[str, Tensor]:
    """Return a copy of the weights that all tasks share."""
    return {name: p.detach().clone() for name, p in net.shared_parameters().items()}
