"""The bases of wide layers, python -m benchmarks.wide: time and memory to add a class to each.

Times are of the processor, on one thread: what else runs on the machine adds little to them.
"""

import json
import sys
import time
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.machine import describe_machine
from benchmarks.pages import WIDE, fill
from benchmarks.simulated import ENERGY, POWER, SAMPLES
from benchmarks.timing import Call
from classgrad.cli import fail
from classgrad.core.selection import plain
from classgrad.core.subspace import Representation
from classgrad.errors import UserError

BLOCK = 2**24  # numbers that are added to a representation at once, as `collect` does

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


@app.command(epilog="Example: python -m benchmarks.wide")
def study() -> None:
    """Measure the bases of wide layers; write wide.json and the page."""
    console = Console()
    torch.set_num_threads(1)
    results = describe_machine(sys.argv[1:], quick=False)
    results["command"] = " ".join(["python -m benchmarks.wide", *sys.argv[1:]])
    results["layers"] = []
    for layer in LAYERS:
        results["layers"].append(measure_layer(layer))
        console.print(f"{layer.name}, {layer.dimension} inputs")
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
