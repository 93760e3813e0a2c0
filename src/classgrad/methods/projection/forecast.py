"""How many more classes fit: a forecast of the ranks of layers from those after each task so far.

The more directions of a layer are stored, the more of a new class they hold, and the fewer new ones
it needs. The closer ε is to 1, the more it needs. With r of d directions in use after n classes,

    r = d (1 - exp(-a τ)),   dτ = (1 - ε)^-0.8 d(n^0.6),

so that -ln(1 - r/d) grows in proportion to τ. Its rate a is measured from the last tasks without
the first one, of which every direction is new, unless that is all there is.

The form and the exponents were chosen, and the errors measured, on the same ranks in records of
runs: `python -m benchmarks.forecast`, which writes `results/forecast.json` and says what that is
worth for other data. The forecast is wrong where classes change in kind, and says too few where a
layer's inputs never use some of its directions.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from classgrad.methods.base import Method
from classgrad.methods.projection.base import Projected, layer_values

FULL = 0.98  # share of its directions at which a layer counts as full
RECENT = 5  # tasks that the rate is measured from
FAR = 100  # no forecast goes beyond this many times the classes learnt so far
LATER_TASKS = 1000  # ε is taken as constant after so many more
LEAST_REST = 1e-3  # of 1 - ε

CLASS_EXPONENT = 0.6
REST_EXPONENT = 0.8

# From this number of tasks on, in 9 of 10 cases the layer was full after so many times the number
# of classes that the forecast had said.
ERRORS = [(4, 0.45, 4.81), (2, 0.59, 2.58), (1, 0.33, 4.73)]

Epsilon = Callable[[int], float]  # by number of the task, from 0


@dataclass(frozen=True)
class LayerForecast:
    """A layer with `rank` of `dimension` directions in use, and for how many classes the rest is.

    With `classes_left` more classes like those of the last tasks, the layer is full: 98 % of its
    directions are in use. In 9 of 10 cases of the back-test it was after `fewest` to `most`. All
    are None if the last tasks took no directions, or too few to tell.
    """

    name: str
    dimension: int
    rank: int
    classes_left: int | None
    fewest: int | None = None
    most: int | None = None


@dataclass(frozen=True)
class Capacity:
    """For how many more classes the layers of a model have free directions.

    >>> layers = [LayerForecast("a", 20, 5, None), LayerForecast("b", 30, 6, 8, 4, 19)]
    >>> print(Capacity(layers))  # doctest: +NORMALIZE_WHITESPACE
    about 8 more classes (4 to 19 in 9 of 10 measured cases), then layer b is full: 6 of 30
    directions are in use
    """

    layers: Sequence[LayerForecast]

    @property
    def full(self) -> list[str]:
        """Names of the layers that are full."""
        return [layer.name for layer in self.layers if layer.classes_left == 0]

    @property
    def next(self) -> LayerForecast | None:
        """The layer that will be full next; None if none fills up."""
        filling = [layer for layer in self.layers if layer.classes_left]
        return min(filling, key=lambda layer: layer.classes_left or 0, default=None)

    @property
    def classes_left(self) -> int | None:
        """How many more classes fit until the next layer is full; None: no layer fills up."""
        if len(self.full) == len(self.layers) > 0:
            return 0
        return None if self.next is None else self.next.classes_left

    def __str__(self) -> str:
        if not self.layers:
            return "no layer is protected"
        if self.classes_left == 0:
            return "all layers are full"
        full = f"full: {', '.join(self.full)}; " if self.full else ""
        if self.next is None:
            fullest = max(self.layers, key=lambda layer: layer.rank / layer.dimension)
            return (
                f"{full}no layer is filling up; the fullest is {fullest.name}: {fullest.rank:,} of "
                f"{fullest.dimension:,} directions are in use"
            )
        first = self.next
        return (
            f"{full}about {first.classes_left:,} more classes ({first.fewest:,} to {first.most:,} "
            f"in 9 of 10 measured cases), then layer {first.name} is full: {first.rank:,} of "
            f"{first.dimension:,} directions are in use"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON has."""
        return {
            "classes_left": self.classes_left,
            "fewest": self.next.fewest if self.next else None,
            "most": self.next.most if self.next else None,
            "layer": self.next.name if self.next else None,
            "full": self.full,
            "layers": [asdict(layer) for layer in self.layers],
        }


