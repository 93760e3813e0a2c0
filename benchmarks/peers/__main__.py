"""The command line: python -m benchmarks.peers."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from benchmarks.machine import describe_machine
from benchmarks.peers.workload import IMAGES
from benchmarks.rows import Bound, Quantity, Row, save, table
from classgrad.cli import fail
from classgrad.errors import UserError

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "peers.json"
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
# The methods of each peer, and how many times as fast ours should be.
GOALS = {
    "Avalanche": {
        "finetune": 1.6,
        "er": 1.8,
        "agem": 1.5,
        "gem": 1.5,
        "ewc": 1.5,
        "lwf": 1.5,
        "si": 1.5,
    },
    "LibContinual": {"gpm": 10.0},
}

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class Worker:
    """A process that measures one library; `versions` is what it says of itself."""

    def __init__(self, name: str, python: str, *words: str) -> None:
        self.name = name
        self.process = subprocess.Popen(
            [python, "-W", "ignore", "-m", *words],
            cwd=ROOT,
            env={**os.environ, **ONE_THREAD},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.versions: dict[str, str] = self._answer()

    def seconds(self, method: str) -> float:
        """Return the seconds of one measurement of a method."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it ended: there is no answer either
            self.process.stdin.write(f"{method}\n")
            self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise UserError(f"the worker of {self.name} ended: see its message above")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self.process.communicate()


@app.command(epilog="Example: python -m benchmarks.peers --libcontinual ../LibContinual")
def measure(
    python: Annotated[
        Path, typer.Option(help="Python of the environment that Avalanche is in.")
    ] = ROOT / ".venv-peers/bin/python",
    libcontinual: Annotated[
        Path | None, typer.Option(help="A checkout of LibContinual. Without it GPM is left out.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements; the best counts.")] = 3,
    out: Annotated[Path, typer.Option(help="File for the figures, JSON.")] = RESULTS,
) -> None:
    """Measure how fast ours and other libraries learn a task with the same method."""
    console = Console()
    if not python.exists():
        raise UserError(f"there is no '{python}': make the environment with 'make peers'")
    machine = {**describe_machine([], quick=False), "command": "python -m benchmarks.peers"}
    machine["machine"]["threads"] = 1
    commands = {
        "classgrad": [sys.executable, "benchmarks.peers.ours"],
        "Avalanche": [str(python), "benchmarks.peers.avalanche"],
    }
    if libcontinual is not None:
        checkout = str(libcontinual.resolve())
        commands["LibContinual"] = [str(python), "benchmarks.peers.libcontinual", checkout]
    rows = []
    with ExitStack() as running:
        workers: dict[str, Worker] = {}
        for name, words in commands.items():
            workers[name] = Worker(name, *words)
            running.callback(workers[name].close)
        machine["versions"] |= {name: worker.versions for name, worker in workers.items()}
        for peer, goals in GOALS.items():
            for method, goal in goals.items() if peer in workers else ():
                pair = {name: workers[name] for name in ("classgrad", peer)}
                row = compare(method, peer, goal, alternate(method, pair, repeats))
                console.print(f"{row.what}: {row.ours} / {row.reference}", highlight=False)
                rows.append(row)
                save(out, machine, {"peers": rows})
    console.print(table(rows, f"one thread, best of {repeats}"))
    console.print(f"figures   {out}", soft_wrap=True)


def alternate(method: str, workers: Mapping[str, Worker], repeats: int) -> dict[str, list[float]]:
    """Let the workers take turns; return the seconds each took."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(repeats):
        for name, worker in workers.items():
            seconds[name].append(worker.seconds(method))
    return seconds


def compare(method: str, peer: str, goal: float, seconds: Mapping[str, list[float]]) -> Row:
    """Return the row of a method: the best rate of ours over the best of the peer's."""
    ours, theirs = (
        Quantity(IMAGES[1] / min(seconds[name]), "images/s", len(seconds[name]))
        for name in ("classgrad", peer)
    )
    return Row.share(
        f"{method}: ours / {peer}'s",
        ours,
        theirs,
        bound=Bound(goal, at_least=True),
        details={"method": method, "peer": peer, "seconds": dict(seconds)},
    )


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.peers")
    except UserError as error:
        fail(str(error))
