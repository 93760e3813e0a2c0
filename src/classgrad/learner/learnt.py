"""What a learner knows about its tasks, and a forecast of how many more classes it can learn."""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

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
    accuracy: float | None  # in per cent, on validation data when it was learnt; None without any
    ranks: dict[str, Count]  # directions in use in each layer after it
    when: str  # date and time, UTC
    seconds: NonNegative
    data: str = ""  # digest of its training and validation data
    forgotten: list[str] = field(default_factory=list)  # classes no longer predicted

    def __post_init__(self) -> None:
        """Refuse inconsistent values, which a damaged or foreign state may have."""
        names = set(self.class_names)
        if not names or len(names) != len(self.class_names) or not names.issuperset(self.forgotten):
            raise ValueError("the names of classes are inconsistent")
        if "confidence" not in self.sharpness or len(self.samples) != len(names):
            raise ValueError(f"the description of task '{self.name}' is incomplete")


RECENT = 3  # tasks that a forecast extrapolates from


@dataclass(frozen=True)
class LayerForecast:
    """A layer with `rank` of `dimension` directions in use, and for how many classes the rest is.

    `classes_left` assumes that new classes take as many directions as those of the last tasks; it
    is None if those took none.
    """

    name: str
    dimension: int
    rank: int
    classes_left: int | None


def forecast(
    name: str, dimension: int, ranks: Sequence[int], classes: Sequence[int]
) -> LayerForecast:
    """Return the forecast of a layer from its ranks after each task and their numbers of classes.

    >>> forecast("fc1", 100, [40, 50, 60], [10, 10, 10]).classes_left
    40
    >>> forecast("fc1", 100, [40], [10]).classes_left
    15
    """
    rank = ranks[-1] if ranks else 0
    recent = ranks[-RECENT - 1 :]
    start, counts = (recent[0], classes[-len(recent) + 1 :]) if len(recent) > 1 else (0, classes)
    taken, count = rank - start, sum(counts)
    left = (dimension - rank) * count // taken if taken > 0 else None
    return LayerForecast(name, dimension, rank, left)


def forecast_all(dimensions: Mapping[str, int], tasks: Sequence[LearntTask]) -> list[LayerForecast]:
    """Return the forecasts of all layers, given their dimensions by name."""
    classes = [len(task.class_names) for task in tasks]
    return [
        forecast(name, dimension, [task.ranks[name] for task in tasks], classes)
        for name, dimension in dimensions.items()
    ]
