"""The inputs of the four weight matrices of nn.MultiheadAttention, three of which share one weight.

Queries, keys and values are the inputs of the first three. The input of the out-projection is
computed inside the module and not exposed. But attention(q, k, v) = W inside(q, k, v) + b, so with
the identity for W and 0 for b the module's own forward returns it, with all masks and options.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.core.layers import (
    EquivalentForward,
    LayerKind,
    Matrix,
    Record,
    install_forward,
    register_layer,
    remove_forward,
)
from classgrad.errors import UserError

IN_PARTS = ("query", "key", "value")
TRANSFORMERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class AttentionKind(LayerKind[nn.MultiheadAttention]):
    """Four matrices, each with its own input."""

    def matrices(self, layer: nn.MultiheadAttention) -> list[Matrix]:
        """List the matrices for queries, keys and values, and the out-projection.

        >>> AttentionKind().matrices(nn.MultiheadAttention(4, 2))[1]
        Matrix(suffix='[key]', parameter='in_proj_weight', start=4, stop=8, input=1)
        """
        width = layer.embed_dim
        if layer.in_proj_weight is not None:
            in_projections = [
                Matrix(f"[{part}]", "in_proj_weight", i * width, (i + 1) * width, i)
                for i, part in enumerate(IN_PARTS)
            ]
        else:
            in_projections = [
                Matrix(f"[{part}]", f"{part[0]}_proj_weight", 0, width, i)
                for i, part in enumerate(IN_PARTS)
            ]
        return [*in_projections, Matrix(".out_proj", "out_proj.weight", 0, width, len(IN_PARTS))]

    def inner_modules(self, layer: nn.MultiheadAttention) -> Iterable[nn.Module]:
        """List the out-projection."""
        return (layer.out_proj,)

    @contextmanager
    def record_inputs(self, layer: nn.MultiheadAttention, record: Record) -> Iterator[None]:
        """Record the inputs of all four matrices in the block; outputs stay the same."""
        install_forward(layer, RecordingForward(layer, record))
        try:
            yield
        finally:
            remove_forward(layer)


class RecordingForward(EquivalentForward):
    """A forward of an attention layer that records the inputs of its matrices, samples first."""

    def __init__(self, layer: nn.MultiheadAttention, record: Record) -> None:
        self.layer, self.record = layer, record

    def __call__(
        self, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return the output of the layer."""
        layer = self.layer
        for number, x in enumerate((query, key, value)):
            self.record(number, self._samples_first(x))
        inner = without_out_projection(layer)
        inside, weights = nn.MultiheadAttention.forward(inner, query, key, value, *args, **kwargs)
        self.record(len(IN_PARTS), self._samples_first(inside))
        return nn.functional.linear(inside, layer.out_proj.weight, layer.out_proj.bias), weights

    def _samples_first(self, x: Tensor) -> Tensor:
        return x if self.layer.batch_first or x.dim() < 3 else x.transpose(0, 1)


def without_out_projection(layer: nn.MultiheadAttention) -> nn.MultiheadAttention:
    """Return a copy that shares its parameters and has the identity as out-projection."""
    weight = layer.out_proj.weight
    identity = nn.Module()
    identity.weight = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
    identity.bias = torch.zeros_like(weight[0])
    inner = copy.copy(layer)
    inner._modules = {**layer._modules, "out_proj": identity}
    return inner


def refuse_positions_first(name: str, module: nn.Module) -> None:
    """Refuse a trainable transformer layer whose inputs are not samples first."""
    if not isinstance(module, TRANSFORMERS) or module.self_attn.batch_first:
        return
    if any(parameter.requires_grad for parameter in module.parameters()):
        raise UserError(
            f"layer '{name}' ({type(module).__name__}) has positions before samples, so it is not "
            "known which inputs belong to one sample: make it with batch_first=True"
        )


register_layer(nn.MultiheadAttention, AttentionKind())
