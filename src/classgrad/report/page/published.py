"""What papers print for runs: the lines of experiments that they are runs of."""

from collections.abc import Sequence
from dataclasses import dataclass

from classgrad.experiments import spec as experiments
from classgrad.experiments.spec import Experiment, Line
from classgrad.report.statistics import spread
from classgrad.runs import recipes
from classgrad.runs.record import RunRecord

Printed = tuple[Experiment, Line]


@dataclass(frozen=True)
class Paper:
    """What a paper prints for a row, and whether the row comes near enough (None: not known)."""

    source: str
    tolerance: float
    accuracy: float
    accuracy_repeated: bool | None
    transfer: float | None
    transfer_repeated: bool | None


def papers(runs: Sequence[RunRecord], lines: Sequence[Printed]) -> list[Paper]:
    """Return what is printed for runs of these lines, beside their means; each figure once."""
    accuracy = _mean_at_end(runs, "average_accuracy")
    transfer = _mean_at_end(runs, "backward_transfer")
    found: dict[tuple[float | None, ...], Paper] = {}  # several tables print some lines
    for experiment, line in lines:
        if line.paper is None:
            continue
        printed = (line.paper.accuracy, line.paper.transfer_percent)
        found.setdefault(
            printed,
            Paper(
                source=f"{experiment.title}, {line.label} ({experiment.source})",
                tolerance=experiment.tolerance,
                accuracy=printed[0],
                accuracy_repeated=experiment.repeated(accuracy, printed[0]),
                transfer=printed[1],
                transfer_repeated=experiment.repeated(transfer, printed[1]),
            ),
        )
    return list(found.values())


def _mean_at_end(runs: Sequence[RunRecord], name: str) -> float | None:
    found = spread(getattr(run, name) if run.complete else None for run in runs)
    return found.mean if found else None


def printed_lines(records: Sequence[RunRecord]) -> list[list[Printed]]:
    """Return for each record the lines of experiments that it is a run of."""
    known = {record.recipe for record in records} & set(recipes.names())
    streams = {record.benchmark for record in records}
    found: list[list[Printed]] = [[] for _ in records]
    for experiment in experiments.load_many("all"):
        for recipe in sorted(known) if experiment.benchmark in streams else []:
            runs = experiment.records(records, recipe)
            for line in experiment.lines:
                for place, record in enumerate(records):
                    if any(run is record for run in runs[line.label]):
                        found[place].append((experiment, line))
    return found
