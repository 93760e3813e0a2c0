"""The bases of one task of ten classes: ours against loops over patches and full SVDs."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.images import CLASSES, random_task
from benchmarks.learner import TASKS, Learner, groups_after, ranks_after
from benchmarks.references import Array, columns, extended, refined
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench, Call
from classgrad import seeds
from classgrad.core.collect import ClassInputs, collect
from classgrad.core.layers import tap
from classgrad.core.subspace import Representation, Subspace
from classgrad.methods.projection.cgp import CGP

SAMPLES = 125
READINGS = {"algorithm": refined, "released": extended}
PARTS = 20  # of the other images; a group of earlier classes has the directions of some of them
PATCHED = 10  # images of a part that a convolution sees, each with many patches


class Task:
    """The last task of a stream of ten, with classes similar to earlier ones; two ways to bases.

    The bases so far have the ranks of the recorded runs; their directions are those of most energy
    in the layers' inputs for other images of the same kind.
    """

    def __init__(self) -> None:
        learner = Learner("cgp", 0, protect=False)
        assert isinstance(learner.method, CGP)
        # Every class counts as similar. All samples are used, as an untrained network classifies
        # few of them correctly.
        self.method = learner.method.replace(similarity=-1, correct_only=False)
        self.net = learner.net
        self.task = random_task(0, per_class=SAMPLES)
        other = self._other_inputs()
        self.states = {"algorithm": state_of_one(other), "released": state_of_groups(other)}

    def _other_inputs(self) -> list[ClassInputs]:
        other = random_task(1, per_class=2 * SAMPLES, seed=1)
        x = other.transform(other.train.unit_images(slice(None)))
        part = torch.arange(len(x)) % PARTS
        sites = self._attached().projector.sites
        batches = [(x[i : i + 250], part[i : i + 250]) for i in range(0, len(x), 250)]
        samples = {name: len(x) if site.kind.linear else PATCHED for name, site in sites.items()}
        collected = collect(
            self.net, lambda inputs: self.net(inputs, 0), lambda: batches, sites, samples
        )
        return list(collected.classes.values())

    def _attached(self, reading: str = "algorithm") -> CGP:
        method = self.method.replace(reading=reading)
        method.attach(self.net.protected())
        return method

    def prepare(self, reading: str = "algorithm") -> None:
        """Load what is known of earlier tasks, for one call of `ours`: a run has it already."""
        self.prepared = self._attached(reading)
        self.prepared.load_state_dict(self.states[reading], self.net)

    def ours(self) -> CGP:
        """Let CGP end the task; return it with its bases."""
        self.prepared.end_task(self.net, self.task, seeds.generator(1, "samples", 0))
        return self.prepared

    def by_loops(self, classes: int, reading: str = "algorithm") -> dict[str, list[Array]]:
        """Return the bases of all groups with the first classes added, one after another."""
        method, state, extend = self._attached(reading), self.states[reading], READINGS[reading]
        sites, samples = method.projector.sites, method.by_layer(method.samples)
        energy = {
            name: method.threshold(start, state["learnt"])
            for name, start in method.by_layer(method.energy).items()
        }
        own = {name: groups["bases"] for name, groups in state["groups"].items()}
        bases = {
            name: [part.numpy() for part in own.get(name, [basis])]
            for name, basis in state["bases"].items()
        }
        self.net.eval()
        for label in range(classes):
            of_class = self.task.train.labels == label
            with torch.no_grad(), tap(sites.values()) as seen:
                self.net(self.task.transform(self.task.train.unit_images(of_class)), 0)
            for name, site in sites.items():
                inputs = seen[site.source][0][: samples[name]].double().numpy()
                matrix = columns(site.layer, inputs)
                bases[name] = [extend(basis, matrix, energy[name]) for basis in bases[name]]
        return bases


def state_of_one(other: list[ClassInputs]) -> dict[str, Any]:
    """Return a state with one basis for each layer."""
    ranks = ranks_after(TASKS - 1)
    bases = {name: strongest(other, name, [rank])[0] for name, (_, rank) in ranks.items()}
    return {"learnt": TASKS - 1, "bases": bases, "frozen": [], "groups": {}}


def state_of_groups(other: list[ClassInputs]) -> dict[str, Any]:
    """Return a state with a basis for each group of classes."""
    bases, groups = {}, {}
    for name, layer in groups_after(TASKS - 1).items():
        own = strongest(other, name, layer.ranks)
        bases[name] = Subspace.empty(layer.dimension).extended(torch.cat(own, dim=1)).basis
        prototypes = [other[group % len(other)].prototype(name) for group in layer.group_of]
        groups[name] = {
            "prototypes": torch.stack(prototypes).float(),
            "group_of": layer.group_of,
            "cosines": [1.0] * len(layer.group_of),
            "bases": own,
        }
    return {"learnt": TASKS - 1, "bases": bases, "frozen": [], "groups": groups}


def strongest(other: list[ClassInputs], name: str, ranks: list[int]) -> list[Tensor]:
    """Return as many bases as there are ranks, each from other images."""
    inputs = [c.representations[name] for c in other]
    pooled = [Representation.pooled(inputs[group :: len(ranks)]) for group in range(len(ranks))]
    return [c.spectrum()[1][:, :rank].clone() for c, rank in zip(pooled, ranks, strict=True)]


def measure(bench: Bench) -> list[Row]:
    """Time the class bases of all layers, including the forward pass."""
    task, classes = Task(), 1
    calls: dict[str, Call] = {}
    for reading in READINGS:
        calls[f"prepare {reading}"] = partial(task.prepare, reading)
        calls[f"ours {reading}"] = task.ours
    loops = {f"loops {reading}": partial(task.by_loops, classes, reading) for reading in READINGS}
    timings = bench.alternate({**calls, **loops}, rounds=6, slow=dict.fromkeys(loops, 1))
    return [
        Row.slower(
            what,
            Quantity.of(timings[f"ours {reading}"]),
            Quantity.of(timings[f"loops {reading}"].times(CLASSES / classes)),
            bound=Bound(50, at_least=True, aim=100),
            note=f"{CLASSES} classes, {SAMPLES} samples each, fewer for convolutions, after "
            f"{TASKS - 1} tasks; {how}; the loops were measured on {classes} of {CLASSES} "
            "classes and scaled",
        )
        for reading, what, how in [
            ("algorithm", "bases of a task: loops / ours", "CGP's Algorithm 1 for every class"),
            (
                "released",
                "bases of a task, released: loops / ours",
                "with reading=released every class extends every group",
            ),
        ]
    ]
