"""Benchmarks: functions from a data directory and a seed to a stream of tasks, in one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgrad.benchmarks.digits import (
    PermutedDigitsOptions,
    SplitDigitsOptions,
    permuted_digits,
    split_digits,
)
from classgrad.benchmarks.options import BenchmarkSettings
from classgrad.errors import unknown
from classgrad.tasks import TaskStream

__all__ = ["BENCHMARKS", "Benchmark", "find", "load", "permuted_digits", "split_digits"]


@dataclass(frozen=True)
class Benchmark:
    """A stream of tasks by name: what can be set, and how it is made."""

    name: str
    summary: str
    Options: type[BenchmarkSettings]
    make: Callable[..., TaskStream]


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "permuted-digits",
            "5 tasks of 10 digits, pixels in another order each (the embedded default)",
            PermutedDigitsOptions,
            permuted_digits,
        ),
        Benchmark("split-digits", "5 tasks of 2 digits", SplitDigitsOptions, split_digits),
    )
}


def find(name: str) -> Benchmark:
    """Return a benchmark of the table."""
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, BENCHMARKS)
    return BENCHMARKS[name]


def load(name: str, root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Return the stream of a benchmark in the table."""
    return find(name).make(root, seed, **values)
