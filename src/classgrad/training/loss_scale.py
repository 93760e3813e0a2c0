"""What keeps small gradients from vanishing where products are taken in float16.

float16 has nothing between 0 and 6e-8, and gradients of single samples are often smaller. The loss
is multiplied by a factor before they are taken, and they are divided by it afterwards; the factor
is a power of two, which changes no digit. Where it was too much, gradients are infinite: the step
is left out, and the factor halved. It doubles again after many good steps (Micikevicius et al.,
Mixed Precision Training, ICLR 2018).
"""

from collections.abc import Iterable

import torch
from torch import nn

START = 2.0**16
PATIENCE = 2000  # good steps until the factor doubles


class LossScale:
    """The factor of the loss, and the good steps since it changed: all that is to be kept of it."""

    def __init__(self) -> None:
        self.factor, self.good = START, 0

    def unscale(self, parameters: Iterable[nn.Parameter]) -> bool:
        """Divide the gradients by the factor, and adapt it; tell whether the step can be taken.

        With a factor of 1 it always is: gradients that are infinite then are so without it.
        """
        gradients = [p.grad for p in parameters if p.grad is not None]
        for gradient in gradients:
            gradient.div_(self.factor)
        finite = bool(torch.stack([gradient.isfinite().all() for gradient in gradients]).all())
        if not finite:
            taken = self.factor == 1
            self.factor, self.good = max(1.0, self.factor / 2), 0
            return taken
        self.good += 1
        if self.good == PATIENCE:
            self.factor, self.good = 2 * self.factor, 0
        return True
