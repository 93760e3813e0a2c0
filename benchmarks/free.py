"""How much of the energy of new inputs is free after one task: `python -m benchmarks.free`.

A network learns the first task of CIFAR-100. From the same weights, every line of the experiment
`room` computes its bases, as in its run. A layer can change its output for an input only through
the part of the input outside the layer's basis. So what is measured is the share of energy outside,
for test images of the first task, and for training images of the second, which comes next.
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
from classgrad.core.layers import sites, tap
from classgrad.errors import UserError
from classgrad.experiments import spec as experiments
from classgrad.methods.projection.base import Projected
from classgrad.networks.network import Network
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, batches

OUT = Path(__file__).parent.parent / "results" / "free.json"
BATCH, IMAGES = 64, 960

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.free --data-dir data")
def study(
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of the run, as in classgrad run.")] = 1,
) -> None:
    """Learn one task, compute bases in several ways, and measure the share they leave free."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    console = Console()
    experiment = experiments.load("room")
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
    results["seed"], results["accuracy"], results["lines"] = seed, run.record.average_accuracy, []
    for line in experiment.lines:
        with console.status(line.label):
            bases = bases_of(Run(line.plan(experiment.benchmark, "fast", seed), stream), weights)
        results["lines"].append({"label": line.label, "layers": layers(bases, energies)})
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"written   {OUT}", soft_wrap=True)


def bases_of(run: Run, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the bases of a method after the first task, with these weights."""
    run.net.load_state_dict(weights)
    method = run.method
    assert isinstance(method, Projected)
    method.end_task(run.net, run.stream[0], seeds.generator(run.plan.seed, "samples", 0))
    return {name: subspace.basis for name, subspace in method.subspaces.items()}


def grams(net: Network, task: Task, split: Split) -> dict[str, Tensor]:
    """Return C Cᵀ of the inputs of every layer for some images, in batches as in training."""
    protected = sites(net.protected())
    total = {
        name: torch.zeros(site.dimension, site.dimension, dtype=torch.float64)
        for name, site in protected.items()
    }
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad(), net.evaluating(), tap(protected.values()) as seen:
        for number, index in enumerate(batches(len(split), BATCH, rng)):
            if number == IMAGES // BATCH:
                break
            seen.clear()
            net(task.transform(split.unit_images(index)), task.id)
            for name, site in protected.items():
                for x in seen[site.source]:
                    total[name] += site.gram(x)
    return total


def layers(bases: dict[str, Tensor], energies: dict[str, dict[str, Tensor]]) -> list[Any]:
    """Return the rank of each layer, and the share of energy that is free."""
    return [
        {
            "name": name,
            "dimension": len(basis),
            "rank": basis.shape[1],
            **{kind: free_share(basis, of[name]) for kind, of in energies.items()},
        }
        for name, basis in bases.items()
    ]


def free_share(basis: Tensor, gram: Tensor) -> float:
    """Return 1 - |Sᵀ C|² / |C|² for a basis S and C Cᵀ.

    >>> free_share(torch.eye(3)[:, :1], torch.diag(torch.tensor([3.0, 1.0, 0.0])))
    0.25
    """
    return 1 - float(((gram @ basis) * basis).sum() / gram.trace())


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.free")
    except UserError as error:
        fail(str(error))
