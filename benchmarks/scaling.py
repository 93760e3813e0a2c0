"""The scaling study: python -m benchmarks.scaling measures, counts, draws, and fills its page."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from benchmarks.batches import measure_batches
from benchmarks.charts import draw
from benchmarks.estimates import paper
from benchmarks.machine import facts
from benchmarks.pages import filled
from benchmarks.simulated import measure_classes, measure_widths
from benchmarks.timing import Bench
from classgrad.cli import fail
from classgrad.errors import UserError

RESULTS = Path(__file__).parent / "scaling.json"
PAGE = Path(__file__).parent.parent / "docs" / "scaling.md"
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
    found = known() if redraw else measured(threads, console)
    found["paper"] = paper()
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    figures = draw(found, PAGE.parent / "figures")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
    for path in (RESULTS, *figures, PAGE):
        console.print(f"written   {path}", soft_wrap=True)


def known() -> dict[str, Any]:
    """Return what was measured before."""
    if not RESULTS.exists():
        raise UserError(f"{RESULTS} is not there: measure first, without --redraw")
    found: dict[str, Any] = json.loads(RESULTS.read_text(encoding="utf-8"))
    return found


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
