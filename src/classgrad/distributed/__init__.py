"""Several processes, started by torchrun, that train one run together.

No other package uses torch.distributed.
"""

import os
from datetime import timedelta

import torch
from torch import distributed

from classgrad import devices
from classgrad.distributed.world import World
from classgrad.errors import UserError, shown

__all__ = ["World", "join", "leave", "process_device", "world"]

TIMEOUT = timedelta(hours=12)  # for the slowest process; one that has died is noticed at once

_world = World()
_joined = 0  # how often this process has joined others


def world() -> World:
    """Return the world of this process."""
    return _world


def join(*, gpu: bool = False) -> World:
    """Connect to the other processes that torchrun has started, if there are any.

    With `gpu` tensors on GPUs are sent by nccl, all others by gloo.
    """
    global _world, _joined
    if _world.size > 1 or env_count("WORLD_SIZE", 1) == 1:
        return _world
    try:
        store, process_index, size = next(distributed.rendezvous("env://"))
        # Ignore what was written before torchrun restarted these processes, or they joined again.
        store = distributed.PrefixStore(f"start {restart_count()}.{_joined}", store)
        backend = "cpu:gloo,cuda:nccl" if gpu and torch.cuda.is_available() else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=process_index, world_size=size, timeout=TIMEOUT
        )
    except (RuntimeError, ValueError) as error:
        raise UserError(
            f"the other processes of this run cannot be reached: {shown(error)}; start all of them "
            "with torchrun"
        ) from None
    _world = World(process_index, size, store)
    _joined += 1
    return _world


def leave() -> None:
    """Disconnect from the other processes."""
    global _world
    if _world.size > 1:
        distributed.destroy_process_group()
    _world = World()


def process_device(name: torch.device | str) -> torch.device:
    """Return the device of this name; with several processes, each gets its own GPU."""
    device = devices.resolve_device(name)
    if world().size == 1 or device.type == "cpu":
        return device
    if device.type != "cuda" or device.index is not None:
        raise UserError(
            f"device '{name}' is for one process: give cpu, or cuda for one GPU per process"
        )
    local, count = env_count("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if local > count:
        raise UserError(f"{local} processes for {count} GPUs on this machine: start one per GPU")
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(own)
    return own


def restart_count() -> int:
    """Return how often torchrun has restarted these processes, after one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def env_count(name: str, default: int) -> int:
    """Read a positive number of processes from an environment variable."""
    text = os.environ.get(name, str(default))
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise UserError(f"{name}={shown(text)} is not a number of processes: start with torchrun")
    return int(text)
