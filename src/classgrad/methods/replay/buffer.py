"""Samples kept for later tasks: a reservoir over all of them, or an equal share of each task.

Images keep the type of the data (uint8 or float) and are stored task by task, because tasks may
have images of different shapes. Neither memory ever holds more samples than its capacity. Nothing
is changed in place, so a state returned earlier does not change.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from classgrad.tasks import Split, Task

MEGABYTE = 1e6


@dataclass(frozen=True)
class MemorySize:
    """How many samples a memory has room for: a number of them, or a number of bytes.

    With a budget each sample takes `of_sample` bytes, and all together leave `aside` to something
    else.
    """

    samples: int
    setting: str  # as an error names it
    of_sample: int = 0
    aside: int = 0

    @classmethod
    def of(
        cls,
        memory: int,
        memory_mb: float | None,
        stream: Sequence[Task],
        *,
        per_sample: int = 0,
        aside: int = 0,
    ) -> "MemorySize":
        """Return the size that two settings give, of which the second comes first.

        A sample takes its image, its label and `per_sample` more; where tasks have images of
        different sizes, all count as the largest.
        """
        if memory_mb is None:
            return cls(memory, f"memory={memory}")
        splits = [task.train for task in stream]
        of_sample = per_sample + max(
            split.images[:1].nbytes + split.labels[:1].nbytes for split in splits
        )
        samples = max(0, math.floor(memory_mb * MEGABYTE - aside) // of_sample)
        said = f"memory_mb={memory_mb:g}, room for {samples} samples,"
        return cls(samples, said, of_sample, aside)

    def least(self, samples: int) -> str:
        """Return what the setting has to be for so many samples."""
        if not self.of_sample:
            return str(samples)
        return f"{(samples * self.of_sample + self.aside) / MEGABYTE:.6f}".rstrip("0")


@dataclass(frozen=True)
class Part:
    """One task's part of a batch from the memory: indices of samples, weight of their mean."""

    task: int
    index: Tensor
    weight: float


