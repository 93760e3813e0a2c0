"""Records, recipes and experiments."""

import contextlib
import io
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from classgrad.cli import show as cli_show
from classgrad.cli.experiments import comparison, plan_table
from classgrad.experiments import spec as experiments
from classgrad.experiments.compare import compare
from classgrad.experiments.jobs import jobs_of_experiments
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import make_plan
from fuzz.target import Strategy, Target
from fuzz.trees import as_json, as_toml, changed

RECORD = RunRecord(
    benchmark="permuted-digits",
    benchmark_options={"tasks": 2},
    tasks=["first", "第二"],
    method={"name": "gpm", "energy": 0.97, "samples": {"fc*": 10}},
    network="mlp",
    network_options={"width": 8},
    recipe="fast",
    training={"epochs": 2, "learning_rate": 0.01},
    seed=1,
    accuracy_matrix=[[90.0, None], [88.5, 91.25]],
    average_accuracy=89.9,
    backward_transfer=-1.5,
    classes=[
        {"task": "first", "classes": ["a"], "learnt": [90.0], "final": [None], "forgetting": [1]}
    ],
    layers=[{"name": "fc1", "dimension": 64, "ranks": [10, 20]}],
    memory_bytes=2048,
    parameters=1000,
    capacity=130.0,
    versions={"python": "3.11"},
    complete=True,
)
RECIPE: dict[str, Any] = {
    "description": "mine",
    "network": "mlp",
    "training": {"epochs": 3, "learning_rate": 0.05, "schedule": "plateau"},
    "network_options": {"width": 64},
    "methods": {
        "cgp,gpm": {"energy": {"fc1": 0.9, "*": 0.95}, "samples": 5, "training": {"epochs": 4}},
        "ewc": {"strength": 400},
    },
    "benchmarks": {
        "permuted-digits": {"benchmark_options": {"tasks": 3}, "training": {"momentum": 0.9}},
        "folder": {"network": "resnet18", "benchmark_options": {"image_size": 32}},
    },
}
EXPERIMENT: dict[str, Any] = {
    "title": "mine",
    "source": "a table",
    "benchmark": "permuted-digits",
    "tolerance": 1.0,
    "note": "of two lines",
    "lines": [
        {
            "label": "η = 0.5",
            "method": "cgp",
            "values": {"similarity": 0.5, "samples": {"fc*": 9}, "epochs": 2},
            "recipes": {"paper": {"epochs": 3}},
            "paper": {"accuracy": 74.12, "transfer": -1.78},
        },
        {"label": "GPM", "method": "gpm", "paper": {"accuracy": 72.25}, "note": "its own rate"},
    ],
}
PLANS = (("permuted-digits", "cgp"), ("folder:x", "gpm"), ("split-digits", "ewc"))


def _make_record(folder: Path) -> Path:
    (folder / "other").mkdir()
    RECORD.model_copy(update={"seed": 2}).save(folder / "other")
    return RECORD.save(folder)


def _show_record(folder: Path) -> None:
    """Show the record in every way there is: what loads has to be fit to be shown."""
    one, other = str(folder), str(folder / "other")
    with contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")):
        cli_show.show([one], as_json=True)
        cli_show.show([one])
        cli_show.show([one, other])
        cli_show.show([one, other], as_markdown=True)


def _changed_records(sound: bytes) -> Strategy:
    return changed(RECORD.model_dump()).map(as_json)


def _make_recipe(folder: Path) -> Path:
    path = folder / "mine.toml"
    path.write_bytes(as_toml(RECIPE))
    return path


def _plan_with_recipe(folder: Path) -> None:
    for benchmark, method in PLANS:
        make_plan(benchmark, method, recipe=str(folder / "mine.toml")).folder_name()


def _changed_recipes(sound: bytes) -> Strategy:
    return changed(RECIPE).map(as_toml)


def _make_experiment(folder: Path) -> Path:
    path = folder / "mine.toml"
    path.write_bytes(as_toml(EXPERIMENT))
    cell_len("第")  # lets rich load its widths of characters now: loading code is not reading
    return path


def _show_experiment(folder: Path) -> None:
    """List the runs of a table and compare it: what loads has to be fit to be shown."""
    console = Console(file=io.StringIO(), markup=False)
    experiment = experiments.load(str(folder / "mine.toml"))
    for recipe in ("fast", "paper"):
        jobs = jobs_of_experiments([experiment], recipe, [1, 2], folder / "runs")
        states = [job.state() for job in jobs]
        console.print(plan_table(jobs, states, [60.0] * len(jobs)))
        console.print(comparison(experiment, compare(experiment, [RECORD], recipe), recipe))


def _changed_experiments(sound: bytes) -> Strategy:
    return changed(EXPERIMENT).map(as_toml)


TARGETS = (
    Target("record", _make_record, _show_record, _changed_records),
    Target("recipe", _make_recipe, _plan_with_recipe, _changed_recipes),
    Target("experiment", _make_experiment, _show_experiment, _changed_experiments),
)
