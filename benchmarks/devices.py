"""What training on many GPUs would take: a model, from counts and data sheets.

Nothing here is measured. N devices have `IMAGES` images each in a step, so the batch grows with N.

- Forward, backward and projection take their operations (see `estimates`) at `EFFICIENCY` of the
  rate of the data sheet: bfloat16, and TensorFloat-32 for the projection, which every device does.
- A sum of b bytes over N devices takes 2 (N - 1) / N b / bandwidth + 2 log2(N) latency: the bytes
  of a ring, and the number of messages of a tree. The slowest link counts.
- Gradients are sums in float32, in buckets of 25 MB. At best they are hidden behind the backward
  pass, two thirds of the operations; at worst, as in the library, not at all.
- Every BatchNorm layer waits for two sums per step: of 2 c + 1 float64 numbers in the forward pass,
  2 c in the backward pass.
- A base update runs on the processors of the machines, with eight devices and so eight processes
  per machine. Products of inputs are divided among all processes. For a task of `CLASSES` classes,
  Gram matrices are summed in the main process: 9/16 of each is sent, over a network that the eight
  processes of a machine share. The main process computes the bases and broadcasts them, half full.
"""

import math
from dataclasses import dataclass
from typing import Any

from benchmarks.estimates import RATES, SAMPLES, Layer, Network, resnet50, vit_b16, vit_l16

DEVICES = (1, 8, 64, 512)
IMAGES = 64  # of a step, on each device
CLASSES = 10  # of a task
EFFICIENCY = 0.4  # share of the data sheet's rate
PER_MACHINE = 8
CORES = 1e12  # float64 operations per second of all cores of a machine
BUCKET = 25e6  # bytes
TRIANGLE = 9 / 16  # of a symmetric matrix, sent in eight rows of blocks


@dataclass(frozen=True)
class Link:
    """A link between devices: bytes per second in each direction, and seconds per message."""

    bandwidth: float
    latency: float


WITHIN = Link(300e9, 5e-6)  # NVLink of an A100
BETWEEN = Link(25e9, 10e-6)  # InfiniBand at 200 Gbit/s, one for each device
PROCESSES = 25e9 / PER_MACHINE  # bytes per second of a process, with one such link per machine


def link(devices: int) -> Link:
    """Return the slowest link between this many devices."""
    return WITHIN if devices <= PER_MACHINE else BETWEEN


def sum_seconds(size: float, devices: int, slowest: Link) -> float:
    """Return the time of a sum over devices."""
    return ring_bytes(size, devices) / slowest.bandwidth + 2 * math.log2(devices) * slowest.latency


def ring_bytes(size: float, devices: int) -> float:
    """Return the bytes that each device sends for a sum of `size` bytes."""
    return 2 * (devices - 1) / devices * size


def step_row(network: Network, devices: int) -> dict[str, Any]:
    """Return the parts of a step, in seconds, and the images per second of all devices."""
    compute = network.training(IMAGES) / (EFFICIENCY * RATES["bfloat16"])
    projection = network.total(lambda layer: layer.chosen(IMAGES)) / (EFFICIENCY * RATES["tf32"])
    size = 4 * network.total(lambda layer: layer.outputs * layer.dimension)
    buckets = math.ceil(size / BUCKET)
    slowest = link(devices)
    gradients = buckets * sum_seconds(size / buckets, devices, slowest)
    norms = sum(
        sum_seconds(8 * (2 * c + 1), devices, slowest) + sum_seconds(8 * 2 * c, devices, slowest)
        for c in network.norms
    )
    worst = compute + projection + norms + gradients
    best = compute + projection + norms + max(0.0, gradients - compute * 2 / 3)
    alone = compute + projection
    return {
        "network": network.name,
        "devices": devices,
        "compute_seconds": compute,
        "projection_seconds": projection,
        "gradient_seconds": gradients,
        "norm_seconds": norms,
        "wire_bytes": ring_bytes(size, devices),
        "best_images_per_second": devices * IMAGES / best,
        "worst_images_per_second": devices * IMAGES / worst,
        "best_efficiency": alone / best,
        "worst_efficiency": alone / worst,
    }


def update_row(network: Network, devices: int) -> dict[str, Any]:
    """Return the bytes that a base update sends, and the times of its parts."""
    square = network.total(lambda layer: layer.dimension**2)
    grams, bases = CLASSES * TRIANGLE * 8 * square, 8 * square / 2
    sums = CLASSES * network.total(lambda layer: 2 * SAMPLES * layer.positions * layer.dimension**2)
    rest = CLASSES * network.total(Layer.bases) - sums
    sent = (grams + bases) * (devices > 1)
    return {
        "network": network.name,
        "devices": devices,
        "wire_bytes": sent,
        "sum_seconds": sent / PROCESSES,
        "product_seconds": sums / CORES * min(devices, PER_MACHINE) / devices,
        "basis_seconds": rest / CORES,
    }


def model() -> dict[str, Any]:
    """Return all rows, for JSON."""
    networks = [vit_b16(), vit_l16(), resnet50()]
    pairs = [(network, devices) for network in networks for devices in DEVICES]
    return {
        "steps": [step_row(*pair) for pair in pairs],
        "updates": [update_row(*pair) for pair in pairs],
    }
