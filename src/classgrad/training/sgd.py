"""PyTorch's SGD, without the import of torch.compile's machinery.

Every optimiser of PyTorch imports `torch._dynamo` and with it sympy, so that its step can be
compiled. That takes about as long as `import torch` itself and 70 MB, in every process that trains.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch

_step = inspect.unwrap(torch.optim.SGD.step)


class SGD(torch.optim.SGD):
    """`torch.optim.SGD`, bit for bit; its step is not to be compiled."""

    is_plain_sgd = True  # see `classgrad.core.projector.updates_follow_gradients`

    # As they are below the decorators that keep torch.compile out of them.
    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        """Take a step."""
        return _step(self, closure)
