"""Outputs of the frozen layers that a trunk begins with, computed once for each input.

No training changes these layers, and in a pretrained network they are most of the work. An input is
known by its content. So it is found again wherever it comes from, the training data or the samples
that a method keeps; an augmented copy, which is never the same again, is computed as it comes.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from classgrad.networks.blocks import has_no_hooks, run

# Bytes of all outputs that may be kept. 60,000 images of 1280 features take 0.3 GB.
LIMIT = 2_000_000_000


class FrozenOutputs:
    """A table with the outputs of some layers for at most `count` inputs.

    Only `add` fills it. So its content depends on the batches that were added, and not on what was
    looked up, or a resumed run would not give the same bits. An output that is looked up differs
    by rounding from one that is computed in a batch of another size.
    """

    def __init__(self, layers: Sequence[nn.Module], count: int) -> None:
        self.layers, self.count = list(layers), count
        self._parts = [part for layer in layers for part in layer.modules()]
        self._rows: dict[bytes, int] = {}  # by the key of an input
        self._table = torch.empty(0)

    def __len__(self) -> int:
        return len(self._rows)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FrozenOutputs":
        """Return the same table, as copies of a network have the same frozen layers."""
        return self

    def nbytes(self, input_shape: tuple[int, ...]) -> int:
        """Return how many bytes a full table has."""
        weight = next(parameter for part in self._parts for parameter in part.parameters())
        return self.count * self._compute(weight.new_zeros(1, *input_shape)).nbytes

    def add(self, x: Tensor) -> None:
        """Compute the outputs of a batch, and keep those of inputs that are new."""
        outputs = self._compute(x)
        if not self._rows:
            self._table = outputs.new_empty(self.count, *outputs.shape[1:])
        for key, output in zip(keys(x), outputs, strict=True):
            if key not in self._rows:
                self._table[len(self._rows)] = output
                self._rows[key] = len(self._rows)

    def is_usable(self) -> bool:
        """Tell whether the layers have no hooks; if they have some, they have to be called."""
        return all(map(has_no_hooks, self._parts))

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch: look up what is known, compute the rest."""
        rows = torch.tensor([self._rows.get(key, -1) for key in keys(x)])
        new = rows < 0
        if new.all():
            return self._compute(x)
        outputs = self._table[rows]
        if new.any():
            outputs[new] = self._compute(x[new])
        if outputs.dim() == 4:  # as layers return them
            return outputs.contiguous(memory_format=torch.channels_last)
        return outputs

    @torch.no_grad()
    def _compute(self, x: Tensor) -> Tensor:
        return run(self.layers, x)


def keys(x: Tensor) -> list[bytes]:
    """Return a digest of each input of a batch."""
    # Channels last, as batches come: then nothing is copied.
    rows = x.detach().movedim(1, -1).contiguous().flatten(1).view(torch.uint8).numpy()
    return [hashlib.blake2b(row, digest_size=16).digest() for row in rows]
