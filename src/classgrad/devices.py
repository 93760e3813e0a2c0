"""Where a learner computes: on the processor, or on a graphics device of this machine."""

from typing import Any

import torch
from torch import Tensor

from classgrad.errors import UserError, shown, unknown

KINDS = ("cpu", "cuda", "mps")


def available() -> list[str]:
    """Return the devices of this machine."""
    graphics = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    return ["cpu", *graphics, *(["mps"] if torch.backends.mps.is_available() else [])]


def resolve_device(device: torch.device | str) -> torch.device:
    """Return a device of this machine by its name; refuse one that is not there.

    >>> resolve_device("cpu")
    device(type='cpu')
    >>> resolve_device("gpu")
    Traceback (most recent call last):
        ...
    classgrad.errors.UserError: unknown device 'gpu': did you mean 'cpu'? Known: cpu, cuda, mps
    """
    try:
        found = torch.device(device)
    except (RuntimeError, TypeError):
        raise unknown("device", str(device), KINDS) from None
    if found.type not in KINDS:
        raise unknown("device", str(device), KINDS)
    there = available()
    if (found.index or 0) >= sum(name.partition(":")[0] == found.type for name in there):
        raise UserError(
            f"device '{shown(device)}' is not on this machine: there is {', '.join(there)}"
        )
    return found


def moved(value: Any, device: torch.device) -> Any:
    """Return nested dicts and lists with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: moved(part, device) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(moved(part, device) for part in value)
    return value
