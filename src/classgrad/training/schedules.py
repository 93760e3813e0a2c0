"""Learning rates over a task: divided on plateaus as in the paper, cosine with warm-up, constant.

Attributes of a schedule are part of saved states, by their names.
"""

import math
from typing import Literal, Protocol

Verdict = Literal["better", "worse", "stop"]


class Schedule(Protocol):
    """Gives the learning rate of every step."""

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from the start of the task."""


class Plateau:
    """Divide the rate when the loss has not fallen for `patience` epochs.

    As in HAT, GPM and CGP, which look at the validation loss. Training stops when the rate falls
    below `lowest`, and ends with the weights that had the lowest loss.

    >>> schedule = Plateau(0.1, lowest=0.02, factor=2.0, patience=1)
    >>> [schedule.after_epoch(loss) for loss in (3.0, 2.0, 2.5, 2.5, 2.5)]
    ['better', 'better', 'worse', 'worse', 'stop']
    """

    def __init__(self, start: float, *, lowest: float, factor: float, patience: int) -> None:
        self.current, self.lowest, self.factor, self.patience = start, lowest, factor, patience
        self.best = math.inf
        self.left = patience

    def rate(self, step: int) -> float:
        """Return the rate as divided so far."""
        return self.current

    def after_epoch(self, loss: float) -> Verdict:
        """Take the loss of an epoch; tell whether it is the best yet, or to stop."""
        if loss < self.best:
            self.best = loss
            self.left = self.patience
            return "better"
        self.left -= 1
        if self.left <= 0:
            self.current /= self.factor
            self.left = self.patience
            if self.current < self.lowest:
                return "stop"
        return "worse"


class Cosine:
    """Rise linearly over `warmup` steps, then fall as a half cosine to zero at the last step."""

    def __init__(self, start: float, *, steps: int, warmup: int = 0) -> None:
        self.start, self.steps, self.warmup = start, steps, min(warmup, steps)

    def rate(self, step: int) -> float:
        """Return the rate of a step."""
        if step < self.warmup:
            return self.start * (step + 1) / self.warmup
        done = (step - self.warmup) / max(1, self.steps - self.warmup)
        return self.start * (1 + math.cos(math.pi * done)) / 2


class Constant:
    """The same rate throughout."""

    def __init__(self, start: float) -> None:
        self.start = start

    def rate(self, step: int) -> float:
        """Return the rate."""
        return self.start
