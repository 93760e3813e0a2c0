"""The content of a page: a section for each benchmark, with a row for each method."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from classgrad.errors import UserError, shown, unknown
from classgrad.report.lines import Budget, ExperimentLine, lines_of
from classgrad.report.names import names
from classgrad.report.page.charts import round_range
from classgrad.report.records import grouped, one_per_seed, stream_key, stream_titles, streams
from classgrad.runs.intervals import verdict
from classgrad.runs.record import Matrix, MeanStd, RunRecord, mean_std

HUGE = 1e9  # more than any accuracy or number of seconds
# Methods that others are measured by. They are compared with, but win nothing.
BOUNDS = {
    "multitask": "all tasks at once",
    "stl": "a network for each task",
    "finetune": "protects nothing",
}
EMBEDDED = ("permuted-digits", "split-digits")  # toys, whose images come with the package
MOST_LINES = 10  # of the table of best lines; of more rows it has the best of each method
MOST_METHODS = 8
# Ways to predict without the task, the best first: how each is called, and its figure in records.
TASK_FREE = {
    "statistics": "average_accuracy_task_free_statistics",
    "prototypes": "average_accuracy_task_free_prototypes",
    "confidence": "average_accuracy_task_free",
}


@dataclass(frozen=True)
class Paper:
    """Published figures for a row, and whether the row repeats them (None: open, or not known).

    A mean over seeds does if its interval is within the tolerance, one seed if its figure is.
    `other_budget` says how the row's budget differs from the paper's, if it does.
    """

    line: ExperimentLine
    accuracy_repeated: bool | None
    transfer_repeated: bool | None
    other_budget: str


@dataclass(frozen=True)
class TaskFree:
    """Accuracy without the task, by the best way that was measured."""

    way: str
    accuracy: MeanStd
    revealed: bool  # it is too high: batches had told BatchNorm the task


@dataclass(frozen=True)
class FreeRank:
    """What is left of a layer's directions at the end, in per cent."""

    layer: str
    share: float


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
    def count(self) -> int:
        """Number of runs."""
        return len(self.runs)

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
    def method(self) -> str:
        """Name of the method."""
        return self.counted[0].method_name

    @property
    def bound(self) -> str:
        """What makes the method a bound for others; empty for a method that competes."""
        return BOUNDS.get(self.method, "")

    @property
    def recipe(self) -> str:
        """Name of the recipe of its runs."""
        return self.counted[0].recipe

    @property
    def budget(self) -> Budget:
        """How long its runs were trained, and on how many images."""
        return Budget.of(self.counted[0].settings())

    @property
    def accuracy(self) -> MeanStd | None:
        """ACC."""
        return self.of("average_accuracy")

    @property
    def transfer(self) -> MeanStd | None:
        """BWT."""
        return self.of("backward_transfer")

    @property
    def when_learnt(self) -> MeanStd | None:
        """Mean accuracy on the tasks, each right after it was learnt."""
        return mean_std(_diagonal(run.accuracy_matrix) for run in self.counted)

    @property
    def joint(self) -> bool:
        """Tell whether all tasks were learnt at once: there is no accuracy before the end."""
        return self.complete and self.learnt > 1 and self.cell(0, 0) is None

    @property
    def task_free(self) -> TaskFree | None:
        """Accuracy without the task, by the best way that all runs have measured."""
        for way, name in TASK_FREE.items():
            figure = self.of(name)
            if figure:
                revealed = way != "statistics" and any(run.reveals_task for run in self.counted)
                return TaskFree(way, figure, revealed)
        return None

    @property
    def free_rank(self) -> FreeRank | None:
        """The layer with the fewest free directions at the end, in the mean over runs."""
        shares: dict[str, list[float]] = {}
        for run in self.counted:
            for layer in run.layers:
                free = 100 * (1 - layer.ranks[-1] / layer.dimension)
                shares.setdefault(layer.name, []).append(free)
        layers = [
            FreeRank(name, statistics.fmean(values))
            for name, values in shares.items()
            if len(values) == len(self.counted)
        ]
        return min(layers, key=lambda layer: layer.share, default=None)

    @property
    def seconds(self) -> float:
        """Mean time of a run."""
        return statistics.fmean(run.seconds.total for run in self.counted)

    @property
    def memory(self) -> float:
        """Mean memory of a run, in bytes."""
        return statistics.fmean(run.memory_bytes for run in self.counted)

    @property
    def network_bytes(self) -> float | None:
        """Mean size of the network of a run; None if an older record does not tell it."""
        figure = mean_std(run.network_bytes or None for run in self.counted)
        return figure.mean if figure else None

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
    lines: list[ExperimentLine]  # with published figures for the benchmark, run or not

    @property
    def best(self) -> list[Row]:
        """The best lines: all of a few; of many the best of each method, and the bounds."""
        if len(self.rows) <= MOST_LINES:
            return self.rows
        first: dict[str, Row] = {}
        for row in self.rows:
            if row.complete:
                first.setdefault(row.method, row)
        competing = [row for row in first.values() if not row.bound][:MOST_METHODS]
        return [row for row in first.values() if row.bound or row in competing]

    @property
    def competing(self) -> list[Row]:
        """Finished rows of methods that are not bounds, best first."""
        return [row for row in self.rows if row.complete and not row.bound and row.accuracy]

    @property
    def classes(self) -> int:
        """Number of classes of all tasks, each counted once for each task it is in."""
        return max(
            sum(len(task.classes) for task in run.classes) for row in self.rows for run in row.runs
        )

    @property
    def task_indices(self) -> range:
        """Indices of the tasks, from 0."""
        return range(len(self.tasks))


