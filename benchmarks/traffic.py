"""What training on several processes sends and takes: `python -m benchmarks.traffic`.

Every process trains the same network on made-up images, first alone, then with others, all on this
machine; so the speed says something only where each process has cores of its own.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from classgrad import distributed
from classgrad.distributed import world
from classgrad.plan import make_plan
from classgrad.runs import Run
from classgrad.tasks import Split, Task, TaskStream

CLASSES = 10
HEAD = "processes   ms/step  samples/s   kB/step  base update: s      MB"


def stream(per_class: int) -> TaskStream:
    """Return one task of random images, as large as those of CIFAR."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat(per_class)
    images = torch.randint(256, (len(labels), 3, 32, 32), generator=chance, dtype=torch.uint8)
    part = Split(images, labels)
    names = tuple(str(label) for label in range(CLASSES))
    return TaskStream("random", [Task(0, "random", names, part, part)], [part])


def worker(network: str, per_class: int, samples: int) -> None:
    """Train one task as one of the processes; the first prints what was measured."""
    distributed.join()
    data = stream(per_class)
    values = {"epochs": 1, "batch_size": 64, "samples": samples, "correct_only": False}
    run = Run(make_plan(data, "cgp", network=network, values=values), data)
    marks: list[tuple[float, int]] = []

    def mark(at: Any = None) -> None:
        marks.append((time.perf_counter(), world().sent))

    run.observer = mark
    run.method.fit_task(run.net, data[0], run.fits(1))
    steps, (start, sent) = len(marks) - 2, marks[1]  # the first step makes room for everything
    seconds, per_step = (marks[-1][0] - start) / steps, (marks[-1][1] - sent) / steps
    mark()
    run.method.end_task(run.net, data[0], torch.Generator().manual_seed(0))
    mark()
    if world().first:
        found = {
            "processes": world().size,
            "seconds_step": seconds,
            "samples_second": 64 / seconds,
            "bytes_step": per_step,
            "seconds_update": marks[-1][0] - marks[-2][0],
            "bytes_update": marks[-1][1] - marks[-2][1],
        }
        print(json.dumps(found))
    distributed.leave()


def measured(processes: int, words: list[str]) -> dict[str, Any]:
    """Start so many processes, and return what the first has measured."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    command = [sys.executable, *launch, "-m", "benchmarks.traffic", *words]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(
    processes: Annotated[str, typer.Option(help="Numbers of processes, with commas.")] = "1,2",
    network: Annotated[str, typer.Option(help="A network of the table.")] = "alexnet5",
    quick: Annotated[bool, typer.Option("--quick", help="A small network and few steps.")] = False,
    out: Annotated[Path | None, typer.Option(help="A file for the figures, as JSON.")] = None,
    work: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure bytes and time per step and per base update, against the number of processes."""
    if work:
        per_class, samples = (int(word) for word in work.split(","))
        worker(network, per_class, samples)
        return
    network, work = ("lenet5", "50,20") if quick else (network, "400,125")
    rows = []
    print(HEAD, flush=True)
    for number in processes.split(","):
        row = measured(int(number), ["--network", network, "--work", work])
        rows.append(row)
        print(
            f"{row['processes']:>9} {1000 * row['seconds_step']:>9.1f} "
            f"{row['samples_second']:>10.0f} {row['bytes_step'] / 1e3:>9.1f} "
            f"{row['seconds_update']:>15.2f} {row['bytes_update'] / 1e6:>7.2f}",
            flush=True,
        )
    if out is not None:
        out.write_text(json.dumps({"network": network, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
