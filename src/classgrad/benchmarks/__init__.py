"""Benchmarks: functions that make a stream of tasks from a data folder and a seed, in one table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from classgrad.benchmarks.base import BenchmarkSettings
from classgrad.benchmarks.cifar import (
    SplitCifar100Options,
    SuperclassOptions,
    cifar100_superclass,
    split_cifar100,
)
from classgrad.benchmarks.clinc150 import Clinc150Options, clinc150
from classgrad.benchmarks.digits import (
    PermutedDigitsOptions,
    SplitDigitsOptions,
    permuted_digits,
    split_digits,
)
from classgrad.benchmarks.five import FiveDatasetsOptions, five_datasets
from classgrad.benchmarks.folder import FolderOptions, folder
from classgrad.benchmarks.mnist import (
    PermutedMnistOptions,
    SplitMnistOptions,
    permuted_mnist,
    split_mnist,
)
from classgrad.errors import UserError, unknown
from classgrad.tasks import TaskStream

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "cifar100_superclass",
    "clinc150",
    "find",
    "five_datasets",
    "folder",
    "load",
    "permuted_digits",
    "permuted_mnist",
    "split_cifar100",
    "split_digits",
    "split_mnist",
]


@dataclass(frozen=True)
class Benchmark:
    """A named way to make a stream of tasks: its options, its function and its datasets."""

    name: str
    summary: str
    Options: type[BenchmarkSettings]
    make: Callable[..., TaskStream]
    datasets: tuple[str, ...] = ()


BENCHMARKS = {
    benchmark.name: benchmark
    for benchmark in (
        Benchmark(
            "permuted-digits",
            "5 tasks of 10 digits, each with its own order of pixels; no download",
            PermutedDigitsOptions,
            permuted_digits,
        ),
        Benchmark(
            "split-digits", "5 tasks of 2 digits; no download", SplitDigitsOptions, split_digits
        ),
        Benchmark(
            "split-cifar100",
            "5, 10 or 20 tasks with the classes of CIFAR-100",
            SplitCifar100Options,
            split_cifar100,
            ("cifar100",),
        ),
        Benchmark(
            "cifar100-superclass",
            "20 tasks with the 5 classes of a superclass of CIFAR-100",
            SuperclassOptions,
            cifar100_superclass,
            ("cifar100",),
        ),
        Benchmark(
            "five-datasets",
            "CIFAR-10, MNIST, SVHN, Fashion-MNIST, notMNIST",
            FiveDatasetsOptions,
            five_datasets,
            ("cifar10", "mnist", "svhn", "fashion_mnist", "notmnist"),
        ),
        Benchmark(
            "permuted-mnist",
            "10 tasks of MNIST, each with its own order of pixels",
            PermutedMnistOptions,
            permuted_mnist,
            ("mnist",),
        ),
        Benchmark(
            "split-mnist",
            "5 tasks of 2 digits of MNIST",
            SplitMnistOptions,
            split_mnist,
            ("mnist",),
        ),
        Benchmark(
            "clinc150",
            "10 tasks of sentences, the 15 intents of a domain each; for network minilm",
            Clinc150Options,
            clinc150,
            ("clinc150",),
        ),
    )
}


def find(name: str) -> Benchmark:
    """Return a benchmark by name; `folder:PATH` is that of a folder of images."""
    if name.startswith("folder:"):
        path = Path(name.removeprefix("folder:")).expanduser()
        return Benchmark(
            name,
            "images of your own",
            FolderOptions,
            lambda _root, seed, **values: folder(path, seed, **values),
        )
    if name == "folder":
        raise UserError("benchmark 'folder' needs a path: folder:PATH, with PATH/task/class/image")
    if name not in BENCHMARKS:
        raise unknown("benchmark", name, [*BENCHMARKS, "folder:PATH"])
    return BENCHMARKS[name]


def load(name: str, root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """Return the stream of a benchmark by name."""
    return find(name).make(root, seed, **values)
