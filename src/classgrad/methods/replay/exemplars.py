"""Exemplars: the few training samples of a class whose mean is nearest to that of all of them."""

import torch
from torch import Tensor

from classgrad.tasks import Split


def herd(features: Tensor, count: int) -> Tensor:
    """Rows (n x d) -> up to `count` of their indices; the first k have a mean near that of all.

    Greedy: the k-th is p_k = argmin_x ||μ - (φ(x) + Σ_{j<k} φ(p_j)) / k||, among those not chosen
    yet.

    >>> herd(torch.tensor([[0.0], [4.0], [5.0], [11.0]]), 3)  # mean 5; then (5 + 4) / 2, ...
    tensor([2, 1, 3])
    """
    features = features.cpu().double()  # which not every device has
    mean, lengths = features.mean(0), features.square().sum(1)
    rest = torch.zeros_like(mean)  # k μ - Σ_{j<k} φ(p_j): what the k-th would have to be
    free = torch.zeros_like(lengths)  # minus infinity once chosen
    chosen: list[int] = []
    for _ in range(min(count, len(features))):
        rest = rest + mean
        nearness = 2 * features @ rest - lengths  # ||rest||² - ||rest - φ||²
        best = int((nearness + free).argmax())
        chosen.append(best)
        rest = rest - features[best]
        free[best] = -torch.inf
    return torch.tensor(chosen)


def choose(split: Split, features: Tensor, count: int) -> Split:
    """Return up to `count` samples of every class in the order of herding, class after class."""
    kept = []
    for label in split.labels.unique():
        own = (split.labels == label).nonzero().flatten()
        kept.append(own[herd(features[own], count)])
    return _part(split, torch.cat(kept))


def cut(split: Split, count: int) -> Split:
    """Return the first `count` samples of every class."""
    kept = [(split.labels == label).nonzero().flatten()[:count] for label in split.labels.unique()]
    return _part(split, torch.cat(kept))


def _part(split: Split, index: Tensor) -> Split:
    return Split(split.images[index], split.labels[index])
