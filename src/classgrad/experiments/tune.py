"""Settings chosen on held-out training images: the trials, the rule, and the file of a choice.

No table may be judged by the data that its settings were chosen by. So trials use the benchmark
option `held_out`, which leaves the test images alone, and seeds from `FIRST_SEED` on.
"""

import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from classgrad.errors import UserError, shown, unknown
from classgrad.experiments.jobs import Job, Status
from classgrad.files import write_text
from classgrad.runs.recipes import Recipe, edit
from classgrad.runs.record import MeanStd, RunRecord, mean_std
from classgrad.runs.run import run_folder
from classgrad.runs.spec import Plan, make_plan
from classgrad.settings import Settings

FIRST_SEED = 100  # smaller ones are for tables
TOLERANCE = 0.1  # points of accuracy by which a point may be below the best and still be chosen
RULE = (
    "highest mean over seeds of the average accuracy over all tasks after the last one, on "
    f"held-out training images; of points less than {TOLERANCE:g} points below the best, the first "
    "in the order of the grid"
)
# Figures of a record, by the way in which a class is chosen without the task.
TASK_FREE = {
    "confidence": "average_accuracy_task_free",
    "prototypes": "average_accuracy_task_free_prototypes",
    "statistics": "average_accuracy_task_free_statistics",
}

Values = dict[str, Any]


@dataclass(frozen=True)
class Study:
    """The settings of one method that are tried on a benchmark, with what all trials share.

    `fixed` are values that all trials have in common, on top of the recipe's. With `by` it is
    the accuracy without the task, in that way, that decides.
    """

    benchmark: str
    method: str
    grid: Mapping[str, Sequence[Any]]
    seeds: Sequence[int]
    held_out: float = 0.2
    recipe: str = "fast"
    network: str | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    by: str | None = None

    def __post_init__(self) -> None:
        low = [seed for seed in self.seeds if seed < FIRST_SEED]
        if low:
            raise UserError(
                f"seeds below {FIRST_SEED} are for tables (got {low[0]}): choose settings with "
                "others, for example 101,102,103"
            )
        if not self.grid:
            raise UserError(f"no setting of {self.method} is to be tried: give some with values")
        if self.by is not None and self.by not in TASK_FREE:
            raise unknown("way to choose a class", self.by, list(TASK_FREE))
        both = sorted(self.grid.keys() & self.fixed.keys())
        if both:
            raise UserError(f"'{both[0]}' is both fixed and to be tried: give one of them")
        for name in (*self.fixed, *self.grid):
            if name in ("held_out", "seed", "seeds"):
                raise UserError(f"'{name}' is no setting to be tried or fixed: give it by itself")

    @property
    def name(self) -> str:
        """The name of its file, without the suffix."""
        return re.sub(r"[^\w.-]+", "-", f"{self.benchmark}-{self.method}")

    def points(self) -> list[Values]:
        """Return the points of the grid in order; the last setting changes fastest."""
        names = list(self.grid)
        return [
            dict(zip(names, row, strict=True)) for row in itertools.product(*self.grid.values())
        ]

    @property
    def rule(self) -> str:
        """The rule of the choice."""
        how = f" without the task, by {self.by}," if self.by else ""
        return RULE.replace("accuracy over", f"accuracy{how} over")

    @property
    def judged_by(self) -> str:
        """The figure of a record that decides."""
        return TASK_FREE[self.by] if self.by else "average_accuracy"

    @property
    def measures(self) -> tuple[str, ...]:
        """When trials may measure the accuracy without the task: never, unless it decides."""
        return ("end", "every") if self.by else ("never", "end", "every")

    def plan(self, point: Values, seed: int, task_free: str | None = None) -> Plan:
        """Return the run of a point with a seed; `task_free` holds unless the study has its own."""
        when = task_free or self.measures[0]
        values = {"task_free": when, **self.fixed, "held_out": self.held_out, **point}
        return make_plan(
            self.benchmark,
            self.method,
            network=self.network,
            recipe=self.recipe,
            seed=seed,
            values=values,
        )

    def accepts(self, point: Values) -> bool:
        """Tell whether all values of a point are valid."""
        try:
            self.plan(point, self.seeds[0])
        except UserError:
            return False
        return True

    def job(self, point: Values, seed: int, out: Path) -> Job:
        """Return the trial of a point with a seed, which may have measured more than is needed."""
        labels = (f"{self.method} {point_text(point)}",)
        plans = [self.plan(point, seed, when) for when in self.measures]
        jobs = [Job(plan, run_folder(out, plan, same_values=True), labels) for plan in plans]
        return next((job for job in jobs if job.state() != "missing"), jobs[0])

    def jobs(self, out: Path) -> list[Job]:
        """Return the trials: all points with the first seed, then all with the next."""
        points = self.points()
        jobs = (self.job(point, seed, out) for seed in self.seeds for point in points)
        return list({job.folder: job for job in jobs}.values())  # two points can be one run

    def check(self) -> None:
        """Refuse what cannot be tried: invalid values, and options of the benchmark."""
        for point in self.points():
            plan = self.plan(point, self.seeds[0])
        if self.by and plan.training.task_free == "never":
            raise UserError(f"a choice by {self.by} needs task_free=end (got never)")
        for name in self.grid:
            if part_of(plan, name) == "benchmark_options":
                raise UserError(
                    f"'{name}' is an option of the benchmark: only settings of methods, training "
                    "and networks can be chosen"
                )


