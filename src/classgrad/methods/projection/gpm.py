"""Gradient Projection Memory (Saha, Garg, Roy; ICLR 2021): one basis update per task.

After a task, for every layer, R holds the inputs of `samples` random training samples of the task.
The residual R̂ = R - S Sᵀ R is decomposed, and its first k left singular vectors join S, with the
smallest k for which (||R||² - ||R̂||² + Σ σ̂²[:k]) >= ε ||R||². Later gradients become
g - g S Sᵀ, and BatchNorm's scale and shift stay as the first task left them.

Differences from the released code: the first task's k is the smallest that reaches ε, not one less
(`gpm_compat=True` gives that); ε stops growing at `energy_limit`.
"""

from collections.abc import Callable
from typing import ClassVar

from classgrad.core.collect import Collected
from classgrad.core.selection import plain
from classgrad.methods.projection.budget import Budgeted


class GPM(Budgeted):
    """Protect the share ε of each task's energy, all classes together."""

    name: ClassVar[str] = "gpm"
    summary: ClassVar[str] = "Gradient Projection Memory: bases per task (ICLR 2021)"
    parallel: ClassVar[bool] = True

    def grow(self, gather: Callable[..., Collected]) -> Collected:
        """Add the task's main directions to every layer."""
        collected = gather(pool=True)
        for name, c in collected.classes[0].representations.items():
            basis = self._subspaces[name].basis
            chosen = plain(basis, c, self.share_to_hold(name, c))
            added = self.add(name, chosen.new)
            collected.classes[0].note_held(name, chosen.held(len(added)))
        return collected
