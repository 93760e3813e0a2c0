"""The content of a page: a section for each benchmark, with a row for each method."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from classgrad.errors import UserError, shown, unknown
from classgrad.report.records import (
    differing,
    grouped,
    key_of,
    label,
    stream_name,
    stream_options,
)
from classgrad.runs.record import Matrix, MeanStd, RunRecord, mean_std
from classgrad.runs.spec import Plan

HUGE = 1e9  # more than any accuracy or number of seconds


@dataclass(frozen=True)
class PublishedLine:
    """Published figures of a run, in per cent."""

    plan: Plan  # of the run, with any seed
    source: str
    accuracy: float
    transfer: float | None
    tolerance: float  # within which a figure counts as repeated

    def is_of(self, record: RunRecord) -> bool:
        """Tell whether the figures are for this run."""
        return replace(self.plan, seed=record.seed).has_values(record.settings())


@dataclass(frozen=True)
class Paper:
    """Published figures for a row, and whether the row is within tolerance (None: not known)."""

    line: PublishedLine
    accuracy_repeated: bool | None
    transfer_repeated: bool | None


@dataclass(frozen=True)
class Row:
    """Runs that differ only in the seed.

    Its figures are those of complete runs; or if there are none, of all runs as far as they got.
    """

    label: str
    runs: list[RunRecord]  # every run
    counted: list[RunRecord]  # those that its figures are of
    papers: list[Paper]

    @property
    def complete(self) -> bool:
        """Tell whether the figures are those of complete runs."""
        return all(run.complete for run in self.counted)

    @property
    def left_out(self) -> int:
        """Number of incomplete runs that do not count."""
        return len(self.runs) - len(self.counted)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs that count."""
        return [run.seed for run in self.counted]

    @property
    def learnt(self) -> int:
        """Number of tasks that every run has learnt."""
        return min(len(run.accuracy_matrix) for run in self.counted)

    def of(self, name: str) -> MeanStd | None:
        """Return mean and standard deviation of a figure of the records."""
        return mean_std(getattr(run, name) for run in self.counted)

    @property
    def accuracy(self) -> MeanStd | None:
        """ACC."""
        return self.of("average_accuracy")

    @property
    def seconds(self) -> float:
        """Mean time of a run."""
        return statistics.fmean(run.seconds.total for run in self.counted)

    @property
    def memory(self) -> float:
        """Mean memory of a run, in bytes."""
        return statistics.fmean(run.memory_bytes for run in self.counted)

    def cell(self, after: int, task: int) -> MeanStd | None:
        """Return the accuracy on a task after another, where every run has measured it."""
        return mean_std(_entry(run.accuracy_matrix, after, task) for run in self.counted)

    def average(self, after: int) -> MeanStd | None:
        """Return the mean accuracy over the tasks learnt so far, after one of them."""
        return mean_std(_average(run.accuracy_matrix, after) for run in self.counted)


@dataclass(frozen=True)
class Section:
    """The rows of one benchmark with its options."""

    number: int  # from 1, in the order of the page
    key: str  # of the benchmark and its options, independent of the rest of the page
    title: str
    rows: list[Row]  # best accuracy first
    reference: Row
    tasks: list[str]

    @property
    def task_indices(self) -> range:
        """Indices of the tasks, from 0."""
        return range(len(self.tasks))

    def difference(self, row: Row) -> MeanStd | None:
        """Return a row's ACC minus the reference's, seed by seed, over the seeds both have."""
        if not row.complete or not self.reference.complete:
            return None
        accuracy, reference = _by_seed(row), _by_seed(self.reference)
        return mean_std(accuracy[seed] - reference[seed] for seed in accuracy if seed in reference)


def sections(
    records: Sequence[RunRecord],
    against: str | None = None,
    published: Sequence[PublishedLine] = (),
) -> list[Section]:
    """Sort records into sections and rows, with published figures for them.

    `against` is the label of the row that others are compared with, by default the best.
    """
    for record in records:
        refuse_huge(record)
    streams: dict[str, list[RunRecord]] = {}
    for record in records:
        key = key_of(record.benchmark, stream_options(record))
        streams.setdefault(key, []).append(record)
    titles = _titles([group[0] for group in streams.values()])
    all_sections = [
        _section(number, key, title, group, against, published)
        for number, (title, (key, group)) in enumerate(zip(titles, streams.items(), strict=True), 1)
    ]
    labels = [row.label for section in all_sections for row in section.rows]
    if against is not None and against not in labels:
        raise unknown("row to compare with", against, labels)
    return all_sections