def part_of(plan: Plan, name: str) -> str:
    """Return the part of a plan that a setting belongs to, as `make_plan` assigns it."""
    parts = ("method", "training", "network_options")
    return next((part for part in parts if getattr(plan, part).accepts(name)), "benchmark_options")


def point_text(point: Values) -> str:
    """Return a point of a grid as text.

    >>> point_text({"energy": 0.9, "reading": "text"})
    'energy=0.9 reading=text'
    """
    return " ".join(
        f"{name}={value if isinstance(value, str) else json.dumps(value)}"
        for name, value in point.items()
    )


@dataclass(frozen=True)
class Point:
    """A point of a grid, with the records of its trials by seed; `diverged` has the other seeds.

    `judged_by` is the figure of a record that decides.
    """

    values: Values
    records: Mapping[int, RunRecord]
    folders: Mapping[int, str]
    diverged: Mapping[int, str] = field(default_factory=dict)
    judged_by: str = "average_accuracy"

    def figure(self, name: str) -> MeanStd | None:
        """Return mean and standard deviation of a figure over seeds; None if one is missing."""
        if self.diverged:
            return None
        return mean_std(getattr(record, name) for record in self.records.values())

    @property
    def accuracy(self) -> MeanStd | None:
        """The average accuracy over all tasks after the last one that decides, in per cent."""
        return self.figure(self.judged_by)

    @property
    def transfer(self) -> MeanStd | None:
        """Backward transfer, in points."""
        return self.figure("backward_transfer")


@dataclass(frozen=True)
class Outcome:
    """The trials of a study; `chosen` is the number of the chosen point, None if all diverged."""

    study: Study
    points: Sequence[Point]
    chosen: int | None

    @property
    def choice(self) -> Values | None:
        """The chosen values."""
        return None if self.chosen is None else self.points[self.chosen].values

    def edges(self) -> list[str]:
        """Return a line for each chosen number that is at the edge of the grid."""
        return [] if self.choice is None else edges(self.study, self.choice)

    def as_dict(self, command: str) -> dict[str, Any]:
        """Return what the file of the study has."""
        study = self.study
        return {
            "command": command,
            "benchmark": study.benchmark,
            "method": study.method,
            "network": study.network,
            "recipe": study.recipe,
            "fixed": dict(study.fixed),
            "grid": {name: list(values) for name, values in study.grid.items()},
            "seeds": list(study.seeds),
            "held_out": study.held_out,
            "by": study.by,
            "rule": study.rule,
            "points": [self._point(point) for point in self.points],
            "choice": self.choice,
            "at_the_edge": self.edges(),
        }

    def _point(self, point: Point) -> dict[str, Any]:
        accuracy, transfer = point.accuracy, point.transfer
        by_seed = {str(seed): record for seed, record in sorted(point.records.items())}
        names = dict.fromkeys(("average_accuracy", point.judged_by))
        return {
            "values": point.values,
            **{name: {s: getattr(one, name) for s, one in by_seed.items()} for name in names},
            "backward_transfer": {s: record.backward_transfer for s, record in by_seed.items()},
            "accuracy_mean": accuracy.mean if accuracy else None,
            "accuracy_std": accuracy.std if accuracy else None,
            "transfer_mean": transfer.mean if transfer else None,
            "transfer_std": transfer.std if transfer else None,
            "diverged": {str(seed): why for seed, why in sorted(point.diverged.items())},
            "folders": {str(seed): folder for seed, folder in sorted(point.folders.items())},
        }


def outcome(study: Study, out: Path, statuses: Iterable[Status] = ()) -> Outcome | None:
    """Return the outcome of a study whose trials are in a folder, or None if some are missing.

    `statuses` tell why trials have no complete record: those that diverged are not missing.
    """
    # That a run has diverged is a result, not a failure.
    why = {status.job.folder: status.why for status in statuses if status.diverged}
    points = []
    for values in study.points():
        records, folders, diverged = {}, {}, {}
        for seed in study.seeds:
            job = study.job(values, seed, out)
            record = job.record()
            if record is not None and record.complete:
                if getattr(record, study.judged_by) is None:
                    raise UserError(
                        f"'{job.folder}' has no accuracy by {study.by}: its features depend on the "
                        "task or on the batch, so choose by another accuracy"
                    )
                records[seed] = record
                folders[seed] = f"{job.folder.parent.name}/{job.folder.name}"
            elif job.folder in why:
                diverged[seed] = why[job.folder]
            else:
                return None
        points.append(Point(values, records, folders, diverged, study.judged_by))
    return Outcome(study, points, choose(points))


