"""What a user has: a learner of sentences, with frozen layers or with last blocks that learn."""

import statistics
import time
from typing import Any

import torch

from benchmarks.sentences.data import Domain, area, texts
from classgrad import Learner, Prediction
from classgrad.data.sentences import as_bytes
from classgrad.prediction.statistics import unit
from classgrad.tasks import Split

SINGLE, WARM = 300, 20  # sentences that are predicted one at a time; those before are not counted


def learn(tasks: list[Domain], **options: Any) -> tuple[Learner, dict[str, Any]]:
    """Let a new learner learn tasks; return it with the seconds of each task."""
    learner = Learner(network="minilm", **options)
    wall, cpu = [], []
    for task in tasks:
        begun, used = time.perf_counter(), time.process_time()
        train, valid = named(task, task.train), named(task, task.valid)
        seen = {text for text, _ in train}  # a few are in both splits, with another intent
        valid = [pair for pair in valid if pair[0] not in seen]
        learner.learn(
            task.name,
            train,
            valid=None if learner.tune == "none" else valid,
            classes=list(task.intents),
        )
        wall.append(round(time.perf_counter() - begun, 1))
        cpu.append(round(time.process_time() - used, 1))
    return learner, {"seconds": sum(wall), "of a core": sum(cpu), "of each task": cpu}


def named(task: Domain, split: Split) -> list[tuple[str, str]]:
    """Return the sentences of a split with their intents."""
    intents = [task.intents[label] for label in split.labels.tolist()]
    return list(zip(texts(split), intents, strict=True))


def judge(learner: Learner, tasks: list[Domain], strange: list[str]) -> dict[str, Any]:
    """Return how test sentences are told apart, with no task given, and those of no intent."""
    known: list[float] = []
    answers, wanted = [], []
    for task in tasks:
        for prediction in learner.predict(texts(task.test), batch_size=64):
            answers.append((prediction.task, prediction.name))
            known.append(p_value(prediction))
        wanted += [(task.name, task.intents[label]) for label in task.test.labels.tolist()]
    others = [p_value(one) for one in learner.predict(strange, batch_size=64)]
    right = [one == two for one, two in zip(answers, wanted, strict=True)]
    refused = sum(p <= 0.05 for p in known) / len(known)
    found = sum(p <= 0.05 for p in others) / len(others)
    return {
        "accuracy": 100 * sum(right) / len(right),
        "sentences": len(right),
        "no intent": 100 * area(torch.tensor(known), torch.tensor(others)),
        "refused at 0.05": 100 * refused,
        "found at 0.05": 100 * found,
    }


def p_value(prediction: Prediction) -> float:
    """Return the p-value of a prediction by statistics, which always has one."""
    assert prediction.p_value is not None
    return prediction.p_value


def probabilities(learner: Learner, sentences: list[str]) -> dict[tuple[str, str], torch.Tensor]:
    """Return the probabilities of sentences, by task and intent."""
    rows = learner.predict(sentences, batch_size=64)
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        for guess in row.ranking:
            found.setdefault((guess.task, guess.name), []).append(guess.probability)
    return {key: torch.tensor(values, dtype=torch.float64) for key, values in found.items()}


def farthest(one: Learner, other: Learner, sentences: list[str]) -> float:
    """Return the largest difference between probabilities that two learners give."""
    first, second = probabilities(one, sentences), probabilities(other, sentences)
    assert first.keys() == second.keys()
    return max(float((first[key] - second[key]).abs().max()) for key in first)


def nearest_mean(learner: Learner, tasks: list[Domain]) -> float:
    """Return the accuracy of the nearest class mean by cosine, in per cent."""
    assert learner.classifier is not None
    means = unit(learner.classifier.statistics.means())
    right = []
    for task, learnt in zip(tasks, learner.tasks, strict=True):
        with torch.no_grad():
            rows = as_bytes(texts(task.test), learner.size).split(64)
            x = torch.cat([learner.net.embed(learner.inputs(part), 0) for part in rows])
        numbers = torch.tensor([learnt.numbers[learnt.class_names.index(n)] for n in task.intents])
        right.append((unit(x) @ means.T).argmax(1) == numbers[task.test.labels])
    return 100 * float(torch.cat(right).double().mean())


def one_at_a_time(learner: Learner, sentences: list[str]) -> dict[str, float]:
    """Return the milliseconds of one sentence, the median and the slowest of twenty."""
    wall, cpu = [], []
    for sentence in sentences[: SINGLE + WARM]:
        begun, used = time.perf_counter(), time.process_time()
        learner.predict(sentence)
        wall.append(1000 * (time.perf_counter() - begun))
        cpu.append(1000 * (time.process_time() - used))
    wall, cpu = sorted(wall[WARM:]), cpu[WARM:]
    return {
        "median": round(statistics.median(wall), 1),
        "95 %": round(wall[len(wall) * 19 // 20], 1),
        "median of a core": round(statistics.median(cpu), 1),
    }
