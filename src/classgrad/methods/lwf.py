"""Learning without Forgetting (Li, Hoiem; ECCV 2016): new data, answered as before by old heads.

Before a task, the answers y_o of every old head to the task's training images are recorded. While
the task is learnt, the old heads are to give them still:

L = L_new(y_n, ŷ_n) + λ Σ_old L_old(y_o, ŷ_o)
L_old(y_o, ŷ_o) = - Σ_i y'_o(i) log ŷ'_o(i),  y'_o = softmax(logits / T) of the recorded answers,
ŷ'_o the same of the present ones

Both are means over the batch. L_old is summed over the old heads, as in the paper, so that the pull
grows with their number; it has no factor T². The entropy of y'_o, a constant, is taken off, so that
L_old is 0 as long as nothing has moved. No image of an old task is kept.

Where all tasks have one head, and the same embedding, the old heads are one and count once. Where
the embedding depends on the task (norms of its own), each head has a pass with the norms of its
task, with stored statistics and without dropout, just as its answers were recorded.

Differences from the paper: the new head is not trained alone first (the paper's warm-up), as in the
comparison in HAT's code; no weight decay unless training has it.

Differences from HAT's code: the answers are recorded once instead of asking a copy of the network
in every step, which comes to the same, as images are not augmented; λ = 1 and T = 2 are the paper's
(there 2 and 1, which needs smaller steps); no clipping of gradients.
"""

from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr
from torch import Generator, Tensor
from torch.nn import functional

from classgrad import seeds
from classgrad.methods.base import Step
from classgrad.methods.distillation import Distilled, logits_of, record
from classgrad.networks.network import Network
from classgrad.tasks import Task


class LwF(Distilled):
    """Learn each task while the old heads answer its images as they did before it."""

    name: ClassVar[str] = "lwf"
    summary: ClassVar[str] = "Learning without Forgetting: old heads' answers kept (ECCV 2016)"
    aliases: ClassVar[dict[str, str]] = {"lambda": "strength", "T": "temperature"}

    strength: float = Field(default=1.0, ge=0, description="weight of the old heads' answers (λ)")
    temperature: float = Field(
        default=2.0, ge=1e-3, description="what logits are divided by there (T)"
    )

    if TYPE_CHECKING:  # aliases, see Settings
        T: InitVar[float] = temperature

    _answers: Tensor | None = PrivateAttr(default=None)

    def begin_task(self, net: Network, task: Task) -> None:
        """Record what the old heads say of the new images."""
        if task.id:
            chance = seeds.generator(net.seed, "answers", task.id)
            self._answers = record(net, task.train, task.transform, old_heads(net, task.id), chance)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the new head's cross-entropy and λ times that of the old heads."""
        if self._answers is None:
            return super().loss(net, step)
        features = net.embed(step.x, step.task.id)
        new = functional.cross_entropy(net.classify(features, step.task.id), step.y)
        heads = logits_of(net, step.x, old_heads(net, step.task.id), features)
        recorded = self._answers[step.index].split([head.shape[1] for head in heads], dim=1)
        old = [
            distillation(now, before, self.temperature)
            for now, before in zip(heads, recorded, strict=True)
        ]
        return new + self.strength * sum(old)

    def end_task(self, net: Network, task: Task, generator: Generator) -> None:
        """Drop the answers: the next task asks for new ones."""
        self._answers = None

    def state_dict(self) -> dict[str, Any]:
        """Return the recorded answers, which there are within a task only."""
        return {"answers": self._answers}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Continue from a state."""
        self._answers = state["answers"]


def old_heads(net: Network, task: int) -> list[int]:
    """Return the earlier tasks whose answers differ: one where a head and embedding serve all."""
    one_for_all = net.shared_head and not net.task_dependent
    return [0] if one_for_all else list(range(task))


def distillation(logits: Tensor, recorded: Tensor, temperature: float) -> Tensor:
    """Logits (n x classes) -> L_old: 0 where they equal the recorded ones, else more."""
    wanted = (recorded / temperature).softmax(1)
    entropy = functional.cross_entropy(recorded / temperature, wanted)
    return functional.cross_entropy(logits / temperature, wanted) - entropy