def constant(_task: int) -> float:
    """Return the ε of a method that has none."""
    return 0.0


def epsilons(method: Method | None, layers: Iterable[str]) -> dict[str, Epsilon]:
    """Return how ε of each layer depends on the task."""
    layers = list(layers)
    if not layers or not isinstance(method, Projected):
        return dict.fromkeys(layers, constant)
    starts = layer_values(method.energy, layers)
    return {name: partial(method.threshold, start) for name, start in starts.items()}


def forecast(
    dimensions: Mapping[str, int],
    ranks: Sequence[Mapping[str, int]],
    classes: Sequence[int],
    method: Method | None = None,
) -> Capacity:
    """Return the forecast of all layers, given their dimensions.

    `ranks` has the ranks by layer after each task, `classes` the number of classes of each.

    >>> one = forecast({"fc1": 100}, [{"fc1": 50}, {"fc1": 75}], [10, 10]).layers[0]
    >>> one.rank, one.classes_left
    (75, 57)
    """
    if min(dimensions.values(), default=1) < 1:
        raise ValueError("a layer has no directions")
    of_layer = epsilons(method, dimensions)
    return Capacity(
        [
            layer_forecast(name, dimension, [each[name] for each in ranks], classes, of_layer[name])
            for name, dimension in dimensions.items()
        ]
    )


def layer_forecast(
    name: str,
    dimension: int,
    ranks: Sequence[int],
    classes: Sequence[int],
    epsilon: Epsilon = constant,
) -> LayerForecast:
    """Return the forecast of a layer from its ranks after each task and their numbers of classes.

    >>> layer_forecast("fc1", 100, [98], [10]).classes_left
    0
    >>> layer_forecast("fc1", 100, [50, 50], [10, 10]).classes_left is None
    True
    """
    rank = ranks[-1] if ranks else 0
    left = classes_until(FULL * dimension, dimension, ranks, classes, epsilon)
    if left is None or left > FAR * sum(classes):
        return LayerForecast(name, dimension, rank, None)
    low, high = next((low, high) for count, low, high in ERRORS if len(ranks) >= count)
    return LayerForecast(
        name, dimension, rank, math.ceil(left), math.floor(low * left), math.ceil(high * left)
    )


def classes_until(
    target: float,
    dimension: int,
    ranks: Sequence[int],
    classes: Sequence[int],
    epsilon: Epsilon = constant,
) -> float | None:
    """Return after how many more classes a layer has the rank `target`; None: never."""
    if not ranks:
        return None
    if ranks[-1] >= target:
        return 0.0
    times, learnt = [0.0], 0
    for task, count in enumerate(classes):
        times.append(times[-1] + time_of(learnt, count, epsilon(task)))
        learnt += count
    filled = [0.0, *(fill(rank, dimension) for rank in ranks)]
    start = 0 if len(ranks) == 1 else max(1, len(ranks) - RECENT)
    rate = (filled[-1] - filled[start]) / (times[-1] - times[start])
    if rate <= 0:
        return None
    missing = (fill(target, dimension) - filled[-1]) / rate
    known, task = learnt, len(ranks)
    while epsilon(task) != epsilon(task + 1) and task < len(ranks) + LATER_TASKS:
        time = time_of(learnt, classes[-1], epsilon(task))
        if time >= missing:
            break
        missing -= time
        learnt += classes[-1]
        task += 1
    power = learnt**CLASS_EXPONENT + missing / pace(epsilon(task))
    return float(power ** (1 / CLASS_EXPONENT)) - known


def fill(rank: float, dimension: int) -> float:
    """Return -ln(1 - r/d), finite also for a full layer."""
    return -math.log(max(1 - rank / dimension, 0.5 / dimension))


def time_of(learnt: int, count: int, epsilon: float) -> float:
    """Return the growth of τ by `count` classes after `learnt` others."""
    return pace(epsilon) * float((learnt + count) ** CLASS_EXPONENT - learnt**CLASS_EXPONENT)


def pace(epsilon: float) -> float:
    """Return (1 - ε)^-0.8."""
    return float(max(1 - epsilon, LEAST_REST) ** -REST_EXPONENT)
