"""How far forecasts of free rank are off: `python -m benchmarks.forecast`.

Every run of a projection method in `RECORDS` has the ranks of its layers after each task. From
those after the first tasks, the number of classes is forecast after which a layer has the rank it
had at the end of the run, and compared with how many it took. Layers that grow by less than
`LEAST_GROWTH` of their dimension from there on are left out: they are not filling up.

The forecast of `classgrad.methods.projection.forecast` is compared with a straight line through
the last three tasks. Its form, its exponents and the number of tasks it looks back were chosen
among some twenty forms with all these records in view, those in `results/tuning` too, so its errors
on them are those of a fit. Two checks leave a benchmark out: exponents are chosen on the others and
judged on that one, and so are ranges. The form itself has no such check.

`--learn` first learns CIFAR-100 in 25 tasks of two classes, which no record has: some ten minutes.
"""

import json
import math
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import torch
import typer
from rich.console import Console

from benchmarks.machine import describe_machine
from classgrad import CGP, GPM, Learner, Training
from classgrad.benchmarks.base import load_both
from classgrad.cli import fail
from classgrad.cli.options import DataDir
from classgrad.errors import UserError
from classgrad.methods import METHODS
from classgrad.methods.projection import forecast
from classgrad.methods.projection.base import Projected
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.tasks import Split

RESULTS = Path(__file__).parent.parent / "results"
OUT = RESULTS / "forecast.json"
RECORDS = ("paper", "permuted-digits", "split-cifar100", "smoke")
TUNING = ("tuning",)  # other settings and seeds, in part of the same benchmarks
LEAST_GROWTH = 0.05
WORST = 3.0  # of |ln(forecast / true)|; also where the forecast is "never"
STAGES = {"1": (1, 1), "2 to 3": (2, 3), "4 or more": (4, 10**6)}  # tasks that are known
CLASS_EXPONENTS = (0.4, 0.5, 0.6, 0.7, 0.8, 1.0)
REST_EXPONENTS = (0.0, 0.4, 0.6, 0.8, 1.0)
TASKS, CLASSES, IMAGES = 25, 2, 100  # of the stream that is learnt; images of each class

Until = Callable[
    [float, int, Sequence[int], Sequence[int], forecast.Epsilon], float | None
]  # as `forecast.classes_until`


@dataclass(frozen=True)
class History:
    """The ranks of a layer after each task, and the number of classes of each."""

    benchmark: str
    dimension: int
    ranks: list[int]
    classes: list[int]
    epsilon: forecast.Epsilon


@dataclass(frozen=True)
class Case:
    """A forecast from the first tasks of a history, and what came true; None means never."""

    benchmark: str
    known: int  # tasks
    said: float | None
    true: int

    @property
    def error(self) -> float:
        """ln(forecast / true), limited."""
        if self.said is None:
            return WORST
        return max(-WORST, min(WORST, math.log(max(self.said, 1e-9) / self.true)))


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command(epilog="Example: python -m benchmarks.forecast --learn --data-dir data")
def study(
    data_dir: DataDir = None,
    learn: Annotated[
        bool, typer.Option("--learn", help="Learn the tasks of two classes again.")
    ] = False,
) -> None:
    """Measure the error of forecasts on the ranks of all records."""
    console = Console()
    results = describe_machine(sys.argv[1:], quick=False)
    results["command"] = " ".join(["python -m benchmarks.forecast", *sys.argv[1:]])
    earlier = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {"streams": []}
    results["streams"] = list(learnt_streams(data_dir)) if learn else earlier["streams"]
    with console.status("forecasts"):
        results |= measured(results["streams"])
    OUT.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    console.print(f"written   {OUT}", soft_wrap=True)


