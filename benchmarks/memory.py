"""Peak memory of a run of CGP over ten tasks, beyond data and model.

The run has its own process, `python -m benchmarks.memory TASKS`, as the peak of this one may have
other causes.
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

PER_CLASS = 125  # images, all of which are used for the bases
MEGABYTE = 1e6


def measure(bench: Bench) -> list[Row]:
    """Run the process, and read the figures it prints."""
    tasks = 2 if bench.quick else TASKS
    root = Path(__file__).parent.parent
    command = [sys.executable, "-m", "benchmarks.memory", str(tasks)]
    process = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE, text=True)
    measured = json.loads(process.stdout)
    added = (measured["peak"] - measured["before"]) / MEGABYTE
    return [
        Row(
            f"peak memory of cgp over {tasks} tasks",
            Quantity(added, "MB"),
            None,
            added,
            bound=Bound(400, unit="MB"),
            note=f"above data and model; {PER_CLASS} images per class, 1 epoch per task, bases "
            "from all of them",
            details=measured,
        )
    ]


def learn(tasks: int) -> dict[str, int]:
    """Learn random tasks; return the resident bytes before, and the peak."""
    stream = random_stream(tasks, PER_CLASS)
    plan = make_plan(stream, "cgp", values={"epochs": 1, "correct_only": False})
    run = Run(plan, stream)
    before = resident_bytes()
    run.execute()
    return {"before": before, "peak": peak_bytes()}


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def peak_bytes() -> int:
    """Return the peak of the resident bytes of this process.

    `getrusage` would include the peak of the process it was forked from.
    """
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


if __name__ == "__main__":
    print(json.dumps(learn(int(sys.argv[1]))))
