"""What is said about an image: the class, the task, and how sure that is.

The task of an image may be given or not. Without it every task is asked, and the one that is surest
is believed: by the confidence of its head, softmax(z / T), or by the cosine of the embedding with
the class means, softmax(cos / T). The temperature T of each task and kind is the one for which the
true classes of its validation data are the likeliest, so that tasks can be compared.

An image goes through the network alone unless told otherwise. Products of several images at once
may round otherwise, so only then is a prediction the same, to the bit, whatever comes with it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from classgrad.networks.network import Network

STEPS = 60  # of the search for a temperature
SHARPEST = 100.0  # 1 / T, at most


class KnownTask(Protocol):
    """What has to be known of a task to answer for it."""

    name: str
    class_names: list[str]
    sharpness: dict[str, float]  # 1 / temperature, by kind of prediction
    forgotten: list[str]  # classes no longer predicted


@dataclass(frozen=True)
class Guess:
    """A class of a task, and its probability among the classes of that task."""

    name: str
    task: str
    probability: float


@dataclass(frozen=True)
class Prediction:
    """The likeliest class of an image, and all that were considered, the likeliest first."""

    ranking: tuple[Guess, ...]

    @property
    def name(self) -> str:
        """The likeliest class."""
        return self.ranking[0].name

    @property
    def task(self) -> str:
        """The task of that class."""
        return self.ranking[0].task

    @property
    def probability(self) -> float:
        """Its probability."""
        return self.ranking[0].probability


def calibrate(scores: Tensor, labels: Tensor) -> float:
    """Return 1 / T for which the labels are the likeliest: -Σ log softmax(scores / T) is convex.

    Of n samples one in n + 2 counts as any class, or T would be 0 where all are right (Platt 1999).
    Without samples it is 1.
    """
    if not len(labels):
        return 1.0
    scores, labels = scores.cpu().double(), labels.cpu()

    def cost(sharpness: float) -> float:
        doubt = 1 / (len(labels) + 2)
        return float(functional.cross_entropy(scores * sharpness, labels, label_smoothing=doubt))

    low, high = 0.0, SHARPEST
    for _ in range(STEPS):
        third = (high - low) / 3
        if cost(low + third) <= cost(high - third):
            high -= third
        else:
            low += third
    return (low + high) / 2


def scores_by_head(net: Network, x: Tensor, task: int, prototypes: Tensor | None) -> Tensor:
    """Return the logits of a task's head."""
    scores: Tensor = net(x, task)
    return scores


def scores_by_prototype(net: Network, x: Tensor, task: int, prototypes: Tensor | None) -> Tensor:
    """Return the cosines with the class means of a task."""
    assert prototypes is not None
    return functional.normalize(net.embed(x, task), dim=1) @ prototypes.T


Scores = Callable[[Network, Tensor, int, Tensor | None], Tensor]
SCORES: dict[str, Scores] = {"confidence": scores_by_head, "prototypes": scores_by_prototype}


def probabilities(scores: Tensor, sharpness: float, forgotten: list[int]) -> Tensor:
    """Return softmax(scores / T) over the classes that are not forgotten."""
    scores = scores.cpu().double() * sharpness
    scores[:, forgotten] = -torch.inf
    return scores.softmax(1)


def rank_guesses(guesses: list[Guess]) -> Prediction:
    """Put the likeliest first; of equal ones the class that was learnt first."""
    order = sorted(range(len(guesses)), key=lambda number: -guesses[number].probability)
    return Prediction(tuple(guesses[number] for number in order))


def predictions(
    net: Network,
    tasks: Sequence[KnownTask],
    prototypes: Sequence[Tensor] | None,
    x: Tensor,
    numbers: Iterable[int],
    by: str,
) -> list[Prediction]:
    """Return what the tasks of these numbers say together of each input."""
    guesses: list[list[Guess]] = [[] for _ in x]
    for number in numbers:
        about = tasks[number]
        known = None if prototypes is None else prototypes[number]
        gone = [about.class_names.index(name) for name in about.forgotten]
        if len(gone) == len(about.class_names):
            continue
        scores = SCORES[by](net, x, number, known)[:, : len(about.class_names)]
        for row, values in enumerate(probabilities(scores, about.sharpness[by], gone).tolist()):
            guesses[row] += [
                Guess(name, about.name, value)
                for name, value in zip(about.class_names, values, strict=True)
                if name not in about.forgotten
            ]
    return [rank_guesses(row) for row in guesses]
