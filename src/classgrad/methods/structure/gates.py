"""ReLUs whose units are switched on and off for each task, by a mask that is learnt."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad import seeds
from classgrad.networks.layers import PerTask

LARGEST_EMBEDDING = 6.0
LARGEST_COSH = 50.0  # for s e in cosh(s e), which float32 holds up to 88


class Gate(PerTask, nn.ReLU):
    """ReLU, then units (dimension 1) times the mask a = sigmoid(s e), with one e for each task.

    While the newest task is being learnt, s is `slope`. Masks are finished at s = `steepest`, and
    rounded to 0 or 1 if `binary`; `used` is the largest finished mask of each unit so far.
    """

    used: Tensor

    def __init__(self, units: int, seed: int, name: str) -> None:
        super().__init__()
        self.units, self.seed, self.name = units, seed, name
        self.steepest, self.binary = 1.0, True
        self.slope: float | None = None  # None: no training is going on
        self.tasks = 0
        self.register_buffer("used", torch.zeros(units))
        self.add_task()

    def add_task(self) -> None:
        """Draw an embedding from N(0, 1) for one more task, and select it."""
        chance = seeds.generator(self.seed, "gates", self.name, self.tasks)
        start = torch.randn(self.units, generator=chance).to(self.used)
        self.register_parameter(f"embedding_{self.tasks}", nn.Parameter(start))
        self.task = self.tasks
        self.tasks += 1

    @property
    def newest(self) -> nn.Parameter:
        """The embedding of the newest task."""
        return self.get_parameter(f"embedding_{self.tasks - 1}")

    def annealed(self, slope: float) -> Tensor:
        """Return the mask of the newest task at s = `slope`."""
        return torch.sigmoid(slope * self.newest)

    def finished(self, task: int) -> Tensor:
        """Return the mask of a task as predictions use it."""
        mask = torch.sigmoid(self.steepest * self.get_parameter(f"embedding_{task}").detach())
        return mask.round() if self.binary else mask

    def finish(self) -> None:
        """Count what the newest task uses as used from now on."""
        self.used.copy_(torch.maximum(self.used, self.finished(self.tasks - 1)))

    def compensation(self, slope: float) -> Tensor:
        """Return (smax / s) (cosh(s e) + 1) / (cosh(e) + 1), a factor for the gradient of e at s.

        It makes that smax times the gradient at s = 1, which does not vanish where masks are hard.
        """
        e = self.newest.detach()
        steep = (slope * e).clamp(-LARGEST_COSH, LARGEST_COSH)
        return self.steepest / slope * (steep.cosh() + 1) / (e.cosh() + 1)

    @torch.no_grad()
    def limit(self) -> None:
        """Keep the newest embedding in [-6, 6], from where a few steps can still turn a mask."""
        self.newest.clamp_(-LARGEST_EMBEDDING, LARGEST_EMBEDDING)

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, units, *size) to the same shape."""
        if self.training and self.slope is not None and self.task == self.tasks - 1:
            mask = self.annealed(self.slope)
        else:
            mask = self.finished(self.task)
        return functional.relu(x) * mask.view(-1, *[1] * (x.dim() - 2))
