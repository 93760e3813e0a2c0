"""AugMix of a batch: ours against Pillow, and as a part of a training step of CGP."""

import numpy as np

from benchmarks import pillow
from benchmarks.learner import BATCH, Learner
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.smooth import smooth_images
from benchmarks.timing import Bench
from classgrad import seeds
from classgrad.data.augmix import augmix


def measure(bench: Bench) -> list[Row]:
    """Time AugMix of 64 images at severity 3; the reference starts from Pillow images."""
    images = smooth_images(BATCH)
    floats, pictures = images / 255, [pillow.to_pillow(image) for image in images]
    rng, draws = seeds.generator(1, "method"), np.random.default_rng(1)
    timings = bench.alternate(
        {
            "ours": lambda: augmix(floats, generator=rng),
            "pillow": lambda: pillow.augmix(pictures, draws),
            "step": Learner("cgp").step,
        },
        rounds=15,
        turn=3,
    )
    ours, reference, step = (Quantity.of(timings[name]) for name in ("ours", "pillow", "step"))
    return [
        Row.slower(
            f"AugMix of {BATCH} images: Pillow / ours",
            ours,
            reference,
            bound=Bound(3, at_least=True),
        ),
        Row.share(f"AugMix of {BATCH} images / step of cgp", ours, step, bound=Bound(0.12)),
    ]
