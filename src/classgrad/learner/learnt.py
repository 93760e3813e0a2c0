"""What a learner knows about its tasks."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from classgrad.methods.base import Method
from classgrad.methods.projection.forecast import Capacity, forecast

NonNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0)]


@dataclass(config=ConfigDict(strict=True))
class LearntTask:
    """What is known about a task that was learnt, besides weights and prototypes.

    Names of fields are keys of saved states.
    """

    name: str
    class_names: list[str]
    samples: list[Count]  # of each class
    sharpness: dict[str, NonNegative]  # 1 / temperature, by way to predict
    # In per cent, balanced, on validation data when it was learnt; None without any.
    accuracy: float | None
    ranks: dict[str, Count]  # directions in use in each layer after it
    when: str  # date and time, UTC
    seconds: NonNegative
    data: str = ""  # digest of its training and validation data
    forgotten: list[str] = field(default_factory=list)  # classes no longer predicted
    numbers: list[Count] = field(default_factory=list)  # of its classes, in the statistics if any
    # Of `accuracy`: the number of samples, and the ends `low` and `high` of its 95 % interval.
    interval: dict[str, float | int] | None = None
    # How samples of all classes so far were told apart when it was learnt, without the task: number
    # of samples, balanced accuracy and its interval in per cent, calibration error in points. None
    # without statistics.
    task_free: dict[str, float | int] | None = None
    # How often each of its classes was recognised then, in per cent: among all classes so far, or
    # without statistics among those of the task. Classes without validation data are missing.
    recalls: dict[str, float] = field(default_factory=dict)
    # Of each class: how many scenes its images show; those that look alike are of one scene. Empty
    # in states of earlier versions.
    scenes: list[Count] = field(default_factory=list)
    # What it was learnt with: tune, and where layers learn method and training; and the version of
    # classgrad. Empty in states of earlier versions.
    settings: dict[str, Any] = field(default_factory=dict)
    version: str = ""

    def __post_init__(self) -> None:
        """Refuse inconsistent values, which a damaged or foreign state may have."""
        self.name = composed(self.name)
        self.class_names = [composed(name) for name in self.class_names]
        self.forgotten = [composed(name) for name in self.forgotten]
        names = set(self.class_names)
        if not names or len(names) != len(self.class_names) or not names.issuperset(self.forgotten):
            raise ValueError("the names of classes are inconsistent")
        if self.interval is not None and self.interval.keys() != {"samples", "low", "high"}:
            raise ValueError(f"the interval of the accuracy of task '{self.name}' is incomplete")
        lengths = {len(self.numbers), len(self.scenes)}
        if len(self.samples) != len(names) or not lengths <= {0, len(names)}:
            raise ValueError(f"the description of task '{self.name}' is incomplete")

    def required_accuracy(self) -> float | None:
        """Return the balanced accuracy among all classes so far, or among its own if that is all.

        It is in per cent, and None if no class has validation data.
        """
        return self.accuracy if self.task_free is None else self.task_free["accuracy"]

    def known_numbers(self) -> list[int]:
        """Return the numbers of its classes that are not forgotten."""
        known = zip(self.numbers, self.class_names, strict=True)
        return [number for number, name in known if name not in self.forgotten]


def composed(name: str) -> str:
    """Return a name with its accents composed (NFC): files on macOS may have them apart (NFD)."""
    return unicodedata.normalize("NFC", name)


def numbered_classes(tasks: Sequence[LearntTask]) -> dict[int, tuple[str, str]]:
    """Return the name and the task of each class by its number; a merged one has the first task."""
    classes: dict[int, tuple[str, str]] = {}
    for task in tasks:
        for number, name in zip(task.numbers, task.class_names, strict=True):
            classes.setdefault(number, (name, task.name))
    return classes


def forecast_of(
    dimensions: Mapping[str, int], tasks: Sequence[LearntTask], method: Method | None
) -> Capacity:
    """Return for how many more classes the layers have free directions."""
    ranks, classes = [task.ranks for task in tasks], [len(task.class_names) for task in tasks]
    return forecast(dimensions, ranks, classes, method)
