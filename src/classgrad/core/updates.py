"""Whether an optimiser moves weights only along the gradients it is given.

With plain SGD a gradient that is free of something gives an update that is free of it, and so does
momentum gathered from free gradients. Weight decay, Adam and older momentum do not: then the update
itself, W after - W before, has to be projected too.
"""

import weakref
from collections.abc import Iterable

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle


def follow_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether updates are sums of gradients: SGD without weight decay.

    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> follow_gradients(torch.optim.SGD([weight], lr=0.1, momentum=0.9))
    True
    >>> follow_gradients(torch.optim.Adam([weight]))
    False
    """
    decays = any(group.get("weight_decay") for group in optimizer.param_groups)
    return type(optimizer) is torch.optim.SGD and not decays


# Optimisers whose momentum can only be of the task that is being learnt, even where it was loaded.
_of_one_task: "weakref.WeakSet[torch.optim.Optimizer]" = weakref.WeakSet()


def made_for_one_task(optimizer: torch.optim.Optimizer) -> None:
    """Vouch that an optimiser is used, and its state loaded, within one task only."""
    _of_one_task.add(optimizer)


class FreeUpdates:
    """Knows the optimisers that have seen nothing but free gradients."""

    def __init__(self) -> None:
        self._trusted: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._watching: list[RemovableHandle] = []

    def expected(self, optimizer: torch.optim.Optimizer, weights: Iterable[Tensor]) -> bool:
        """Tell whether free gradients give free updates: SGD without decay or older momentum."""
        if not follow_gradients(optimizer):
            return False
        if optimizer not in self._trusted and optimizer not in _of_one_task:
            states = [optimizer.state.get(weight, {}) for weight in weights]
            if any(state.get("momentum_buffer") is not None for state in states):
                return False
            self._trusted.add(optimizer)
            handle = optimizer.register_load_state_dict_post_hook(self._trusted.discard)
            self._watching.append(handle)
        return True

    def forget(self) -> None:
        """Trust no optimiser's momentum any more, because what is protected has changed."""
        self._trusted.clear()
        for handle in self._watching:
            handle.remove()
        self._watching = []