def learnt_streams(data_dir: Path | None) -> Iterator[dict[str, Any]]:
    """Learn CIFAR-100 in tasks of two classes; yield the ranks of each method's layers."""
    torch.set_num_threads(1)
    both, _ = load_both("cifar100", data_dir)
    train = Split(both.images, both.labels)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(1))
    training = Training(epochs=3, batch_size=16, learning_rate=0.01)
    for method in (GPM(), CGP(contrast=0)):
        learner = Learner(network="lenet5", method=method, training=training)
        for number in range(TASKS):
            labels = order[CLASSES * number :][:CLASSES]
            index = torch.cat([(train.labels == y).nonzero().flatten()[:IMAGES] for y in labels])
            y = torch.arange(CLASSES).repeat_interleave(IMAGES)
            learner.learn(str(number), (train.unit_images(index), y))
        yield {
            "method": {"name": method.name, **method.model_dump()},
            "classes": [CLASSES] * TASKS,
            "layers": [
                {
                    "name": layer.name,
                    "dimension": layer.dimension,
                    "ranks": [task.ranks[layer.name] for task in learner.tasks],
                }
                for layer in learner.method.layer_ranks()
            ],
        }


def measured(streams: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the errors of all forecasts."""
    known, tuning = list(of_records(RECORDS)), list(of_records(TUNING))
    for one in streams:
        known += of_layers("two classes", one["method"], one["classes"], one["layers"])
    ours, elsewhere = (cases(part, forecast.classes_until) for part in (known, tuning))
    ranges = {
        stage: outer(spread(part), spread(other))
        for (stage, part), (_, other) in zip(by_stage(ours), by_stage(elsewhere), strict=True)
    }
    return {
        "layers": len(known),
        "errors": {
            "linear": table(cases(known, straight_line)),
            "forecast": table(ours),
            "forecast, exponents of other benchmarks": table(crossed(known)),
            "linear, tuning": table(cases(tuning, straight_line)),
            "forecast, tuning": table(elsewhere),
        },
        "ranges": ranges,
        "within": {
            stage: within(part, *ranges[stage]) for stage, part in by_stage([*ours, *elsewhere])
        },
        "within, ranges of other benchmarks": {
            stage: within_others(part) for stage, part in by_stage([*ours, *elsewhere])
        },
    }


def of_records(folders: Iterable[str]) -> Iterator[History]:
    """Yield the histories of all layers in the records of projection methods."""
    for folder in folders:
        for path in sorted((RESULTS / folder).rglob(FILE_NAME)):
            record = RunRecord.load(path)
            if issubclass(METHODS[record.method["name"]], Projected):
                classes = [len(each.classes) for each in record.classes]
                layers = [layer.model_dump() for layer in record.layers]
                yield from of_layers(record.benchmark, record.method, classes, layers)


def of_layers(
    benchmark: str,
    method: Mapping[str, Any],
    classes: list[int],
    layers: Sequence[Mapping[str, Any]],
) -> Iterator[History]:
    """Yield the histories of a run's layers; all projection methods have the same settings of ε."""
    names = ("energy", "energy_step", "energy_limit")
    schedule = GPM(**{name: method[name] for name in names})
    epsilons = forecast.epsilons(schedule, [layer["name"] for layer in layers])
    for layer in layers:
        epsilon = epsilons[layer["name"]]
        yield History(benchmark, layer["dimension"], layer["ranks"], classes, epsilon)


def cases(histories: Iterable[History], until: Until) -> list[Case]:
    """Forecast from every number of tasks when each layer had its last rank."""
    result = []
    for one in histories:
        target = one.ranks[-1]
        end = one.ranks.index(target) + 1
        for known in range(1, end):
            if target - one.ranks[known - 1] >= LEAST_GROWTH * one.dimension:
                ranks, classes = one.ranks[:known], one.classes[:known]
                said = until(target, one.dimension, ranks, classes, one.epsilon)
                result.append(Case(one.benchmark, known, said, sum(one.classes[known:end])))
    return result


def straight_line(
    target: float,
    dimension: int,
    ranks: Sequence[int],
    classes: Sequence[int],
    epsilon: forecast.Epsilon,
) -> float | None:
    """Forecast as if every class took as many directions as those of the last three tasks."""
    recent = [0, *ranks][-4:] if len(ranks) < 2 else list(ranks[-4:])
    taken, count = recent[-1] - recent[0], sum(classes[-len(recent) + 1 :])
    return (target - ranks[-1]) * count / taken if taken > 0 else None


def crossed(histories: Sequence[History]) -> list[Case]:
    """Forecast each benchmark with the exponents that suit the others best."""
    result = []
    for left_out in sorted({one.benchmark for one in histories}):
        others = [one for one in histories if one.benchmark != left_out]
        own = [one for one in histories if one.benchmark == left_out]
        best = min(
            product(CLASS_EXPONENTS, REST_EXPONENTS),
            key=lambda chosen: mean_error(with_exponents(others, *chosen)),
        )
        result += with_exponents(own, *best)
    return result


def with_exponents(histories: Sequence[History], of_classes: float, of_rest: float) -> list[Case]:
    """Forecast with other exponents."""
    with (
        patch.object(forecast, "CLASS_EXPONENT", of_classes),
        patch.object(forecast, "REST_EXPONENT", of_rest),
    ):
        return cases(histories, forecast.classes_until)


def by_stage(cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    """Split cases by the number of tasks that were known."""
    for stage, (least, most) in STAGES.items():
        yield stage, [case for case in cases if least <= case.known <= most]


def table(cases: Sequence[Case]) -> dict[str, Any]:
    """Return the number of cases, and the factor that forecasts are off by, for each stage."""
    return {
        stage: {
            "cases": len(part),
            "factor": round(math.exp(by_benchmark(part)), 2),
            "never": sum(case.said is None for case in part),
            "benchmarks": {
                name: round(math.exp(by_benchmark([c for c in part if c.benchmark == name])), 2)
                for name in sorted({case.benchmark for case in part})
            },
        }
        for stage, part in by_stage(cases)
    }


def mean_error(cases: Sequence[Case]) -> float:
    """Return the mean error over stages."""
    return statistics.fmean(by_benchmark(part) for _, part in by_stage(cases) if part)


def by_benchmark(cases: Sequence[Case]) -> float:
    """Return the mean of |ln(forecast / true)|, over benchmarks, as some have many layers."""
    names = {case.benchmark for case in cases}
    return statistics.fmean(
        statistics.fmean(abs(case.error) for case in cases if case.benchmark == name)
        for name in sorted(names)
    )


def spread(cases: Sequence[Case]) -> list[float]:
    """Return the range of true / forecast in 9 of 10 cases, benchmarks weighted equally.

    Cases in which the forecast was "never" are not counted.
    """
    told = [case for case in cases if case.said is not None]
    sizes = {name: sum(c.benchmark == name for c in told) for name in {c.benchmark for c in told}}
    ratios = sorted((math.exp(-case.error), 1 / sizes[case.benchmark]) for case in told)
    return [round(quantile(ratios, share * len(sizes)), 2) for share in (0.05, 0.95)]


def outer(one: list[float], other: list[float]) -> list[float]:
    """Return the smallest range with both of two ranges in it."""
    return [min(one[0], other[0]), max(one[1], other[1])]


def within(cases: Sequence[Case], least: float, most: float) -> float:
    """Return the share of cases in which true / forecast is in a range."""
    ratios = [math.exp(-case.error) for case in cases]
    return round(statistics.fmean(least <= ratio <= most for ratio in ratios), 2)


def within_others(cases: Sequence[Case]) -> dict[str, float]:
    """Return, for each benchmark, the share of its cases in the range of all others."""
    result = {}
    for name in sorted({case.benchmark for case in cases}):
        others = [case for case in cases if case.benchmark != name]
        own = [case for case in cases if case.benchmark == name]
        result[name] = within(own, *spread(others))
    return result


def quantile(weighted: Sequence[tuple[float, float]], weight: float) -> float:
    """Return the first of some sorted values up to which their weights sum to `weight`.

    >>> quantile([(1.0, 0.5), (2.0, 0.5), (5.0, 1.0)], 0.8)
    2.0
    """
    for value, own in weighted:
        weight -= own
        if weight <= 1e-9:
            return value
    return weighted[-1][0]


if __name__ == "__main__":
    try:
        app(prog_name="python -m benchmarks.forecast")
    except UserError as error:
        fail(str(error))