class ReplayMemory:
    """At most `capacity` samples; `parts` holds them by task."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.parts: dict[int, Split] = {}

    def __len__(self) -> int:
        return sum(len(part) for part in self.parts.values())

    def tasks(self, *, without: int | None = None, least: int = 1) -> list[int]:
        """Return the tasks that have at least `least` samples here; one can be left out."""
        return [t for t in sorted(self.parts) if t != without and len(self.parts[t]) >= least]

    def rows(self, task: int, count: int, generator: torch.Generator) -> Tensor:
        """Return `count` random rows of a task's samples, or all if it has no more."""
        return torch.randperm(len(self.parts[task]), generator=generator)[:count]

    def draw(
        self,
        count: int,
        generator: torch.Generator,
        *,
        without: int | None = None,
        least: int = 1,
        per_task: int = 1,
    ) -> list[Part]:
        """Draw a batch of about `count` samples, an equal number of each task.

        If `count` is too small for `per_task` samples of each task, or for all that a task has if
        those are fewer, fewer tasks are chosen, at random; if it is too small for a single task,
        more samples are drawn. A weight is (tasks / tasks chosen) times the task's share of the
        samples in memory, so that the expected sum of weighted means is the mean over the memory.
        """
        tasks = self.tasks(without=without, least=least)
        if not tasks:
            return []
        fewest = min(per_task, max(len(self.parts[t]) for t in tasks))
        chosen = min(len(tasks), max(1, count // fewest))
        share = max(count // chosen, fewest, least)
        total = sum(len(self.parts[t]) for t in tasks)
        order = torch.randperm(len(tasks), generator=generator)[:chosen]
        return [
            Part(
                t,
                self.rows(t, share, generator),
                len(tasks) / chosen * len(self.parts[t]) / total,
            )
            for t in (tasks[i] for i in order.sort().values.tolist())
        ]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples by task."""
        return {
            str(task): {"images": part.images, "labels": part.labels}
            for task, part in self.parts.items()
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state."""
        self.parts = {int(t): Split(part["images"], part["labels"]) for t, part in state.items()}


class Reservoir(ReplayMemory):
    """A uniform sample of all that was ever inserted (Vitter, 1985).

    The n-th sample, from 0, goes to slot n while there are free ones, then to slot j drawn from
    0..n if that is below the capacity, and is dropped otherwise.
    """

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self.seen = 0
        self.places: dict[int, Tensor] = {}  # by task: the slot of each of its samples

    def draw_places(self, count: int, generator: torch.Generator) -> Tensor:
        """Return the slots of the next `count` samples; beyond the capacity a sample is dropped."""
        number = torch.arange(self.seen, self.seen + count)
        uniform = torch.rand(count, generator=generator, dtype=torch.float64)
        return torch.where(number < self.capacity, number, (uniform * (number + 1)).long())

    def insert(self, task: int, samples: Split, places: Tensor) -> None:
        """Insert the next samples, one after another, in the slots drawn for them."""
        self.seen += len(samples)
        # Of two samples for one slot the later one stays.
        last = {place: i for i, place in enumerate(places.tolist()) if place < self.capacity}
        if not last:
            return
        taken, rows = torch.tensor(list(last)), torch.tensor(list(last.values()))
        for t in list(self.parts):
            self._keep(t, ~torch.isin(self.places[t], taken))
        new = Split(samples.images[rows], samples.labels[rows])
        old = self.parts.get(task)
        self.parts[task] = new if old is None else _joined(old, new)
        self.places[task] = torch.cat([self.places.get(task, taken[:0]), taken])

    def _keep(self, task: int, kept: Tensor) -> None:
        if kept.all():
            return
        part = self.parts.pop(task)
        places = self.places.pop(task)
        if kept.any():
            self.parts[task] = Split(part.images[kept], part.labels[kept])
            self.places[task] = places[kept]

    def state_dict(self) -> dict[str, Any]:
        """Return the samples, their slots and how many were seen."""
        places = {str(task): of_task for task, of_task in self.places.items()}
        return {"seen": self.seen, "places": places, "parts": super().state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state."""
        super().load_state_dict(state["parts"])
        self.seen = state["seen"]
        self.places = {int(task): places.cpu() for task, places in state["places"].items()}


class EqualShares(ReplayMemory):
    """The same number of samples of each task so far: capacity // tasks."""

    def add(self, task: int, samples: Split, generator: torch.Generator) -> None:
        """Keep random samples of one more task, and fewer of the earlier ones.

        Samples are in a random order in which every prefix has balanced classes, so truncating it
        drops samples at random and keeps the balance.
        """
        share = self.capacity // (len(self.parts) + 1)
        chosen = balanced_order(samples.labels, generator)[:share]
        self.parts[task] = Split(samples.images[chosen], samples.labels[chosen])
        # Clones, because a slice would keep the dropped samples in memory.
        self.parts = {
            t: Split(part.images[:share].clone(), part.labels[:share].clone())
            for t, part in self.parts.items()
        }


def balanced_order(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return a random order of samples in which the classes alternate as long as they last.

    >>> rng = torch.Generator().manual_seed(0)
    >>> labels = torch.tensor([0, 0, 0, 0, 1, 1])
    >>> labels[balanced_order(labels, rng)][:4].bincount().tolist()
    [2, 2]
    """
    shuffled = torch.randperm(len(labels), generator=generator)
    of_class = labels.cpu()[shuffled]
    counts = torch.bincount(of_class)
    starts = counts.cumsum(0) - counts
    by_class = of_class.argsort(stable=True)
    turn = torch.empty_like(by_class)
    turn[by_class] = torch.arange(len(labels)) - starts[of_class[by_class]]
    return shuffled[turn.argsort(stable=True)]


def _joined(first: Split, second: Split) -> Split:
    return Split(torch.cat([first.images, second.images]), torch.cat([first.labels, second.labels]))