def choose(points: Sequence[Point]) -> int | None:
    """Return the number of the point that `RULE` chooses; None if all have diverged."""
    means = [point.accuracy.mean if point.accuracy else None for point in points]
    best = max((mean for mean in means if mean is not None), default=None)
    if best is None:
        return None
    return next(n for n, mean in enumerate(means) if mean is not None and best - mean < TOLERANCE)


def edges(study: Study, choice: Values) -> list[str]:
    """Return a line for each setting whose chosen number is the smallest or largest of several.

    Nothing is said where no number beyond it is valid.
    """
    lines = []
    for name, values in study.grid.items():
        if len(values) < 2 or not all(_is_number(value) for value in values):
            continue
        ordered = sorted(values)
        for edge, neighbour in ((ordered[0], ordered[1]), (ordered[-1], ordered[-2])):
            if choice[name] != edge:
                continue
            sign = 1 if edge > neighbour else -1
            valid = _checker(study, choice, name)
            step = 1 if isinstance(edge, int) else 1e-6 * max(1e-3, abs(edge))
            if not valid(edge + sign * step):
                continue
            further = next((value for value in _beyond(edge, neighbour) if valid(value)), None)
            beyond = "values" if further is None else f"{name}={json.dumps(further)}"
            lines.append(
                f"{name}={json.dumps(edge)} is at the edge of the grid: try {beyond} beyond"
            )
    return lines


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _checker(study: Study, choice: Values, name: str) -> Callable[[Any], bool]:
    return lambda value: study.accepts({**choice, name: value})


def _beyond(edge: float, neighbour: float) -> list[float]:
    """Return numbers to try beyond the edge: the next of the series by ratio, or by difference."""
    further = [edge * edge / neighbour] if edge * neighbour > 0 else []
    further.append(2 * edge - neighbour)
    if isinstance(edge, int) and isinstance(neighbour, int):
        further += [round(value) for value in further]  # for a setting that must be whole
    short = (float(f"{value:.3g}") for value in further)
    return [
        int(value) if isinstance(edge, int) and value.is_integer() else value
        for value in short
        if (value - edge) * (edge - neighbour) > 0
    ]


def save(outcome: Outcome, out: Path, command: str) -> Path:
    """Write the file of a study, atomically; return its path.

    If the file has another study of the same benchmark and method, that stays in it, under
    `earlier`: all that was tried is on record.
    """
    path = out / f"{outcome.study.name}.json"
    content = outcome.as_dict(command)
    content["earlier"] = [old for old in _studies(path) if not _same(old, content)]
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    write_text(path, text)
    return path


def _studies(path: Path) -> list[dict[str, Any]]:
    """Return the studies in a file, the newest first."""
    try:
        newest = json.loads(path.read_text(encoding="utf-8"))
        earlier = newest.pop("earlier")
        return [newest, *earlier]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(
            f"'{path}' is not a file of this command ({shown(error)}): move it away"
        ) from None


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    names = ("benchmark", "method", "network", "recipe", "fixed", "grid", "seeds", "held_out", "by")
    return all(one.get(name) == other.get(name) for name in names)


def with_choice(text: str, study: Study, choice: Values, file: str) -> str:
    """Return the text of a recipe with the chosen values of a study, for its method alone.

    The changed lines name the study's file. Every value is checked to take effect.
    """
    plan = study.plan(choice, study.seeds[0])
    method = plan.method.name  # one of the user's own is named otherwise in a study
    recipe = Recipe(**{"name": "", **tomllib.loads(text)})
    values: dict[tuple[str, ...], Any] = {}
    for name, value in choice.items():
        part = part_of(plan, name)
        if part not in ("method", "training"):
            raise UserError(f"a recipe has no {name} for one method alone: write it there by hand")
        kind: type[Settings] = type(getattr(plan, part))
        present = recipe.values(part, study.benchmark, method)
        same = [key for key in present if kind.field_of(key) == kind.field_of(name)]
        key = same[-1] if same else kind.field_of(name)  # the recipe may have an alias
        values[(key,) if part == "method" else (part, key)] = value
    text = edit.set_values(text, study.benchmark, method, values, file)
    recipe = Recipe(**{"name": "", **tomllib.loads(text)})
    for keys, value in values.items():
        part = "training" if len(keys) > 1 else "method"
        if recipe.values(part, study.benchmark, method)[keys[-1]] != value:
            raise UserError(
                f"a later line of the recipe overrides {keys[-1]} of {method} on "
                f"{study.benchmark}: write it there by hand"
            )
    return text
