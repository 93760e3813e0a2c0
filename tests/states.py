"""States to be stored, and whether two are the same to the bit."""

import math
import struct

import torch


def same(a, b):
    """Tell whether two states are alike: kinds, order of keys, bits, strides."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        form = a.dtype, a.shape, a.stride(), a.device, a.requires_grad
        return form == (b.dtype, b.shape, b.stride(), b.device, b.requires_grad) and (
            content(a) == content(b)
        )
    if isinstance(a, dict):
        return same(list(a.items()), list(b.items()))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and not math.isnan(a):
        return struct.pack("d", a) == struct.pack("d", b)
    return a == b or (a != a and b != b)


def content(tensor):
    """Return the bytes of a tensor, element by element, wherever they lie."""
    dense = tensor.clone(memory_format=torch.contiguous_format)
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()


def example(counter=0):
    """Return a small state with something of every kind, like that of a run."""
    weight = torch.arange(24, dtype=torch.float32).reshape(2, 3, 2, 2) + counter
    return {
        "step": counter,
        "best": float("inf"),
        "loss": [0.1, float("nan"), -0.0],
        "name": "permuted-digits ε",
        "done": False,
        "limit": None,
        "betas": (0.9, 0.999),
        "net": {
            "weight": weight.to(memory_format=torch.channels_last),
            "bias": torch.tensor(1.5, dtype=torch.bfloat16),
            "none": torch.empty(0, 3, dtype=torch.int64),
        },
        "optimiser": {"state": {0: {"momentum": weight.clone()}, 1: {}}},
        "mask": torch.tensor([True, False, True]),
        "generator": torch.Generator().manual_seed(3).get_state(),
    }
