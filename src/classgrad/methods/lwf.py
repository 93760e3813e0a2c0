"""Learning without Forgetting (Li, Hoiem; ECCV 2016): old heads keep their outputs for new data.

With y_o the outputs that an old head had before the task for the task's training images, the
outputs of the old heads are pulled to them while the task is learnt:

L = L_new(y_n, ŷ_n) + λ Σ_old L_old(y_o, ŷ_o)
L_old(y_o, ŷ_o) = - Σ_i y'_o(i) log ŷ'_o(i),  y'_o = softmax(logits / T) of the earlier outputs,
ŷ'_o the same of the current ones

Both are means over the batch. L_old is summed over the old heads, as in the paper, so that the pull
grows with their number; it has no factor T². The entropy of y'_o, a constant, is subtracted, so
that L_old is 0 as long as no weight has moved. For that, both outputs are of the same batch and
the same dropout mask (`classgrad.methods.distillation`). No image of an old task is kept.

Where all tasks have one head, and the same embedding, the old heads are one and count once. Where
the embedding depends on the task (norms per task), each head has a pass with the norms of its task,
in evaluation mode, so without dropout and with stored statistics where there are any.

Differences from the paper: the new head is not trained alone first (the paper's warm-up), as in the
comparison in HAT's code; no weight decay unless training has it.

Differences from HAT's code: where the output for an image is always the same, it is recorded once
instead of computed by a copy of the network in every step, with the same result, as images are not
augmented; the copy has the dropout mask of the step (there none); λ = 1 and T = 2 are the paper's
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
    """Learn each task while the old heads keep the outputs for its images that they had before."""

    name: ClassVar[str] = "lwf"
    summary: ClassVar[str] = "Learning without Forgetting: old heads' outputs kept (ECCV 2016)"
    aliases: ClassVar[dict[str, str]] = {"lambda": "strength", "T": "temperature"}

    strength: float = Field(default=1.0, ge=0, description="weight of the old heads' outputs (λ)")
    temperature: float = Field(
        default=2.0, ge=1e-3, description="divisor of their logits before the softmax (T)"
    )

    if TYPE_CHECKING:  # aliases, see Settings
        T: InitVar[float] = temperature

    _recorded: Tensor | None = PrivateAttr(default=None)

    def begin_task(self, net: Network, task: Task) -> None:
        """Record the outputs of the old heads for the new images, or keep the network itself."""
        if task.id and self.needs_teacher(net, task):
            self.keep_teacher(net)
        elif task.id:
            rng = seeds.generator(net.seed, "answers", task.id)
            self._recorded = record(net, task.train, task.transform, old_heads(net, task.id), rng)

    def loss(self, net: Network, step: Step) -> Tensor:
        """Return the new head's cross-entropy plus λ times the old heads' distillation loss."""
        old_tasks = old_heads(net, step.task.id)
        earlier = self.teacher_logits(net, step.x, old_tasks)
        if self._recorded is not None:
            earlier = self._recorded[step.index]
        if earlier is None:
            return super().loss(net, step)
        features = net.embed(step.x, step.task.id)
        new = functional.cross_entropy(net.classify(features, step.task.id), step.y)
        heads = logits_of(net, step.x, old_tasks, features)
        parts = earlier.split([head.shape[1] for head in heads], dim=1)
        old = [
            distillation(now, before, self.temperature)
            for now, before in zip(heads, parts, strict=True)
        ]
        return new + self.strength * sum(old)

    def end_task(self, net: Network, task: Task, generator: Generator) -> None:
        """Drop the earlier outputs or network: the next task has its own."""
        self._recorded = self._teacher = None

    def state_dict(self) -> dict[str, Any]:
        """Return the recorded outputs or the earlier network, which exist only within a task."""
        return {**super().state_dict(), "answers": self._recorded}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        super().load_state_dict(state, net)
        self._recorded = state["answers"]


def old_heads(net: Network, task: int) -> list[int]:
    """Return the earlier tasks, or only the first if all share one head and one embedding."""
    one_for_all = net.shared_head and not net.task_dependent
    return [0] if one_for_all else list(range(task))


def distillation(logits: Tensor, earlier: Tensor, temperature: float) -> Tensor:
    """Logits (n x classes) -> L_old: 0 where they equal the earlier ones, else positive."""
    targets = (earlier / temperature).softmax(1)
    entropy = functional.cross_entropy(earlier / temperature, targets)
    return functional.cross_entropy(logits / temperature, targets) - entropy
