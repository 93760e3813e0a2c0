"""Measured and published figures beside each other: one row for each line of an experiment."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from classgrad.experiments.spec import Experiment
from classgrad.runs.record import RunRecord


@dataclass(frozen=True)
class Figure:
    """One measure of a line: its mean over seeds, and what the paper prints; None: not known.

    `deviation` is the standard deviation over several seeds.
    """

    mean: float | None = None
    deviation: float | None = None
    published: float | None = None
    repeated: bool | None = None

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published


@dataclass(frozen=True)
class Row:
    """A line of an experiment: accuracy, backward transfer and capacity, all in per cent."""

    label: str
    method: str
    seeds: tuple[int, ...]
    accuracy: Figure
    transfer: Figure
    capacity: Figure

    @property
    def repeated(self) -> bool | None:
        """Whether both accuracy and transfer come near, where both can be compared."""
        verdicts = [self.accuracy.repeated, self.transfer.repeated]
        known = [verdict for verdict in verdicts if verdict is not None]
        return all(known) if known else None


def compare(experiment: Experiment, records: Iterable[RunRecord], recipe: str) -> list[Row]:
    """Return a row for each line of an experiment, from the complete ones of these records.

    A line without any has its published figures only.
    """
    found = experiment.records((record for record in records if record.complete), recipe)
    rows = []
    for line in experiment.lines:
        by_seed = {record.seed: record for record in found[line.label]}
        mine, paper = [by_seed[seed] for seed in sorted(by_seed)], line.paper
        accuracy, transfer, capacity = (
            (paper.accuracy, paper.transfer_percent, paper.capacity) if paper else (None,) * 3
        )
        rows.append(
            Row(
                label=line.label,
                method=line.method,
                seeds=tuple(sorted(by_seed)),
                accuracy=_figure([run.average_accuracy for run in mine], accuracy, experiment),
                transfer=_figure([run.backward_transfer for run in mine], transfer, experiment),
                capacity=_figure([run.capacity for run in mine], capacity),
            )
        )
    return rows


def _figure(
    values: Sequence[float | None], published: float | None, judge: Experiment | None = None
) -> Figure:
    known = [value for value in values if value is not None]
    mean = statistics.mean(known) if known and len(known) == len(values) else None
    deviation = statistics.stdev(known) if mean is not None and len(known) > 1 else None
    return Figure(mean, deviation, published, judge.repeated(mean, published) if judge else None)
