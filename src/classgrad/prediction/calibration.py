"""Predictions with calibrated probabilities: the class of an image, its task, and the confidence.

The task of an image may be known or not. If not, all tasks predict, and the most probable class of
any of them wins: by the confidence of its head, softmax(z / T), or by the cosine of the embedding
with the class means, softmax(cos / T). The temperature T of each task and way to predict maximises
the likelihood of its validation data, so that tasks can be compared.

By default each image goes through the network alone. Batched products may round differently, so
only then is a prediction the same, bit for bit, whatever other images come with it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.networks.network import Network

SEARCH_STEPS = 60  # of the search for a temperature
MAX_SHARPNESS = 100.0  # 1 / T, at most
PRECISION = 1e-10  # of 1 / T


class KnownTask(Protocol):
    """What predictions need to know about a task."""

    name: str
    class_names: list[str]
    sharpness: dict[str, float]  # 1 / temperature, by way to predict
    forgotten: list[str]  # classes no longer predicted


@dataclass(frozen=True)
class Guess:
    """A class of a task, and its probability.

    By statistics it is the probability among all classes that are compared, by confidence and by
    prototypes that among the classes of its task.
    """

    name: str
    task: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The most probable class of an image, and `ranking`, all classes by falling probability.

    By statistics, `p_value` is that of the hypothesis that the image is of a class that was learnt;
    `known` is false if it is refused, as none of these. If the image cannot be read, `error` is the
    reason, and there is no class.
    """

    ranking: tuple[Guess, ...]
    p_value: float | None = None
    known: bool = True
    error: str | None = None

    @property
    def name(self) -> str:
        """The most probable class."""
        return self.ranking[0].name

    @property
    def task(self) -> str:
        """The task of that class."""
        return self.ranking[0].task

    @property
    def probability(self) -> float:
        """Its probability."""
        return self.ranking[0].probability


def with_unreadable(predicted: list[Prediction], bad: Mapping[int, str]) -> list[Prediction]:
    """Return predictions for all images, with those that cannot be read at their places.

    >>> [one.error for one in with_unreadable([Prediction(()), Prediction(())], {1: "no image"})]
    [None, 'no image', None]
    """
    rest = iter(predicted)
    return [
        Prediction((), known=False, error=bad[index]) if index in bad else next(rest)
        for index in range(len(predicted) + len(bad))
    ]


def calibrate(scores: Tensor, labels: Tensor) -> float:
    """Return the sharpness 1 / T that minimises -Σ log softmax(scores / T), which is convex.

    Labels are smoothed by 1 / (n + 2) for n samples, or T would be 0 where all are classified
    correctly (Platt 1999). Without samples the sharpness is 1.
    """
    if not len(labels):
        return 1.0
    scores, labels = scores.cpu().double(), labels.cpu()
    smoothing = 1 / (len(labels) + 2)
    targets = torch.full_like(scores, smoothing / scores.shape[1])
    targets[torch.arange(len(labels)), labels] += 1 - smoothing

    # Newton's steps; where one leaves the interval that holds the minimum, its middle instead.
    low, high, sharpness = 0.0, MAX_SHARPNESS, 1.0
    for _ in range(SEARCH_STEPS):
        shares = (scores * sharpness).softmax(1)
        slope = float(((shares - targets) * scores).sum())
        means = (shares * scores).sum(1, keepdim=True)
        curvature = float((shares * (scores - means).square()).sum())
        low, high = (sharpness, high) if slope < 0 else (low, sharpness)
        last, sharpness = sharpness, sharpness - slope / curvature if curvature else low
        if not low < sharpness < high:
            sharpness = (low + high) / 2
        if abs(sharpness - last) <= PRECISION * sharpness:
            break
    return sharpness


def scores_by_head(net: Network, x: Tensor, task: int, prototypes: Tensor | None) -> Tensor:
    """Return the logits of a task's head."""
    scores: Tensor = net(x, task)
    return scores


def scores_by_prototype(net: Network, x: Tensor, task: int, prototypes: Tensor | None) -> Tensor:
    """Return the cosines with the class means of a task."""
    assert prototypes is not None
    return functional.normalize(net.embed(x, task), dim=1) @ prototypes.T


ScoreFunction = Callable[[Network, Tensor, int, Tensor | None], Tensor]
# By way to predict.
SCORES: dict[str, ScoreFunction] = {
    "confidence": scores_by_head,
    "prototypes": scores_by_prototype,
}


def probabilities(scores: Tensor, sharpness: float, forgotten: list[int]) -> Tensor:
    """Return softmax(scores / T) over the classes that are not forgotten."""
    scores = scores.cpu().double() * sharpness
    scores[:, forgotten] = -torch.inf
    return scores.softmax(1)


def rank_guesses(guesses: list[Guess]) -> Prediction:
    """Sort by falling probability; equal ones stay in the order their classes were learnt."""
    return Prediction(tuple(sorted(guesses, key=lambda guess: -guess.probability)))


def predictions(
    net: Network,
    tasks: Sequence[KnownTask],
    prototypes: Sequence[Tensor] | None,
    x: Tensor,
    numbers: Iterable[int],
    by: str,
) -> list[Prediction]:
    """Return the prediction for each input, over the classes of the tasks with these numbers."""
    guesses: list[list[Guess]] = [[] for _ in x]
    for number in numbers:
        task = tasks[number]
        means = None if prototypes is None else prototypes[number]
        forgotten = [task.class_names.index(name) for name in task.forgotten]
        if len(forgotten) == len(task.class_names):
            continue
        scores = SCORES[by](net, x, number, means)[:, : len(task.class_names)]
        rows = probabilities(scores, task.sharpness[by], forgotten).tolist()
        for row, values in enumerate(rows):
            guesses[row] += [
                Guess(name, task.name, value)
                for name, value in zip(task.class_names, values, strict=True)
                if name not in task.forgotten
            ]
    return [rank_guesses(row) for row in guesses]
