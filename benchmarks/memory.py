"""Peak memory of every method over ten tasks like those of CIFAR-100, above PyTorch itself.

`python -m benchmarks.memory` measures all methods, each in a process of its own, as peaks of this
one may have other causes, and writes memory.json. `python -m benchmarks.memory METHOD` measures one
and prints its figures.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.images import random_task
from benchmarks.learner import TASKS
from benchmarks.machine import describe_machine
from classgrad.methods import METHODS
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import TaskStream

RESULTS = Path(__file__).parent / "memory.json"
PER_CLASS = 8  # images of a class; a step or two per task is enough for a peak
LAST_PER_CLASS = 125  # of the last task: as many as bases are made from
LIMITS = {"gpm": 300, "cgp": 300}  # MB
MEGABYTE = 1e6
NOTE = (
    f"{TASKS} tasks of 10 classes with {PER_CLASS} random images each, {LAST_PER_CLASS} in the "
    "last task; 1 epoch per task; bases and sensitivities from all of them; values of recipe fast"
)
# An epoch of a few steps, and representations from all images, as few are classified correctly.
VALUES: dict[str, dict[str, Any]] = {
    "cgp": {"correct_only": False},
    "rcl": {"trials": 2, "child_epochs": 1},
}


def main() -> None:
    """Measure all methods, and write the figures."""
    root = Path(__file__).parent.parent
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    machine = describe_machine([], quick=False) | {"command": "python -m benchmarks.memory"}
    methods = {}
    for number, name in enumerate(METHODS, 1):
        command = [sys.executable, "-m", "benchmarks.memory", name]
        process = subprocess.run(
            command, cwd=root, env=environment, check=True, stdout=subprocess.PIPE, text=True
        )
        methods[name] = json.loads(process.stdout)
        added = (methods[name]["peak"] - methods[name]["before"]) / MEGABYTE
        print(f"{number:2} of {len(METHODS)}  {name:10} {added:6.0f} MB", flush=True)
    content = {**machine, "note": NOTE, "limits": LIMITS, "methods": methods}
    RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def learn(method: str, tasks: int = TASKS) -> dict[str, int]:
    """Learn random tasks; return the resident bytes with PyTorch and data, and the peak.

    Files that are mapped into memory, which are the code of PyTorch and other libraries, are left
    out. `kept` are the bytes that the method keeps between tasks, `parameters` those of the
    network.
    """
    counts = [PER_CLASS] * (tasks - 1) + [LAST_PER_CLASS]
    stream = [random_task(number, count, seed=number) for number, count in enumerate(counts)]
    named = TaskStream("split-cifar100", stream, [task.valid for task in stream])
    plan = make_plan(named, method, values={"epochs": 1, **VALUES.get(method, {})})
    before = resident_bytes() - mapped_bytes()
    run = Run(plan, named)
    run.execute()
    return {
        "before": before,
        "peak": peak_bytes() - mapped_bytes(),
        "kept": run.method.memory_bytes(),
        "parameters": sum(p.nbytes for p in run.net.parameters()),
    }


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the peak of the resident bytes of this process.

    `getrusage` would include the peak of the process it was forked from.
    """
    return status_bytes("VmHWM")


def mapped_bytes() -> int:
    """Return the resident bytes of files that are mapped into memory, such as libraries."""
    return status_bytes("RssFile")


def status_bytes(name: str) -> int:
    """Return an entry of this process's status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(json.dumps(learn(sys.argv[1])))
    else:
        main()