def refuse_huge(record: RunRecord) -> None:
    """Refuse figures that are too large for any run, and for any axis."""
    settings = {"method", "training", "network_options", "benchmark_options"}
    numbers = _numbers(record.model_dump(exclude=settings))
    largest = max(numbers, key=abs, default=0.0)
    if abs(largest) > HUGE:
        raise UserError(
            f"a run of {shown(record.method_name)} with seed {shown(record.seed)} has a figure of "
            f"{largest:g}, which is impossible: leave it out"
        )


def _numbers(value: object) -> Iterator[float]:
    """Yield all floats in a record."""
    if isinstance(value, float):
        yield value
    elif isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _numbers(part)


def _section(
    number: int,
    key: str,
    title: str,
    records: Sequence[RunRecord],
    against: str | None,
    published: Sequence[PublishedLine],
) -> Section:
    groups = [_one_per_seed(group) for group in grouped(records)]
    firsts = [group[0] for group in groups]
    rows = []
    for group in groups:
        counted = [run for run in group if run.complete] or group
        papers = _papers(counted, [line for line in published if line.is_of(group[0])])
        rows.append(Row(label(group[0], firsts), group, counted, papers))
    rows.sort(key=lambda row: (not row.complete, -row.accuracy.mean if row.accuracy else 0.0))
    reference = next((row for row in rows if row.label == against), rows[0])
    longest = max((record.tasks for record in records), key=len)
    return Section(number, key, title, rows, reference, longest)


def _papers(runs: Sequence[RunRecord], lines: Sequence[PublishedLine]) -> list[Paper]:
    """Return the published figures for some runs, each pair once, compared with their means."""
    accuracy = _mean_at_end(runs, "average_accuracy")
    transfer = _mean_at_end(runs, "backward_transfer")
    papers: dict[tuple[float | None, ...], Paper] = {}  # some lines are in several tables
    for line in lines:
        paper = Paper(
            line,
            _within_tolerance(accuracy, line.accuracy, line.tolerance),
            _within_tolerance(transfer, line.transfer, line.tolerance),
        )
        papers.setdefault((line.accuracy, line.transfer), paper)
    return list(papers.values())


def _within_tolerance(
    measured: float | None, published: float | None, tolerance: float
) -> bool | None:
    if measured is None or published is None:
        return None
    return abs(measured - published) <= tolerance


def _mean_at_end(runs: Sequence[RunRecord], name: str) -> float | None:
    figure = mean_std(getattr(run, name) if run.complete else None for run in runs)
    return figure.mean if figure else None


def _titles(records: Sequence[RunRecord]) -> list[str]:
    """Name streams by benchmark, and by the options in which streams of a benchmark differ."""
    titles = []
    for record in records:
        options = stream_options(record)
        others = [stream_options(r) for r in records if r.benchmark == record.benchmark]
        pairs = [
            f"{name}={'none' if options[name] is None else options[name]}"
            for name in differing(options, others)
        ]
        titles.append(", ".join([stream_name(record), *pairs]))
    return titles


def _one_per_seed(records: list[RunRecord]) -> list[RunRecord]:
    """Return one run for each seed, a complete one if there is any, in the order of seeds."""
    runs: dict[int, RunRecord] = {}
    for record in records:
        if record.seed not in runs or (record.complete and not runs[record.seed].complete):
            runs[record.seed] = record
    return [runs[seed] for seed in sorted(runs)]


def _by_seed(row: Row) -> dict[int, float]:
    return {
        run.seed: run.average_accuracy for run in row.counted if run.average_accuracy is not None
    }


def _entry(matrix: Matrix, after: int, task: int) -> float | None:
    return matrix[after][task] if after < len(matrix) and task < len(matrix[after]) else None


def _average(matrix: Matrix, after: int) -> float | None:
    average = mean_std(_entry(matrix, after, task) for task in range(after + 1))
    return average.mean if average else None
