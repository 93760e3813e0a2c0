"""The scaling study, python -m benchmarks.scaling: measure, count, draw, and fill its page."""

import json
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks import pages
from benchmarks.batches import measure_batches
from benchmarks.charts import draw
from benchmarks.estimates import paper
from benchmarks.machine import describe_machine
from benchmarks.simulated import measure_classes, measure_widths
from benchmarks.timing import Bench
from classgrad.cli import fail
from classgrad.errors import UserError

STUDIES: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    "classes": measure_classes,
    "widths": measure_widths,
    "batches": measure_batches,
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.scaling --redraw")
def study(
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch.")] = 2,
    redraw: Annotated[
        bool,
        typer.Option("--redraw", help="Measure nothing: count, draw and fill from scaling.json."),
    ] = False,
) -> None:
    """Measure how cost grows with classes, widths and batches; write scaling.json and the page."""
    console = Console()
    results = pages.load_results(pages.RESULTS) if redraw else run_studies(threads, console)
    results["paper"] = paper()
    pages.RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    figures = draw(results, pages.PAGE.parent / "figures")
    pages.fill()
    for path in (pages.RESULTS, *figures, pages.PAGE):
        console.print(f"written   {path}", soft_wrap=True)


def run_studies(threads: int, console: Console) -> dict[str, Any]:
    """Run all studies, one after another, and return their results and the machine."""
    torch.set_num_threads(threads)
    results = describe_machine(sys.argv[1:], quick=False)
    results["command"] = " ".join(["python -m benchmarks.scaling", *sys.argv[1:]])
    for name, measure in STUDIES.items():
        console.print(f"{name:<9}", end=" ")
        start = time.perf_counter()
        results[name] = measure(Bench())
        console.print(f"{time.perf_counter() - start:.0f} s")
    return results


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.scaling")
    except UserError as error:
        fail(str(error))
