"""How the last blocks are tuned, and what is known at the end without the task.

Every contender tunes the same blocks with AdamW, task after task. When a task has been learnt, the
statistics of its classes are added; no sentence is seen again. So what a contender moves later is
seen in how old intents are told apart. `together` tunes on all tasks at once: the upper bound.
"""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.sentences import top
from benchmarks.sentences.contenders import FineTuning
from benchmarks.sentences.data import Domain, area
from benchmarks.sentences.top import Cache, Top, build
from classgrad import seeds
from classgrad.prediction.classifier import novelty
from classgrad.prediction.statistics import ClassStatistics, LinearDiscriminant, unit
from classgrad.tasks import Split

BATCH, EPOCHS = 32, 3


@dataclass
class Numbered:
    """Sentences in the cache, by number, with labels among all intents."""

    numbers: Tensor
    labels: Tensor


@dataclass
class Sentences:
    """All that is learnt and judged, task by task."""

    cache: Cache
    counts: list[int]  # intents of each task
    train: list[Numbered] = field(default_factory=list)
    valid: list[Numbered] = field(default_factory=list)
    test: list[Numbered] = field(default_factory=list)
    strange: dict[str, Tensor] = field(default_factory=dict)  # of no intent


def read(cache: Cache, tasks: list[Domain], strange: dict[str, Tensor]) -> Sentences:
    """Put the sentences of tasks into a cache; `strange` are rows of no intent, by split."""
    found = Sentences(cache, [len(task.intents) for task in tasks])
    first = 0
    for task, count in zip(tasks, found.counts, strict=True):
        for part in ("train", "valid", "test"):
            split: Split = getattr(task, part)
            getattr(found, part).append(Numbered(cache.add(split), split.labels + first))
        first += count
    for part, rows in strange.items():
        found.strange[part] = cache.add(Split(rows, torch.zeros(len(rows), dtype=torch.int64)))
    return found


@dataclass
class Outcome:
    """What is known after all tasks, in per cent; `valid` is what settings are chosen by."""

    valid: float
    test: float  # without the task, among all intents
    with_task: float
    when_learnt: float  # with the task, the mean over tasks right after each
    first: float  # without the task, on the first task's intents
    no_intent: float  # area under the ROC curve, of test sentences
    moved: float  # relative change of features of the first task's sentences since it was learnt
    of_a_core: float  # seconds


@torch.no_grad()
def features(model: Top, numbers: Tensor) -> Tensor:
    """Return embeddings of unit length."""
    lengths = torch.tensor([len(model.cache[0].features[n]) for n in numbers.tolist()])
    found = torch.zeros(len(numbers), top.UNITS)
    for part in lengths.argsort().split(64):
        found[part] = unit(model.embed(numbers[part]))
    return found


def train(
    contender: FineTuning,
    model: Top,
    task: int,
    rows: Numbered,
    offset: int,
    rate: float,
    rng: torch.Generator,
    epochs: int = EPOCHS,
) -> Top:
    """Learn one task; the learning rate falls to zero as a half cosine."""
    with torch.random.fork_rng(devices=[]):  # adapters are drawn from the global generator
        torch.manual_seed(int(torch.randint(2**31, (1,), generator=rng)))
        net = contender.begin_task(model, task)
    others = {id(p) for n, head in enumerate(model.heads) if n != task for p in head.parameters()}
    chosen = [p for p in net.parameters() if p.requires_grad and id(p) not in others]
    optimizer = torch.optim.AdamW(chosen, rate)
    contender.watch(optimizer)
    steps = epochs * -(-len(rows.numbers) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(epochs):
        for part in model.cache[0].batches(rows.numbers, BATCH, rng):
            optimizer.zero_grad()
            logits = net(rows.numbers[part], task)
            loss = functional.cross_entropy(logits, rows.labels[part] - offset)
            (loss + contender.penalty(net)).backward()
            optimizer.step()
            schedule.step()
    return contender.merge(net)


def learn_all(contender: FineTuning, given: Sentences, rate: float, seed: int) -> Outcome:
    """Learn all tasks one after another."""
    begun = time.process_time()
    model = build(given.cache, given.counts, seed)
    rng = seeds.generator(seed, "sentences", "batches")
    statistics = ClassStatistics.empty(0, top.UNITS)
    offset, when_learnt = 0, []
    then = torch.zeros(0)
    for task, (rows, count) in enumerate(zip(given.train, given.counts, strict=True)):
        if rate:
            model = train(contender, model, task, rows, offset, rate, rng)
        part = ClassStatistics.empty(count, top.UNITS)
        part.add(features(model, rows.numbers), rows.labels - offset)
        statistics.append(part)
        if rate:
            contender.end_task(model, rows.numbers, rows.labels - offset, task)
        own = LinearDiscriminant(part).scores(features(model, given.test[task].numbers))
        when_learnt.append(hits(own.argmax(1) + offset, given.test[task].labels))
        if task == 0:
            then = features(model, given.test[0].numbers)
        offset += count
    seconds = time.process_time() - begun
    now = features(model, given.test[0].numbers)
    moved = float((now - then).norm() / then.norm())
    return outcome(model, given, statistics, when_learnt, moved, seconds)


def together(given: Sentences, rate: float, seed: int) -> Outcome:
    """Learn all tasks at once, as one with all intents."""
    begun = time.process_time()
    model = build(given.cache, [sum(given.counts)], seed)
    rng = seeds.generator(seed, "sentences", "batches")
    every = Numbered(
        torch.cat([rows.numbers for rows in given.train]),
        torch.cat([rows.labels for rows in given.train]),
    )
    model = train(FineTuning(), model, 0, every, 0, rate, rng)
    statistics = ClassStatistics.empty(sum(given.counts), top.UNITS)
    statistics.add(features(model, every.numbers), every.labels)
    return outcome(model, given, statistics, [], 0.0, time.process_time() - begun)


def outcome(
    model: Top,
    given: Sentences,
    statistics: ClassStatistics,
    when_learnt: list[float],
    moved: float,
    seconds: float,
) -> Outcome:
    """Return what the last model and the statistics of all classes make of all sentences."""
    discriminant = LinearDiscriminant(statistics)

    def judged(parts: list[Numbered]) -> tuple[list[float], list[float], Tensor]:
        free, with_task, distances, offset = [], [], [], 0
        for rows, count in zip(parts, given.counts, strict=True):
            x = features(model, rows.numbers)
            scores = discriminant.scores(x)
            free.append(hits(scores.argmax(1), rows.labels))
            own = scores[:, offset : offset + count].argmax(1) + offset
            with_task.append(hits(own, rows.labels))
            distances.append(discriminant.distances(x))
            offset += count
        return free, with_task, torch.cat(distances)

    valid, _, _ = judged(given.valid)
    test, with_task, distances = judged(given.test)
    strange = discriminant.distances(features(model, given.strange["test"]))
    return Outcome(
        valid=mean(valid),
        test=mean(test),
        with_task=mean(with_task),
        when_learnt=mean(when_learnt) if when_learnt else mean(with_task),
        first=test[0],
        no_intent=100 * area(-novelty(distances), -novelty(strange)),
        moved=100 * moved,
        of_a_core=round(seconds, 1),
    )


def hits(answers: Tensor, labels: Tensor) -> float:
    """Return the share of right answers in per cent."""
    return 100 * float((answers == labels).double().mean())


def mean(values: list[float]) -> float:
    """Return the mean; all tasks have as many sentences."""
    return sum(values) / len(values)
