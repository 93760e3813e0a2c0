"""What training on many graphics devices would take: a model, from counts and data sheets.

Nothing here is measured. N devices have `IMAGES` images each in a step, so the batch grows with N.

- Forward, backward and projection take their operations (see `estimates`) at `EFFICIENCY` of the
  rate of the data sheet: bfloat16, and TensorFloat-32 for the projection, which every device does.
- A sum of b bytes over N devices takes 2 (N - 1) / N b / bandwidth + 2 log2(N) latency: what rings
  send, and as many messages as trees. The slowest link counts.
- Gradients are sums in float32, in buckets of 25 MB. At best they are hidden behind the backward
  pass, two thirds of the operations; at worst, as in the library, not at all.
- Every BatchNorm layer waits for two sums a step: of 2 c + 1 numbers of double precision forward,
  2 c backward.
- A base update is the work of the machines' processors, eight devices and so eight processes to a
  machine. Products of inputs take turns among all processes. For a task of `CLASSES` classes Gram
  matrices are summed in the first process, 9/16 of each is sent, over a network that the eight
  processes of a machine share. The first process finds the bases, and hands them on, half full.
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
CORES = 1e12  # operations per second in double precision, of all cores of a machine
BUCKET = 25e6  # bytes
TRIANGLE = 9 / 16  # of a symmetric matrix, sent in eight rows of blocks


@dataclass(frozen=True)
class Link:
    """A way between devices: bytes per second in each direction, and seconds for a message."""

    bandwidth: float
    latency: float


WITHIN = Link(300e9, 5e-6)  # NVLink of an A100
BETWEEN = Link(25e9, 10e-6)  # InfiniBand at 200 Gbit/s, one for each device
PROCESSES = 25e9 / PER_MACHINE  # bytes per second that a process has of one such line


def link(devices: int) -> Link:
    """Return the slowest link among so many devices."""
    return WITHIN if devices <= PER_MACHINE else BETWEEN


def sum_seconds(size: float, devices: int, way: Link) -> float:
    """Return the time of a sum over devices."""
    return ring_bytes(size, devices) / way.bandwidth + 2 * math.log2(devices) * way.latency


def ring_bytes(size: float, devices: int) -> float:
    """Return what each device sends for a sum of so many bytes."""
    return 2 * (devices - 1) / devices * size


def step_row(network: Network, devices: int) -> dict[str, Any]:
    """Return the parts of a step, in seconds, and the images per second of all devices."""
    compute = network.training(IMAGES) / (EFFICIENCY * RATES["bfloat16"])
    projection = network.total(lambda layer: layer.chosen(IMAGES)) / (EFFICIENCY * RATES["tf32"])
    size = 4 * network.total(lambda layer: layer.outputs * layer.dimension)
    buckets = math.ceil(size / BUCKET)
    way = link(devices)
    gradients = buckets * sum_seconds(size / buckets, devices, way)
    norms = sum(
        sum_seconds(8 * (2 * c + 1), devices, way) + sum_seconds(8 * 2 * c, devices, way)
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
    """Return what a base update sends, and how long its parts take."""
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
    """Return all of it, for JSON."""
    networks = [vit_b16(), vit_l16(), resnet50()]
    pairs = [(network, devices) for network in networks for devices in DEVICES]
    return {
        "steps": [step_row(*pair) for pair in pairs],
        "updates": [update_row(*pair) for pair in pairs],
    }
