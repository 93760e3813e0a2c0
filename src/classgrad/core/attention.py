"""What the four weight matrices of nn.MultiheadAttention multiply; three of them are in one weight.

Queries, keys and values are the inputs of the first three. That of the out-projection is made
inside and shown to nobody. But attention(q, k, v) = W inside(q, k, v) + b, so with the identity for
W and 0 for b the module's own forward returns it, whatever masks and options it was given.
"""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

IN_PARTS = ("query", "key", "value")

# Takes the layer with the number of one of its matrices, and an input of that.
Record = Callable[[tuple[nn.Module, int], Tensor], None]


def matrices(layer: nn.MultiheadAttention) -> list[tuple[str, str, int, int]]:
    """Say where each matrix is: end of its name, parameter, its first row and the one after it.

    >>> matrices(nn.MultiheadAttention(4, 2))[1]
    ('[key]', 'in_proj_weight', 4, 8)
    """
    width = layer.embed_dim
    if layer.in_proj_weight is not None:
        into = [
            (f"[{part}]", "in_proj_weight", number * width, (number + 1) * width)
            for number, part in enumerate(IN_PARTS)
        ]
    else:
        into = [(f"[{part}]", f"{part[0]}_proj_weight", 0, width) for part in IN_PARTS]
    return [*into, (".out_proj", "out_proj.weight", 0, width)]


@contextmanager
def opened(layer: nn.MultiheadAttention, record: Record) -> Iterator[None]:
    """Record the inputs of all four matrices in the block; what comes out stays the same."""
    layer.forward = OpenForward(layer, record)  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward


class OpenForward:
    """The forward of an attention layer that shows what its matrices multiply, samples first."""

    def __init__(self, layer: nn.MultiheadAttention, record: Record) -> None:
        self.layer, self.record = layer, record

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return what the layer would."""
        layer = self.layer
        for number, x in enumerate((query, key, value)):
            self.record((layer, number), self._samples_first(x))
        without = without_out_projection(layer)
        inside, weights = nn.MultiheadAttention.forward(without, query, key, value, *args, **kwargs)
        self.record((layer, len(IN_PARTS)), self._samples_first(inside))
        return nn.functional.linear(inside, layer.out_proj.weight, layer.out_proj.bias), weights

    def _samples_first(self, x: Tensor) -> Tensor:
        return x if self.layer.batch_first or x.dim() < 3 else x.transpose(0, 1)


def without_out_projection(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """Return the layer, its parameters shared, with the identity for its out-projection."""
    weight = layer.out_proj.weight
    identity = nn.Module()
    identity.weight = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    identity.bias = torch.zeros_like(weight[0])
    other = copy.copy(layer)
    other._modules = {**layer._modules, "out_proj": identity}
    return other


@contextmanager
def every_layer_called() -> Iterator[None]:
    """Switch off the fused paths of transformers, which use weights without calling layers."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)
