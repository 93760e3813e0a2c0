"""Which runs there are to do, and in which state each of them is: nothing here runs them."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from classgrad.errors import UserError
from classgrad.experiments.spec import Experiment
from classgrad.runs.record import FILE_NAME, RunRecord
from classgrad.runs.run import has_saved_state, run_folder
from classgrad.runs.spec import Plan

CRASH_FILE = "crash.txt"  # the trace of a crash, in the folder of a run

State = Literal["done", "cut", "missing"]


@dataclass(frozen=True)
class Job:
    """A run, its folder, and the lines of tables it is for; `url` is where its files are, if any.

    With a URL the folder has no more than its record.
    """

    plan: Plan
    folder: Path
    labels: tuple[str, ...]
    url: str | None = None

    @property
    def label(self) -> str:
        """The first line it is for, and how many others share it."""
        more = len(self.labels) - 1
        return f"{self.labels[0]} (+{more})" if more else self.labels[0]

    @property
    def title(self) -> str:
        """What tells it from other jobs, in a sentence."""
        return f"{self.label}, seed {self.plan.seed}"

    def record(self) -> RunRecord | None:
        """Return the record in the folder, if it is one of this run; it may not be complete."""
        if not (self.folder / FILE_NAME).is_file():
            return None
        try:
            record = RunRecord.load(self.folder)
        except UserError:  # the run itself says what is wrong with it
            return None
        return record if self.plan.describes(record.settings()) else None

    def state(self) -> State:
        """Tell what there is to do: nothing, to go on, or all of it."""
        record = self.record()
        if record is not None and record.complete:
            return "done"
        return "cut" if has_saved_state(self.folder) else "missing"


def of_experiments(
    experiments: Sequence[Experiment], recipe: str, seeds: Iterable[int], out: Path
) -> list[Job]:
    """Return the runs of some experiments, each once however many lines it is for.

    All lines come with the first seed, then all with the next: tables are full early.
    """
    several = len(experiments) > 1
    return of_plans(
        (
            (f"{experiment.name}: {label}" if several else label, plan)
            for seed in seeds
            for experiment in experiments
            for label, (plan,) in experiment.plans(recipe, [seed]).items()
        ),
        out,
    )


def of_plans(labelled: Iterable[tuple[str, Plan]], out: Path) -> list[Job]:
    """Return a job for each different plan, with all labels it has."""
    plans: dict[Path, Plan] = {}
    labels: dict[Path, dict[str, None]] = {}
    for label, plan in labelled:
        folder = run_folder(out, plan)
        plans[folder] = plan
        labels.setdefault(folder, {})[label] = None
    return [Job(plan, folder, tuple(labels[folder])) for folder, plan in plans.items()]


def grid(over: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return every combination of the values of some settings.

    >>> grid({"eta": [0.5, 0.7], "seed": [1]})
    [{'eta': 0.5, 'seed': 1}, {'eta': 0.7, 'seed': 1}]
    """
    return [dict(zip(over, values, strict=True)) for values in itertools.product(*over.values())]
