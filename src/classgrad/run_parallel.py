"""What has to be so for several processes to train one run."""

from typing import TYPE_CHECKING

from classgrad.distributed import world
from classgrad.errors import UserError
from classgrad.methods import METHODS
from classgrad.records import versions

if TYPE_CHECKING:
    from classgrad.plan import Plan
    from classgrad.runs import Run


def check(run: "Run") -> None:
    """Refuse a run that the processes at hand cannot train together."""
    if world().size == 1:
        return
    world().refuse_differences({"the settings": run.plan.as_dict(), "the data": run.fingerprint})
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


def agree(plans: "list[Plan]") -> None:
    """Refuse processes that were started with other words, or with other versions."""
    found = versions()
    values = {f"the version of {name}": found[name] for name in ("python", "classgrad", "torch")}
    settings = [plan.as_dict() for plan in plans]
    world().refuse_differences({**values, "the settings": settings})
