"""Tells when somebody is about to read the weights of a model.

That is a forward pass in evaluation mode or without gradients, a state dict that is made or loaded,
and a copy or pickle of the model. Whoever reads a parameter itself is not noticed.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle


class BeforeUse:
    """Calls a function before the outputs, states or copies of layers are made, until removed.

    The hooks are on the layers that have the weights, so that it makes no difference which part of
    a model is used, or what is wrapped around it. `callers` get a hook for their outputs only:
    compiled code that was made before has no hooks of layers in it.
    """

    def __init__(
        self,
        layers: Iterable[nn.Module],
        callers: Iterable[nn.Module],
        act: Callable[[], None],
    ) -> None:
        self._layers = list(layers)
        act = torch.compiler.disable(act)
        forward, always = ForwardHook(act), Hook(act)
        self._hooks: list[RemovableHandle] = [
            module.register_forward_pre_hook(forward)
            for module in dict.fromkeys([*callers, *self._layers])
        ]
        for layer in self._layers:
            self._hooks.append(layer.register_state_dict_pre_hook(always))
            self._hooks.append(layer._register_load_state_dict_pre_hook(always))
            vars(layer)["__reduce_ex__"] = Reduce(layer, act)  # copy and pickle call it

    def remove(self) -> None:
        """Call it no more."""
        for hook in self._hooks:
            hook.remove()
        for layer in self._layers:
            vars(layer).pop("__reduce_ex__", None)
        self._hooks, self._layers = [], []


class Hook:
    """Calls a function; its copy, in a copy of the model, does nothing."""

    def __init__(self, act: Callable[[], None] | None = None) -> None:
        self.act = act

    def __call__(self, *_args: Any) -> None:
        """Call the function."""
        if self.act is not None:
            self.act()

    def __reduce__(self) -> tuple[type["Hook"], tuple[()]]:
        """Return how to make one that does nothing."""
        return type(self), ()


class ForwardHook(Hook):
    """Calls a function unless this is a forward pass of training."""

    def __call__(self, module: nn.Module, *_args: Any) -> None:
        """Call the function."""
        if not (module.training and torch.is_grad_enabled()):
            super().__call__()


class Reduce:
    """The `__reduce_ex__` of one layer: calls a function first."""

    def __init__(self, layer: nn.Module, act: Callable[[], None]) -> None:
        self.layer, self.act = layer, act

    def __call__(self, protocol: Any) -> Any:
        """Return how to make a copy of the layer, without this."""
        self.act()
        how = type(self.layer).__reduce_ex__(self.layer, protocol)
        if isinstance(how, str):
            return how
        return tuple(
            {key: value for key, value in part.items() if value is not self}
            if isinstance(part, dict)
            else part
            for part in how
        )
