"""Traffic and time of training in several processes: `python -m benchmarks.traffic`.

Processes train a network on random images, together and, for comparison, each by itself on batches
of the size of its shard: the best that this machine can do with as many busy cores.
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

from benchmarks.machine import describe_machine
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
PROCESSES = (1, 2, 3, 4)
SAMPLES = (20, 60, 125)  # of a class, for its bases

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
    results = describe_machine(sys.argv[1:], quick=False)
    results["command"] = " ".join(["python -m benchmarks.traffic", *sys.argv[1:]])
    results["machine"]["threads"] = 1  # of each process
    results["network"], results["ranks"] = network, []
    for count in PROCESSES:
        row = measure_together(count, network, SAMPLES[-1])
        row["apart_images_per_second"] = measure_apart(count, network)
        results["ranks"].append(row)
        console.print(f"{count} processes", end=" ")
    fewer = [measure_together(2, network, samples) for samples in SAMPLES[:-1]]
    results["samples"] = [*fewer, results["ranks"][1]]
    console.print()
    TRAFFIC.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fill()
    for path in (TRAFFIC, PAGE):
        console.print(f"written   {path}", soft_wrap=True)


def measure_together(count: int, network: str, samples: int) -> dict[str, Any]:
    """Train in `count` processes together, and return the figures of the main process."""
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={count}"]
    return result_of(start([*launch, *worker_arguments(network, samples, BATCH)]))


def measure_apart(count: int, network: str) -> float:
    """Return the images per second of `count` processes that train independently."""
    commands = [worker_arguments(network, SAMPLES[0], BATCH // count)] * count
    results = [result_of(process) for process in [start(command) for command in commands]]
    return sum(float(result["images_per_second"]) for result in results)


def worker_arguments(network: str, samples: int, batch: int) -> list[str]:
    """Return the arguments of Python for one of the processes."""
    return ["-m", "benchmarks.traffic", "--network", network, "--work", f"{samples},{batch}"]


def start(command: list[str]) -> "subprocess.Popen[bytes]":
    """Start Python with one thread."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, *command], env=environment, stdout=subprocess.PIPE)


def result_of(process: "subprocess.Popen[bytes]") -> dict[str, Any]:
    """Wait for a process, and return the figures it prints."""
    out, _ = process.communicate()
    if process.returncode:
        raise UserError("a process failed: see its output above")
    figures: dict[str, Any] = json.loads(out.splitlines()[-1])
    return figures


def worker(network: str, samples: int, batch: int) -> None:
    """Train one task as one of the processes; the main process prints the figures."""
    distributed.join()
    data = stream()
    values = {"epochs": 1, "batch_size": batch, "samples": samples, "correct_only": False}
    run = Run(make_plan(data, "cgp", network=network, values=values), data)
    marks: list[Mark] = []

    def mark(at: Any = None) -> None:
        marks.append(Mark(time.perf_counter(), on_loopback(), world().sent.copy()))

    run.observer = mark
    run.method.fit_task(run.net, data[0], run.session.training_loop(data[0], run.observe))
    training = marks[-1].since(marks[1])  # without the first step, which allocates memory
    steps = len(marks) - 2
    mark()
    run.method.end_task(run.net, data[0], torch.Generator().manual_seed(0))
    mark()
    if world().is_main_process:
        update = marks[-1].since(marks[-2])
        seconds = training.seconds / steps
        figures = {
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
        print(json.dumps(figures))
    distributed.leave()


class Mark(NamedTuple):
    """A time, and the bytes so far: on the loopback device, and sent by this process by kind."""

    seconds: float
    wire: int
    sent: Counter[str]

    def since(self, other: "Mark") -> "Mark":
        """Return the differences from an earlier mark."""
        return Mark(self.seconds - other.seconds, self.wire - other.wire, self.sent - other.sent)


def gradient_bytes(run: Run) -> int:
    """Return the size of the gradients of a step in the first task."""
    return sum(p.grad.nbytes for p in run.net.parameters() if p.grad is not None)


def on_loopback() -> int:
    """Return the bytes that all processes of this machine have sent to each other, on Linux."""
    for line in Path("/proc/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == "lo":
            return int(counts.split()[8])
    raise UserError("/proc/net/dev has no loopback device: measure on Linux")


def stream() -> TaskStream:
    """Return a stream of one task of random images, of the size of CIFAR's."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(CLASSES).repeat(PER_CLASS)
    images = torch.randint(256, (len(labels), 3, 32, 32), generator=rng, dtype=torch.uint8)
    split = Split(images, labels)
    names = tuple(str(label) for label in range(CLASSES))
    return TaskStream("random", [Task(0, "random", names, split, split)], [split])


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.traffic")
    except UserError as error:
        fail(str(error))
