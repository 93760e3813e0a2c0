"""The command line: python -m benchmarks. torch is imported after the threads are set."""

import os
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from classgrad.cli import fail
from classgrad.errors import UserError, unknown

if TYPE_CHECKING:
    from rich.console import Console

    from benchmarks.rows import Row

RESULTS = Path(__file__).parent / "results.json"
# The module of each measurement, and the seconds after which it does not repeat any more; together
# less than four minutes. Memory is measured by `python -m benchmarks.memory`.
MEASUREMENTS = {
    "steps": 55,
    "precision": 25,
    "sensitivity": 5,
    "projecting": 15,
    "bases": 40,
    "augmentation": 10,
    "epoch": 10,
    "evaluation": 10,
    "throughput": 15,
    "saving": 10,
    "startup": 15,
    "guard": 20,
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Examples: python -m benchmarks | python -m benchmarks --only bases --quick")
def measure(
    only: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"Measurements separated by commas: {', '.join(MEASUREMENTS)}.",
        ),
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Few repeats.")] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of PyTorch and numpy.")] = 2,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File for the figures, JSON. By default benchmarks/results.json, which only a "
            "whole run writes: with --only or --quick nothing is written."
        ),
    ] = None,
) -> None:
    """Measure speed, and compare it with slow references and bounds."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = str(threads)
    from rich.console import Console

    from benchmarks.machine import describe_machine
    from benchmarks.rows import save, table

    console = Console()
    names = parse_names(only)
    machine = describe_machine(sys.argv[1:], quick)  # now, as the measurements add to the load
    rows = run_measurements(names, quick, console)
    title = f"{threads} threads{', few repeats' if quick else ''}"
    console.print(table([row for name in rows for row in rows[name]], title))
    for name, measured in rows.items():
        for note in dict.fromkeys(row.note for row in measured if row.note):
            console.print(f"{name}: {note}", highlight=False)
    if out is None and not (only or quick):
        out = RESULTS
    if out is not None:
        save(out, machine, rows)
        console.print(f"figures   {out}", soft_wrap=True)


def parse_names(only: str | None) -> list[str]:
    """Return the measurements to make."""
    if only is None:
        return list(MEASUREMENTS)
    names = [name.strip() for name in only.split(",") if name.strip()]
    for name in names:
        if name not in MEASUREMENTS:
            raise unknown("measurement", name, MEASUREMENTS)
    if not names:
        raise UserError(f"--only names no measurement: give one of {', '.join(MEASUREMENTS)}")
    return names


def run_measurements(names: list[str], quick: bool, console: "Console") -> "dict[str, list[Row]]":
    """Run the measurements with a progress bar."""
    from benchmarks.timing import Bench
    from classgrad.report.text import bar

    rows: dict[str, list[Row]] = {}
    total = sum(MEASUREMENTS[name] for name in names)
    done = 0.0
    with bar(console, "measuring") as move:
        for name in names:

            def watch(share: float, before: float = done, name: str = name) -> None:
                move((before + share * MEASUREMENTS[name]) / total, name)

            watch(0.0)
            bench = Bench(quick, watch, MEASUREMENTS[name])
            rows[name] = import_module(f"benchmarks.{name}").measure(bench)
            done += MEASUREMENTS[name]
    return rows


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks")
    except UserError as error:
        fail(str(error))
