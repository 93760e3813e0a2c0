"""The bases of wide layers and of whole models, python -m benchmarks.wide: time and memory.

A class is added to each of some wide layers, and GPM ends the first task of a model as large as
ResNet-50 or ViT-B/16, each in a process of its own. Times are of the processor, on one thread: what
else runs on the machine adds little to them.
"""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import torch
import typer
from rich.console import Console
from torch import Tensor
from torch.nn import functional

from benchmarks.machine import describe_machine
from benchmarks.memory import peak_bytes
from benchmarks.models import EDGE, MODELS
from benchmarks.pages import WIDE, fill, load_results
from benchmarks.simulated import ENERGY, POWER, SAMPLES
from benchmarks.timing import Call
from classgrad import GPM, attach
from classgrad.cli import fail
from classgrad.core.selection import plain
from classgrad.core.subspace import Representation
from classgrad.errors import UserError, unknown

BLOCK = 2**24  # numbers that are added to a representation at once, as `collect` does
IMAGES = 16  # of the task of a whole model, with all their positions
BATCH = 8  # of them
PARTS = ("layers", "models")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Layer:
    """A layer: how many inputs it has, how many rows a sample, and how many directions so far."""

    name: str
    dimension: int
    positions: int
    stored: int


LAYERS = [
    Layer("Linear", 4096, 1, 1400),
    Layer("Linear", 8192, 1, 2400),
    Layer("ResNet-50, 1x1 of 2,048 channels", 2048, 49, 819),
    Layer("ViT-B/16, mlp out", 3072, 197, 1075),
    Layer("ResNet-50, 3x3 of 512 channels", 4608, 49, 1510),
]


@app.command(epilog="Examples: python -m benchmarks.wide | python -m benchmarks.wide --only models")
def study(
    only: Annotated[
        str | None, typer.Option(metavar="PART", help=f"Part to measure: {', '.join(PARTS)}.")
    ] = None,
    note: Annotated[
        str, typer.Option(help="What else ran on the machine, for the file with the figures.")
    ] = "",
) -> None:
    """Measure the bases of wide layers and of models; write wide.json and the page."""
    if only not in (None, *PARTS):
        raise unknown("part", only, PARTS)
    console = Console()
    torch.set_num_threads(1)
    machine = describe_machine(sys.argv[1:], quick=False)
    machine["command"] = " ".join(["python -m benchmarks.wide", *sys.argv[1:]])
    machine["note"] = note
    results = load_results(WIDE) if only else {}
    if only != "models":
        results |= {**machine, "layers": []}
        for layer in LAYERS:
            results["layers"].append(measure_layer(layer))
            console.print(f"{layer.name}, {layer.dimension} inputs")
    if only != "layers":
        results["models"] = {**machine, "rows": []}
        for name in MODELS:
            results["models"]["rows"].append(in_new_process(name))
            console.print(name)
    WIDE.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    fill()


def measure_layer(layer: Layer, samples: int = SAMPLES) -> dict[str, Any]:
    """Time a class whose variances fall as 1 / k^POWER, with the first axes stored.

    With all eigenvectors, and with only those that are needed, where the layer counts as wide.
    """
    rng = torch.Generator().manual_seed(0)
    deviation = torch.arange(1, layer.dimension + 1) ** (-POWER / 2)
    mean = torch.randn(layer.dimension, generator=rng)
    c = Representation(layer.dimension)
    remaining, product_seconds = samples * layer.positions, 0.0
    while remaining:
        count = min(remaining, BLOCK // layer.dimension)
        rows = (mean + torch.randn(count, layer.dimension, generator=rng)) * deviation
        product_seconds += processor_seconds(lambda rows=rows: c.add(rows))  # type: ignore[misc]
        remaining -= count
    basis = torch.eye(layer.dimension, layer.stored, dtype=torch.float64)
    chosen: dict[str, Tensor] = {}

    def choose(name: str) -> None:
        chosen[name] = plain(basis, c, ENERGY).new

    seconds = processor_seconds(lambda: choose("ours"))
    with mock.patch("classgrad.core.subspace.WIDE", layer.dimension + 1):
        exact_seconds = processor_seconds(lambda: choose("exact"))
    return {
        "layer": layer.name,
        "dimension": layer.dimension,
        "rows": samples * layer.positions,
        "stored": layer.stored,
        "representation_bytes": 8 * layer.dimension * min(c.count, layer.dimension),
        "product_seconds": product_seconds,
        "exact_seconds": exact_seconds,
        "exact_rank": chosen["exact"].shape[1],
        "seconds": seconds,
        "rank": chosen["ours"].shape[1],
    }


def in_new_process(name: str) -> dict[str, Any]:
    """Measure a model in a process of its own, as peaks of this one may have other causes."""
    code = f"import json, benchmarks.wide as w; print(json.dumps(w.measure_model({name!r})))"
    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    result: dict[str, Any] = json.loads(process.stdout)
    return result


def measure_model(name: str, images: int = IMAGES) -> dict[str, Any]:
    """Let GPM end a first task with some images; return seconds of the processor, and bytes.

    `peak_bytes` are those of the task's end above the peak before it, with model and images.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = MODELS[name]()
        x = rough_and_fine(images)
    batches = [(part, torch.zeros(len(part), dtype=torch.long)) for part in x.split(BATCH)]
    with torch.no_grad():
        model(batches[0][0])  # for the statistics of norms
    guard = attach(model.eval(), GPM(samples=images))
    before = peak_bytes()
    seconds = processor_seconds(lambda: guard.end_task(batches))
    peak = peak_bytes() - before

    @torch.no_grad()
    def forward() -> None:
        for part, _ in batches:
            model(part)

    layers = guard.layer_ranks()
    return {
        "model": name,
        "layers": len(layers),
        "weight_bytes": sum(weight.nbytes for weight in model.parameters()),
        "images": images,
        "forward_seconds": processor_seconds(forward),
        "seconds": seconds,
        "dimensions": sum(layer.dimension for layer in layers),
        "rank": sum(layer.rank for layer in layers),
        "basis_bytes": sum(4 * layer.dimension * layer.rank for layer in layers),
        "peak_bytes": peak,
    }


def rough_and_fine(images: int) -> Tensor:
    """Return random images of about unit variance, with as much of every scale, as photos have."""
    edges = [EDGE >> power for power in range(6)]
    noise = [torch.randn(images, 3, edge, edge) for edge in edges]
    scaled = [functional.interpolate(x, (EDGE, EDGE), mode="bilinear") for x in noise]
    return torch.stack(scaled).sum(0) / math.sqrt(len(edges))


def processor_seconds(call: Call) -> float:
    """Return how many seconds of the processor a call takes."""
    start = time.process_time()
    call()
    return time.process_time() - start


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.wide")
    except UserError as error:
        fail(str(error))
