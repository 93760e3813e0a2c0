"""What has to be so for several processes to train one run."""

import os
from typing import TYPE_CHECKING

import torch

from classgrad import devices
from classgrad.distributed import number_of, world
from classgrad.errors import UserError
from classgrad.methods import METHODS
from classgrad.runs.record import versions

if TYPE_CHECKING:
    from classgrad.runs.run import Run
    from classgrad.runs.spec import Plan


def device(name: torch.device | str) -> torch.device:
    """Return the device by this name; of several processes each has one of its own."""
    found = devices.chosen(name)
    if world().size == 1 or found.type == "cpu":
        return found
    if found.type != "cuda" or found.index is not None:
        raise UserError(
            f"device '{name}' is for one process: give cpu, or cuda for a device of each"
        )
    here, count = number_of("LOCAL_WORLD_SIZE", 1), torch.cuda.device_count()
    if here > count:
        raise UserError(
            f"{here} processes share this machine's {count} graphics devices: start one for each"
        )
    own = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(own)
    return own


def check(run: "Run") -> None:
    """Refuse a run that the processes at hand cannot train together."""
    if world().size == 1:
        return
    settings = {"the settings": run.plan.as_dict(), "the data": run.fingerprint}
    world().refuse_differences({**installed(), **settings})
    plan, size = run.plan, world().size
    if not plan.method.parallel:
        able = ", ".join(name for name, kind in METHODS.items() if kind.parallel)
        raise UserError(
            f"method '{plan.method.name}' cannot be trained by several processes: start one, or "
            f"choose among {able}"
        )
    if plan.training.compile:
        raise UserError("compile is for one process: leave it out")
    if plan.training.batch_size < size:
        raise UserError(
            f"batch_size={plan.training.batch_size} is less than the {size} processes: give at "
            "least one sample for each"
        )
    for task in run.stream:
        if len(task.train) < size:
            raise UserError(
                f"task '{task.name}' has {len(task.train)} training samples for {size} processes: "
                "start fewer"
            )


def agree(plans: "list[Plan]", **options: object) -> None:
    """Refuse processes that were started with other words, or with other versions."""
    words = {f"--{name}": value for name, value in options.items()}
    settings = [plan.as_dict() for plan in plans]
    world().refuse_differences({**installed(), "the settings": settings, **words})


def installed() -> dict[str, str]:
    """Return the versions that have to be the same in all processes."""
    found = versions()
    return {f"the version of {name}": found[name] for name in ("python", "classgrad", "torch")}
