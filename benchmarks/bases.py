"""The bases of one task of ten classes: ours against loops over patches and full SVDs."""

import torch

from benchmarks.images import CLASSES, random_task
from benchmarks.learner import TASKS, Learner, ranks_after
from benchmarks.references import Array, columns, refined
from benchmarks.rows import Bound, Quantity, Row
from benchmarks.timing import Bench
from classgrad import seeds
from classgrad.core.collect import collect
from classgrad.core.layers import tap
from classgrad.methods.projection.cgp import CGP

SAMPLES = 125


class Task:
    """The last task of a stream of ten, with classes similar to earlier ones; two ways to bases.

    The bases so far have the ranks of the recorded run; their directions are those of most energy
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
        ranks = {name: rank for name, (_, rank) in ranks_after(TASKS - 1).items()}
        self.bases = self._strongest(ranks)

    def _strongest(self, ranks: dict[str, int]) -> dict[str, torch.Tensor]:
        other = random_task(1, per_class=2 * SAMPLES, seed=1)
        x, y = other.transform(other.train.unit_images(slice(None))), other.train.labels
        sites = self._attached().projector.sites
        batches = [(x[i : i + 250], y[i : i + 250]) for i in range(0, len(x), 250)]
        collected = collect(
            self.net,
            lambda part: self.net(part, 0),
            lambda: batches,
            sites,
            dict.fromkeys(sites, len(x)),
            pool=True,
        )
        pooled = collected.classes[0].representations
        return {name: pooled[name].spectrum()[1][:, : ranks[name]].clone() for name in sites}

    def _attached(self) -> CGP:
        method = self.method.replace()
        method.attach(self.net.protected())
        return method

    def ours(self) -> CGP:
        """Let CGP end the task; return it with its bases."""
        method = self._attached()
        state = {"learnt": TASKS - 1, "bases": self.bases, "frozen": [], "groups": {}}
        method.load_state_dict(state, self.net)
        method.end_task(self.net, self.task, seeds.generator(1, "samples", 0))
        return method

    def by_loops(self, classes: int) -> dict[str, Array]:
        """Return the bases with the first classes added, one class and layer after another."""
        method = self._attached()
        method.load_state_dict(
            {"learnt": TASKS - 1, "bases": self.bases, "frozen": [], "groups": {}}, self.net
        )
        sites, samples = method.projector.sites, method.by_layer(method.samples)
        bases = {name: basis.numpy() for name, basis in self.bases.items()}
        energy = method.thresholds()
        self.net.eval()
        for label in range(classes):
            of_class = self.task.train.labels == label
            with torch.no_grad(), tap(sites.values()) as seen:
                self.net(self.task.transform(self.task.train.unit_images(of_class)), 0)
            for name, site in sites.items():
                inputs = seen[site.source][0][: samples[name]].double().numpy()
                bases[name] = refined(bases[name], columns(site.layer, inputs), energy[name])
        return bases


def measure(bench: Bench) -> list[Row]:
    """Time the class bases of all layers, including the forward pass."""
    task, classes = Task(), 1
    timings = bench.alternate(
        {"ours": task.ours, "loops": lambda: task.by_loops(classes)}, rounds=6, slow={"loops": 2}
    )
    return [
        Row.slower(
            "bases of a task: loops / ours",
            Quantity.of(timings["ours"]),
            Quantity.of(timings["loops"].times(CLASSES / classes)),
            bound=Bound(50, at_least=True, aim=100),
            note=f"{CLASSES} classes, {SAMPLES} samples each, fewer for convolutions, after "
            f"{TASKS - 1} tasks; CGP's Algorithm 1 for every class; the loops were measured on "
            f"{classes} of {CLASSES} classes and scaled",
        )
    ]
