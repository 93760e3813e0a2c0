"""Devices of this machine: the CPU and its GPUs, and the precisions they multiply in."""

import platform
from typing import Any

import torch
from torch import Tensor

from classgrad.errors import UserError, shown, unknown

KINDS = ("cpu", "cuda", "mps")
# What autocast is given for each precision.
PRECISIONS: dict[str, torch.dtype | None] = {
    "float32": None,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


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


def resolve_precision(name: str, device: torch.device) -> str:
    """Return the precision of a name: `auto` is bfloat16 where the device multiplies it.

    >>> resolve_precision("bfloat16", torch.device("cpu"))
    'bfloat16'
    """
    if name != "auto":
        return name
    return "bfloat16" if multiplies_bfloat16(device) else "float32"


def multiplies_bfloat16(device: torch.device) -> bool:
    """Tell whether a device has instructions for bfloat16; without them it is slow."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type != "cpu":
        return False
    if platform.machine().lower() in ("aarch64", "arm64"):
        return torch.backends.mkldnn.is_available() and bool(
            torch.ops.mkldnn._is_mkldnn_bf16_supported()
        )
    # On other processors that function is also true of those that only emulate it.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)


def to_device(value: Any, device: torch.device) -> Any:
    """Return nested dicts, lists and tuples with their tensors on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(to_device(item, device) for item in value)
    return value
