"""Peak memory of a run of CGP over ten tasks, above the data and the model.

The run has a process of its own, `python -m benchmarks.memory TASKS`: the peak of this one may be
of something else.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.images import random_stream
from benchmarks.learner import TASKS
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan

PER_CLASS = 125  # all that a basis takes of a class
MEGABYTE = 1e6


def measure(bench: Bench) -> list[Row]:
    """Start the process and read what it prints."""
    tasks = 2 if bench.quick else TASKS
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "benchmarks.memory", str(tasks)]
    ended = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(ended.stdout)
    above = (found["peak"] - found["before"]) / MEGABYTE
    return [
        Row(
            f"peak memory of cgp over {tasks} tasks",
            Quantity(above, "MB"),
            None,
            above,
            bound=Bound(400, unit="MB"),
            note=f"above data and model; {PER_CLASS} images per class, 1 epoch per task, bases "
            "from all of them",
            details=found,
        )
    ]


def learn(tasks: int) -> dict[str, int]:
    """Learn random tasks; return the bytes in memory before, and the most there ever were."""
    stream = random_stream(tasks, PER_CLASS)
    plan = make_plan(stream, "cgp", values={"epochs": 1, "correct_only": False})
    run = Run(plan, stream)
    before = resident_bytes()
    run.execute()
    return {"before": before, "peak": peak_bytes()}


def resident_bytes() -> int:
    """Return how much of this process is in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the most of this process that ever was in memory.

    `getrusage` would count what the process it was forked from had.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(json.dumps(learn(int(sys.argv[1]))))