def differences(row: Row, reference: Row) -> list[float]:
    """Return a row's ACC minus another's for each seed that both have."""
    if not row.complete or not reference.complete:
        return []
    ours, theirs = _by_seed(row), _by_seed(reference)
    return [ours[seed] - theirs[seed] for seed in ours if seed in theirs]


def track_range(section: Section) -> tuple[float, float]:
    """Return the range of accuracies in the table of best lines."""
    values = [
        value
        for row in section.best
        for figure in (row.accuracy, row.when_learnt)
        if figure
        for value in (figure.mean,)
    ]
    values += [paper.line.accuracy or 0.0 for row in section.best for paper in row.papers[:1]]
    return round_range(values)


def sections(
    records: Sequence[RunRecord],
    against: str | None = None,
    published: Sequence[ExperimentLine] = (),
) -> list[Section]:
    """Sort records into sections and rows, with published figures for them.

    `against` is the label of the row that others are compared with, by default the best.
    """
    for record in records:
        refuse_huge(record)
    groups = streams(records)
    titles = stream_titles([group[0] for group in groups])
    titled = sorted(
        zip(titles, groups, strict=True), key=lambda pair: _importance(pair[1][0], published)
    )
    all_sections = [
        _section(number, title, group, against, published)
        for number, (title, group) in enumerate(titled, 1)
    ]
    labels = [row.label for section in all_sections for row in section.rows]
    if against is not None and against not in labels:
        raise unknown("row to compare with", against, labels)
    return all_sections


def _importance(
    record: RunRecord, published: Sequence[ExperimentLine]
) -> tuple[bool, int, str, bool, float]:
    """Return a key that puts benchmarks with most published figures first, and toys last.

    Of one benchmark, runs on all images come first, and those on held-out images last.
    """
    options = record.benchmark_options
    count = sum(x.benchmark == record.benchmark for x in published if x.accuracy is not None)
    images = options.get("train_per_class")
    return (
        record.benchmark in EMBEDDED,
        -count,
        record.benchmark if count else "",  # others stay in the order they are given in
        options.get("held_out") is not None,
        -images if isinstance(images, int | float) else -HUGE,
    )


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
    title: str,
    records: Sequence[RunRecord],
    against: str | None,
    published: Sequence[ExperimentLine],
) -> Section:
    groups = [one_per_seed(group) for group in grouped(records)]
    lines = [line for line in published if line.benchmark == records[0].benchmark]
    rows = []
    labels = names([group[0] for group in groups], lines)
    for label, group in zip(labels, groups, strict=True):
        counted = [run for run in group if run.complete] or group
        own = [x for x in lines_of(group[0], lines) if x.accuracy is not None]
        rows.append(Row(label, group, counted, _papers(counted, own)))
    rows.sort(key=lambda row: (not row.complete, -row.accuracy.mean if row.accuracy else 0.0))
    return Section(
        number=number,
        key=stream_key(records[0]),
        title=title,
        rows=rows,
        reference=next((row for row in rows if row.label == against), None)
        or next((row for row in rows if row.complete and not row.bound), rows[0]),
        tasks=max((record.tasks for record in records), key=len),
        lines=[line for line in lines if line.accuracy is not None],
    )


def _papers(runs: Sequence[RunRecord], lines: Sequence[ExperimentLine]) -> list[Paper]:
    """Return the published figures for some runs, each pair once, compared with their means."""
    accuracy = _at_end(runs, "average_accuracy")
    transfer = _at_end(runs, "backward_transfer")
    papers: dict[tuple[float | None, ...], Paper] = {}  # some lines are in several tables
    for line in lines:
        paper = Paper(
            line,
            _repeated(accuracy, line.accuracy, line.tolerance),
            _repeated(transfer, line.transfer, line.tolerance),
            Budget.of(runs[0].settings()).less_than(line.paper_budget),
        )
        papers.setdefault((line.accuracy, line.transfer), paper)
    return list(papers.values())


def _repeated(
    values: Sequence[float | None], published: float | None, tolerance: float
) -> bool | None:
    if len(values) == 1 and values[0] is not None and published is not None:
        return abs(values[0] - published) <= tolerance
    told = verdict(values, published, tolerance)
    return None if told in (None, "open") else told == "repeated"


def _at_end(runs: Sequence[RunRecord], name: str) -> list[float | None]:
    return [getattr(run, name) if run.complete else None for run in runs]


def _by_seed(row: Row) -> dict[int, float]:
    return {
        run.seed: run.average_accuracy for run in row.counted if run.average_accuracy is not None
    }


def _entry(matrix: Matrix, after: int, task: int) -> float | None:
    return matrix[after][task] if after < len(matrix) and task < len(matrix[after]) else None


def _average(matrix: Matrix, after: int) -> float | None:
    average = mean_std(_entry(matrix, after, task) for task in range(after + 1))
    return average.mean if average else None


def _diagonal(matrix: Matrix) -> float | None:
    values = mean_std(_entry(matrix, task, task) for task in range(len(matrix)))
    return values.mean if values else None
