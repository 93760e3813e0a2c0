"""How much of the energy of new inputs is free after one task: `python -m benchmarks.free`.

A network learns the first task of CIFAR-100. From the same weights, every line of the experiment
`directions` computes its bases, as in its run, and so do those of `MORE`. A layer can change its
output for an input only through what is left of the input when it is projected as gradients are:
the part outside the layer's basis. So what is measured is the share of energy left, for test images
of the first task, and for training images of the second, which comes next. Lines of CGP also have
the number of groups.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from torch import Tensor

from benchmarks.machine import describe_machine
from classgrad import seeds
from classgrad.cli import fail
from classgrad.cli.options import DataDir
from classgrad.cli.run import progress_bar
from classgrad.core import linalg
from classgrad.core.layers import sites, tap
from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.methods import CGP
from classgrad.methods.projection.base import Projected
from classgrad.networks.network import Network
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, batches

OUT = Path(__file__).parent.parent / "results" / "free.json"
BATCH, IMAGES = 64, 960
# Bases that no line of the experiment has.
MORE: dict[str, dict[str, Any]] = {
    "CGP + BR, pooled": {"reading": "pooled"},
    "CGP + BR, pooled, 20 samples of a class": {"reading": "pooled", "samples": 20},
    "CGP + BR, algorithm, η 0.5, any samples": {"similarity": 0.5, "correct_only": False},
    "CGP + BR, released, any samples": {"reading": "released", "correct_only": False},
    "CGP + BR, algorithm, centred, η 0.2": {"similarity": 0.2, "centred": True},
    "CGP + BR, algorithm, centred, η 0": {"similarity": 0.0, "centred": True},
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.free --data-dir data")
def study(
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of the run, as in classgrad run.")] = 1,
) -> None:
    """Learn one task, compute bases in several ways, and measure the share they leave free."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    console = Console()
    experiment = experiments.load("directions")
    plan = make_plan(experiment.benchmark, "finetune", seed=seed)
    stream = load_stream(plan, data_dir)
    run = Run(plan, stream)
    with progress_bar(console, run) as observer:
        run.observer = observer
        run.learn(0)
    weights = {name: value.clone() for name, value in run.net.state_dict().items()}
    run.net.add_task(stream[1].classes)
    energies = {
        "own": grams(run.net, stream[0], stream.test(0)),
        "next": grams(run.net, stream[1], stream[1].train),
    }
    results = describe_machine(sys.argv[1:], quick=False)
    results["command"] = " ".join(["python -m benchmarks.free", *sys.argv[1:]])
    results["seed"], results["learning_rate"] = seed, plan.training.learning_rate
    results["accuracy"], results["lines"] = run.record.average_accuracy, []
    base = {"reading": "algorithm", "contrast": 0.0}
    more = [
        experiments.Line(label=label, method="cgp", values={**base, **values})
        for label, values in MORE.items()
    ]
    for line in [*experiment.lines, *more]:
        line.values["class_order"] = "natural"  # that of `stream`, and of released code
        with console.status(line.label):
            method = protected(Run(line.plan(experiment.benchmark, "fast", seed), stream), weights)
        measured = layers(method, energies)
        if any(measured == earlier["layers"] for earlier in results["lines"]):
            continue  # they differ in training only
        results["lines"].append({"label": line.label, "layers": measured})
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"written   {OUT}", soft_wrap=True)


def protected(run: Run, weights: dict[str, Tensor]) -> Projected:
    """Return the method of a run after the first task, with these weights."""
    run.net.load_state_dict(weights)
    method = run.method
    assert isinstance(method, Projected)
    method.end_task(run.net, run.stream[0], seeds.generator(run.plan.seed, "samples", 0))
    return method


def grams(net: Network, task: Task, split: Split) -> dict[str, Tensor]:
    """Return C Cᵀ of the inputs of every layer for some images, in batches as in training."""
    shared = sites(net.protected())
    total = {
        name: torch.zeros(site.dimension, site.dimension, dtype=torch.float64)
        for name, site in shared.items()
    }
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad(), net.evaluating(), tap(shared.values()) as seen:
        for number, index in enumerate(batches(len(split), BATCH, rng)):
            if number == IMAGES // BATCH:
                break
            seen.clear()
            net(task.transform(split.unit_images(index)), task.id)
            for name, site in shared.items():
                for x in seen[site.source]:
                    total[name] += site.gram(x)
    return total


def layers(method: Projected, energies: dict[str, dict[str, Tensor]]) -> list[Any]:
    """Return the rank of each layer, the share of energy that is free, and numbers of groups."""
    result = []
    for name, subspace in method.subspaces.items():
        free = {kind: free_share(remover(method, name), of[name]) for kind, of in energies.items()}
        layer = {"name": name, "dimension": subspace.dimension, "rank": subspace.rank, **free}
        if isinstance(method, CGP) and method.similarity < 1:
            layer["groups"] = len(set(method.groups[name].group_of))
            if method.groups[name].bases:
                layer["ranks"] = [basis.shape[1] for basis in method.groups[name].bases]
        result.append(layer)
    return result


def remover(method: Projected, site: str) -> Tensor:
    """Return the matrix that projects a gradient of a site: I - S Sᵀ, or a product of such."""
    subspace = method.subspaces[site]
    bases = [subspace.basis]
    if isinstance(method, CGP) and method.refining().projection == "in_turn":
        bases = method.groups[site].exact_bases()
    product = torch.eye(subspace.dimension, dtype=torch.float64)
    for basis in bases:
        product = linalg.remove(product, basis)
    return product


def free_share(projection: Tensor, gram: Tensor) -> float:
    """Return |C projected|² / |C|² for C Cᵀ.

    >>> free_share(torch.diag(torch.tensor([0.0, 1, 1])), torch.diag(torch.tensor([3.0, 1, 0])))
    0.25
    """
    return float((projection * (gram @ projection)).sum() / gram.trace())


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.free")
    except UserError as error:
        fail(str(error))
