"""The command line: python -m benchmarks.guards."""

import json
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.guards import learning
from benchmarks.guards.contenders import CONTENDERS, FineTuning
from benchmarks.guards.cost import peak_bytes, second_task, step_times
from benchmarks.guards.learning import choose, learn_all, learn_first
from benchmarks.guards.models import TRUNKS
from benchmarks.guards.tasks import VALID_SHARE, split_tasks
from benchmarks.machine import describe_machine
from classgrad.cli import fail
from classgrad.errors import UserError

RESULTS = Path(__file__).parents[2] / "results" / "guards.json"
TASKS = (2, 5)
RATES = (3e-4, 1e-3, 3e-3, 1e-2)  # of AdamW, to choose from
SEEDS, TUNING_SEEDS = (21, 22, 23), (11, 12)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.guards")
def measure(
    out: Annotated[Path, typer.Option(help="File for the figures, JSON.")] = RESULTS,
) -> None:
    """Learn tasks with a guard, with PEFT's methods and with neither; measure what is kept."""
    torch.set_num_threads(1)
    console = Console()
    machine = describe_machine([], quick=False) | {"command": "python -m benchmarks.guards"}
    try:
        machine["versions"]["peft"] = version("peft")
    except PackageNotFoundError:
        raise UserError("PEFT is not installed: pip install peft, or use 'make guards'") from None
    rows: list[dict[str, Any]] = []
    for kind, count in product(TRUNKS, TASKS):
        rows += compare(kind, count, CONTENDERS, console)
        content = {**machine, "settings": settings(), "rows": rows}
        out.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    console.print(f"figures   {out}", soft_wrap=True)


def settings() -> dict[str, Any]:
    """Return what all contenders have in common."""
    return {
        "optimizer": "AdamW, weight decay 0.01",
        "batch": learning.BATCH,
        "target": learning.TARGET,
        "most steps": learning.MOST_STEPS,
        "share of training images for validation": VALID_SHARE,
        "learning rates": RATES,
        "seeds": SEEDS,
        "tuning seeds": TUNING_SEEDS,
        "choices": {contender.label: contender.settings for contender in CONTENDERS},
    }


def compare(
    kind: str,
    count: int,
    contenders: list[type[FineTuning]],
    console: Console,
    seeds: tuple[tuple[int, ...], tuple[int, ...]] = (SEEDS, TUNING_SEEDS),
) -> list[dict[str, Any]]:
    """Return a row for each contender, on one kind of model and a number of tasks."""
    tasks = {seed: split_tasks(count, seed) for seed in (*seeds[0], *seeds[1])}
    starts = {seed: learn_first(kind, tasks[seed], seed) for seed in tasks}
    rows, trainers = [], {}
    for contender in contenders:
        tried = []
        for given, rate in product(contender.settings, RATES):
            tuned = [learn_all(contender(**given), starts[s], tasks[s], rate, s) for s in seeds[1]]
            tried.append(({"settings": given, "rate": rate}, tuned))
        chosen = choose(tried)
        given, rate = chosen["settings"], chosen["rate"]
        outcomes = [learn_all(contender(**given), starts[s], tasks[s], rate, s) for s in seeds[0]]
        first = seeds[0][0]
        trainers[contender.label] = second_task(
            contender(**given), starts[first], tasks[first], rate
        )
        console.print(f"{kind}, {count} tasks, {contender.label}: {chosen}", soft_wrap=True)
        rows.append(
            {
                "model": kind,
                "tasks": count,
                "contender": contender.label,
                "note": contender.note.get(kind, ""),
                "parameters": sum(p.numel() for p in starts[first].parameters()),
                **chosen,
                "outcomes": [asdict(outcome) for outcome in outcomes],
                "peak": peak_bytes(contender(**given), starts[first], tasks[first], rate),
            }
        )
    times = step_times(trainers)
    for row in rows:
        row["time per step"] = times[row["contender"]].best / times[contenders[0].label].best
    return rows


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.guards")
    except UserError as error:
        fail(str(error))
