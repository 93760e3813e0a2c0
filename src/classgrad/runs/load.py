"""Load what a run has kept: its network and its method, as they were after a task."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from classgrad import benchmarks
from classgrad.errors import UserError, shown
from classgrad.methods.base import Method
from classgrad.networks import OWN
from classgrad.runs import kept
from classgrad.runs.kept import Result
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import Plan, own_trunk
from classgrad.tasks import TaskStream


def load_run(
    folder: Path | str,
    tasks: int | None = None,
    *,
    benchmark: TaskStream | None = None,
    method: type[Method] | None = None,
    network: nn.Module | Callable[[], nn.Module] | None = None,
    data_dir: Path | str | None = None,
    device: torch.device | str = "cpu",
) -> Result:
    """Return a run that has kept what it has learnt, as it was after so many tasks; else the last.

    A stream, a method and a network of your own have to be given again. The method comes as it was
    when the task had ended, ready for the next one.
    """
    folder = Path(folder)
    record = RunRecord.load(folder)
    there = kept.kept_after(folder)
    if not there:
        raise UserError(
            f"the run in '{folder}' has kept no weights: let a new one keep them", hint="keep"
        )
    number = there[-1] if tasks is None else tasks
    if number not in there:
        raise UserError(
            f"the run in '{folder}' has kept its weights after task {', '.join(map(str, there))}, "
            f"not after task {tasks}"
        )
    if method is None and record.method_source is not None:  # no code is imported for a file
        raise UserError(
            f"the run in '{folder}' has a method of its own, {shown(record.method_source)}: give "
            "its class as method"
        )
    plan = Plan.from_dict(record.settings(), method)
    if plan.network.startswith(OWN):
        if network is None:
            raise UserError(f"the run in '{folder}' has a network of its own: give it")
        plan = replace(plan, trunk=own_trunk(network, plan.seed))
    if benchmark is None:
        if plan.benchmark.partition(":")[0] not in (*benchmarks.BENCHMARKS, "folder"):
            raise UserError(f"the run in '{folder}' has a stream of its own: give it as benchmark")
        benchmark = load_stream(plan, data_dir)
    run = Run(plan, benchmark, folder, device=device, restored=True)
    run.load_kept(number, record)
    return run.result(number)
