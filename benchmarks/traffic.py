"""What training on several processes sends and takes: `python -m benchmarks.traffic`.

Processes train a network on made-up images, together and, for comparison, each by itself on batches
as large as its part: what the cores of this machine can do at best when so many are busy.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import typer
from rich.console import Console

from benchmarks.machine import facts
from benchmarks.pages import PAGE, TRAFFIC, fill
from classgrad import distributed
from classgrad.cli import fail
from classgrad.distributed import world
from classgrad.errors import UserError
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, TaskStream

CLASSES, BATCH = 10, 64
PER_CLASS = 130  # images to learn from: 20 batches, and enough for 125 samples
RANKS = (1, 2, 3, 4)
SAMPLES = (20, 60, 125)  # of a class, behind its bases

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.traffic --network lenet5")
def study(
    network: Annotated[str, typer.Option(help="A network of the table.")] = "alexnet5",
    work: Annotated[str, typer.Option(hidden=True)] = "",
) -> None:
    """Measure bytes and time per step and per base update; write traffic.json and the page."""
    if work:
        worker(network, *map(int, work.split(",")))
        return
    console = Console()
    found = facts(sys.argv[1:], quick=False)
    found["command"] = " ".join(["python -m benchmarks.traffic", *sys.argv[1:]])
    found["machine"]["threads"] = 1  # of each process
    found["network"], found["ranks"] = network, []
    for ranks in RANKS:
        row = measured(ranks, network, SAMPLES[-1])
        row["apart_images_per_second"] = apart(ranks, network)
        found["ranks"].append(row)
        console.print(f"{ranks} processes", end=" ")
    fewer = [measured(2, network, samples) for samples in SAMPLES[:-1]]
    found["samples"] = [*fewer, found["ranks"][1]]
    console.print()
    TRAFFIC.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    fill()
    for path in (TRAFFIC, PAGE):
        console.print(f"written   {path}", soft_wrap=True)


def measured(ranks: int, network: str, samples: int) -> dict[str, Any]:
    """Start so many processes, and return what the first has measured."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return ended(started([*launch, *words(network, samples, BATCH)]))


def apart(count: int, network: str) -> float:
    """Return the images per second of so many processes that know nothing of each other."""
    commands = [words(network, SAMPLES[0], BATCH // count)] * count
    found = [ended(one) for one in [started(command) for command in commands]]
    return sum(float(one["images_per_second"]) for one in found)


def words(network: str, samples: int, batch: int) -> list[str]:
    """Return how this file is called to be one of several processes."""
    return ["-m", "benchmarks.traffic", "--network", network, "--work", f"{samples},{batch}"]


def started(command: list[str]) -> "subprocess.Popen[bytes]":
    """Start Python with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE)


def ended(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait for a process, and return what it has measured."""
    out, _ = process.communicate()
    if process.returncode:
        raise UserError("a process did not end well: what it said is above")
    found: dict[str, Any] = json.loads(out.splitlines()[-1])
    return found


def worker(network: str, samples: int, batch: int) -> None:
    """Train one task as one of the processes; the first prints what was measured."""
    distributed.join()
    data = stream()
    values = {"epochs": 1, "batch_size": batch, "samples": samples, "correct_only": False}
    run = Run(make_plan(data, "cgp", network=network, values=values), data)
    marks: list[Mark] = []

    def mark(at: Any = None) -> None:
        marks.append(Mark(time.perf_counter(), on_loopback(), world().sent.copy()))

    run.observer = mark
    run.method.fit_task(run.net, data[0], run.session.training_loop(data[0], run.observe))
    training = marks[-1].since(marks[1])  # the first step makes room for everything
    steps = len(marks) - 2
    mark()
    run.method.end_task(run.net, data[0], torch.Generator().manual_seed(0))
    mark()
    if world().is_main_process:
        update = marks[-1].since(marks[-2])
        seconds = training.seconds / steps
        found = {
            "ranks": world().size,
            "samples": samples,
            "step_seconds": seconds,
            "images_per_second": batch / seconds,
            "step_bytes": training.sent.total() / steps,
            "step_wire_bytes": training.wire / steps / world().size,
            "gradient_bytes": gradient_bytes(run) if world().size > 1 else 0,
            "update_seconds": update.seconds,
            "update_wire_bytes": update.wire / world().size,
            **{f"update_{kind}_bytes": update.sent[kind] for kind in ("sums", "handed", "counts")},
        }
        print(json.dumps(found))
    distributed.leave()


class Mark(NamedTuple):
    """A time, and bytes until then: all on the loopback, and what this process gave to others."""

    seconds: float
    wire: int
    sent: Counter[str]

    def since(self, other: "Mark") -> "Mark":
        """Return what came between the other mark and this."""
        return Mark(self.seconds - other.seconds, self.wire - other.wire, self.sent - other.sent)


def gradient_bytes(run: Run) -> int:
    """Return the size of the gradients of a step in the first task."""
    return sum(p.grad.nbytes for p in run.net.parameters() if p.grad is not None)


def on_loopback() -> int:
    """Return how many bytes all processes of this machine have sent to each other; Linux counts."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise UserError("this machine does not count what goes over its loopback")


def stream() -> TaskStream:
    """Return one task of random images, as large as those of CIFAR."""
    chance = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat(PER_CLASS)
    images = torch.randint(256, (len(labels), 3, 32, 32), generator=chance, dtype=torch.uint8)
    part = Split(images, labels)
    names = tuple(str(label) for label in range(CLASSES))
    return TaskStream("random", [Task(0, "random", names, part, part)], [part])


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.traffic")
    except UserError as error:
        fail(str(error))
