"""Measured and published figures side by side: a row for each line of an experiment."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from classgrad.experiments.spec import Experiment
from classgrad.runs.intervals import Interval, Verdict, interval, paired, together, verdict
from classgrad.runs.record import RunRecord, mean_std


@dataclass(frozen=True)
class Figure:
    """One measure of a line: its mean over seeds and the published value; None if unknown.

    `deviation` is the standard deviation over several seeds, `interval` that of their mean, by
    which `verdict` says whether the published value was repeated.
    """

    mean: float | None = None
    deviation: float | None = None
    published: float | None = None
    interval: Interval | None = None
    verdict: Verdict | None = None

    @property
    def difference(self) -> float | None:
        """The measured minus the published value."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published


@dataclass(frozen=True)
class Row:
    """A line of an experiment: accuracy, backward transfer and capacity, all in per cent.

    `by_seed` has the accuracy of each seed.
    """

    label: str
    method: str
    seeds: tuple[int, ...]
    accuracy: Figure
    transfer: Figure
    capacity: Figure
    by_seed: dict[int, float | None]

    @property
    def verdict(self) -> Verdict | None:
        """Whether accuracy and transfer were repeated, as far as they can be compared."""
        return together([self.accuracy.verdict, self.transfer.verdict])

    def ahead_of(self, other: "Row") -> Interval | None:
        """Return by how much the accuracy is above that of another row, paired by seed."""
        return paired(self.by_seed, other.by_seed)


def compare(experiment: Experiment, records: Iterable[RunRecord], recipe: str) -> list[Row]:
    """Return a row for each distinct line of an experiment, from the records that are complete.

    A line without records has its published figures only.
    """
    by_label = experiment.records((record for record in records if record.complete), recipe)
    rows = []
    for line in experiment.distinct_lines(recipe):
        by_seed = {record.seed: record for record in by_label[line.label]}
        runs, paper = [by_seed[seed] for seed in sorted(by_seed)], line.paper
        accuracy, transfer, capacity = (
            (paper.accuracy, paper.transfer_percent, paper.capacity) if paper else (None,) * 3
        )
        rows.append(
            Row(
                label=line.label,
                method=line.method,
                seeds=tuple(sorted(by_seed)),
                accuracy=_figure([run.average_accuracy for run in runs], accuracy, experiment),
                transfer=_figure([run.backward_transfer for run in runs], transfer, experiment),
                capacity=_figure([run.capacity for run in runs], capacity),
                by_seed={run.seed: run.average_accuracy for run in runs},
            )
        )
    return rows


def _figure(
    values: Sequence[float | None], published: float | None, experiment: Experiment | None = None
) -> Figure:
    measured = mean_std(values)
    mean, deviation = (measured.mean, measured.std) if measured else (None, None)
    repeats = verdict(values, published, experiment.tolerance) if experiment else None
    return Figure(mean, deviation, published, interval(values), repeats)
