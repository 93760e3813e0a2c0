"""How much more a learner can learn: the free rank of each layer, and for how many classes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from classgrad.learner.learnt import LearntTask

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
