"""Are HAT's masks learnt? `python -m benchmarks.masks` learns the first task of CIFAR-100.

An embedding is drawn at random, so an untrained mask uses half of the units. For each rate of the
embeddings, the record has how many units the task uses, and how many training has switched.
"""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

from benchmarks.machine import describe_machine
from classgrad.cli import fail
from classgrad.cli.options import DataDir
from classgrad.cli.run import progress_bar
from classgrad.errors import UserError
from classgrad.methods.structure.hat import HAT, Gate
from classgrad.runs.run import Run, load_stream
from classgrad.runs.spec import make_plan

OUT = Path(__file__).parent.parent / "results" / "masks.json"
RATES = (1, 20, 60, 200)  # 1: as in the paper

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.masks --data-dir data")
def study(
    data_dir: DataDir = None,
    seed: Annotated[int, typer.Option(help="Seed of the run, as in classgrad run.")] = 1,
) -> None:
    """Learn one task with each rate of the embeddings, and count the units of its masks."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    console = Console()
    results = describe_machine(sys.argv[1:], quick=False)
    results["command"] = " ".join(["python -m benchmarks.masks", *sys.argv[1:]])
    results["seed"], results["rates"] = seed, []
    for rate in RATES:
        plan = make_plan("split-cifar100", "hat", seed=seed, values={"embedding_rate": rate})
        assert isinstance(plan.method, HAT)
        results["steepness"] = plan.method.steepness
        run = Run(plan, load_stream(plan, data_dir))
        gates = {gate.name: gate for gate in run.net.modules() if isinstance(gate, Gate)}
        with progress_bar(console, run) as observer:
            run.observer = observer
            run.learn(0)
        layers = [
            {
                "name": layer.name,
                "units": layer.dimension,
                "untrained": int((gates[layer.name].drawn(0) > 0).sum()),
                "used": layer.units[0],
                "switched": layer.switched[0],
            }
            for layer in run.record.layers
        ]
        accuracy = run.record.average_accuracy
        results["rates"].append({"embedding_rate": rate, "accuracy": accuracy, "layers": layers})
        OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"written   {OUT}", soft_wrap=True)


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.masks")
    except UserError as error:
        fail(str(error))
