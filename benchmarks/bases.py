"""The bases of one task of ten classes: ours against loops over patches and full SVDs."""

import numpy as np
import torch

from benchmarks.images import CLASSES, random_task
from benchmarks.learner import Learner
from benchmarks.references import Array, columns, grown
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad import seeds
from classgrad.capture import tap
from classgrad.methods.cgp import CGP

SAMPLES = 125


class Task:
    """A task of ten classes at the start of a stream, and two ways to its bases."""

    def __init__(self) -> None:
        learner = Learner("cgp", 0, protect=False)
        assert isinstance(learner.method, CGP)
        # An untrained network classifies few samples right; a basis is to have all its samples.
        self.method = learner.method.replace(similarity=1, correct_only=False)
        self.net = learner.net
        self.task = random_task(0, per_class=SAMPLES)

    def ours(self) -> CGP:
        """Let CGP end the task; return it with its bases."""
        method = self.method.replace()
        method.attach(self.net.protected())
        method.end_task(self.net, self.task, seeds.generator(1, "samples", 0))
        return method

    def by_loops(self, classes: int) -> dict[str, Array]:
        """Return the bases of the first classes, one class and layer after another."""
        method = self.method.replace()
        method.attach(self.net.protected())
        sites, samples = method.projector.sites, method.by_layer(method.samples)
        bases = {name: np.zeros((site.dimension, 0)) for name, site in sites.items()}
        energy = method.thresholds()
        self.net.eval()
        for label in range(classes):
            own = self.task.train.labels == label
            with torch.no_grad(), tap(sites.values()) as seen:
                self.net(self.task.transform(self.task.train.unit_images(own)), 0)
            for name, site in sites.items():
                inputs = seen[site.layer][0][: samples[name]].double().numpy()
                bases[name] = grown(bases[name], columns(site.layer, inputs), energy[name])
        return bases


def measure(bench: Bench) -> list[Row]:
    """Time plain class bases of all layers, from the images on."""
    task, classes = Task(), 1 if bench.quick else 2
    found = bench.alternate(
        {"ours": task.ours, "loops": lambda: task.by_loops(classes)}, rounds=10, slow={"loops": 1}
    )
    return [
        Row.slower(
            "bases of a task: loops / ours",
            Quantity.of(found["ours"]),
            Quantity.of(found["loops"].times(CLASSES / classes)),
            bound=Bound(50, at_least=True, aim=100),
            note=f"{CLASSES} classes, {SAMPLES} samples each, fewer for convolutions; CGP with "
            "similarity=1, correct_only=false; the loops were measured on "
            f"{classes} of {CLASSES} classes and scaled",
        )
    ]
