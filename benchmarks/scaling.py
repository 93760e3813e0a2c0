"""The scaling study: python -m benchmarks.scaling measures, counts, draws, and fills its page."""

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
from benchmarks.machine import facts
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
    found = pages.known(pages.RESULTS) if redraw else measured(threads, console)
    found["paper"] = paper()
    pages.RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    figures = draw(found, pages.PAGE.parent / "figures")
    pages.fill()
    for path in (pages.RESULTS, *figures, pages.PAGE):
        console.print(f"written   {path}", soft_wrap=True)


def measured(threads: int, console: Console) -> dict[str, Any]:
    """Make all studies, one after another, and return what they found beside the machine."""
    torch.set_num_threads(threads)
    found = facts(sys.argv[1:], quick=False)
    found["command"] = " ".join(["python -m benchmarks.scaling", *sys.argv[1:]])
    for name, measure in STUDIES.items():
        console.print(f"{name:<9}", end=" ")
        start = time.perf_counter()
        found[name] = measure(Bench())
        console.print(f"{time.perf_counter() - start:.0f} s")
    return found


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.scaling")
    except UserError as error:
        fail(str(error))
