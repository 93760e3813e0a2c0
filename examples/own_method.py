"""A method of your own: a class with its hyper-parameters as fields, run like any other.

On the command line it is named by its module and class, with this file in the working directory:

    classgrad run split-digits --method own_method:Anchor,finetune --set epochs=3
"""

from typing import Any, ClassVar

from pydantic import Field, PrivateAttr
from torch import Tensor

import classgrad
from classgrad.methods import Finetune, Method, Step
from classgrad.networks import Network
from classgrad.tasks import Task


class Anchor(Method):
    """Pull the weights back to where the last task left them (an L2 penalty)."""

    name: ClassVar[str] = "anchor"
    summary: ClassVar[str] = "L2 to the weights of the task before"

    strength: float = Field(default=1.0, ge=0, description="weight of the penalty")
    _old: list[Tensor] = PrivateAttr(default_factory=list)

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept between tasks, so that a run can be resumed."""
        return {"old": self._old}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state."""
        self._old = state["old"]

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return cross-entropy plus the penalty."""
        loss = super().loss(net, step)
        for now, old in zip(net.trunk.parameters(), self._old, strict=False):
            loss = loss + self.strength / 2 * (now - old).square().sum()
        return loss

    def end_task(self, net: Network, task: Task, generator: object) -> None:
        """Remember where the weights are."""
        self._old = [p.detach().clone() for p in net.trunk.parameters()]


def main() -> None:
    """Compare it with finetuning."""
    for method in (Anchor(strength=0.1), Finetune()):
        record = classgrad.run("split-digits", method, values={"epochs": 3})
        print(
            f"{method.name}: ACC {record.average_accuracy:.1f}, BWT {record.backward_transfer:.1f}"
        )


if __name__ == "__main__":
    main()
