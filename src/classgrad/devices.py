"""Devices of this machine: the CPU and its GPUs."""

from typing import Any

import torch
from torch import Tensor

from classgrad.errors import UserError, shown, unknown

KINDS = ("cpu", "cuda", "mps")


def available() -> list[str]:
    """Return the names of this machine's devices."""
    gpus = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]


def resolve_device(device: torch.device | str) -> torch.device:
    """Return a device by its name; refuse one that this machine does not have.

    >>> resolve_device("cpu")
    device(type='cpu')
    >>> resolve_device("gpu")
    Traceback (most recent call last):
        ...
    classgrad.errors.UserError: unknown device 'gpu': did you mean 'cpu'? Known: cpu, cuda, mps
    """
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError):
        raise unknown("device", str(device), KINDS) from None
    if resolved.type not in KINDS:
        raise unknown("device", str(device), KINDS)
    names = available()
    if (resolved.index or 0) >= sum(name.partition(":")[0] == resolved.type for name in names):
        raise UserError(
            f"this machine has no device '{shown(device)}': choose among {', '.join(names)}"
        )
    return resolved


def to_device(value: Any, device: torch.device) -> Any:
    """Return nested dicts, lists and tuples with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(item, device) for item in value)
    return value
