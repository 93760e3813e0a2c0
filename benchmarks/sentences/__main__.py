"""The command line: python -m benchmarks.sentences [PART ...].

Parts are frozen, tuned, and the contenders of `compare` by their names; all by default. What is
measured is put into results/sentences.json, beside what is there.
"""

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.machine import describe_machine
from benchmarks.sentences import learnt, tuned
from benchmarks.sentences.contenders import CONTENDERS, FineTuning
from benchmarks.sentences.data import domains, texts, without
from benchmarks.sentences.top import Cache, pretrained
from classgrad.cli import fail
from classgrad.data.sentences import as_bytes
from classgrad.errors import UserError

RESULTS = Path(__file__).parents[2] / "results" / "sentences.json"
SEED = 1
RATES = (1e-4, 3e-4)  # of AdamW, to choose from by validation sentences
GOALS = {
    "frozen": 93.0,
    "tuned": 95.0,
    "order": 1e-9,
    "no intent": 96.0,
    "milliseconds": 15,
    "minutes": {"frozen": 3, "tuned": 30},
}


def main(parts: list[str]) -> None:
    """Measure some parts, or all, and write the figures."""
    torch.set_num_threads(1)
    known: dict[str, Callable[[], dict[str, Any]]] = {"frozen": frozen, "tuned": tuned_learner}
    given: list[tuned.Sentences] = []  # read once, when first needed
    for label in ("frozen blocks", *[one.label for one in CONTENDERS], "all tasks at once"):
        known[label] = lambda label=label: contender(label, given)  # type: ignore[misc]
    for name in parts or known:
        if name not in known:
            raise UserError(f"unknown part '{name}': choose of {', '.join(known)}")
        machine = describe_machine([], quick=False) | {"command": "python -m benchmarks.sentences"}
        if "PEFT" in name:
            try:
                machine["versions"]["peft"] = version("peft")
            except PackageNotFoundError:
                raise UserError("PEFT is not installed: use 'make sentences'") from None
        figures = known[name]()
        print(name, json.dumps(figures), flush=True)
        content = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
        content["goals"] = GOALS
        content[name] = {**machine, "seed": SEED, "figures": figures}
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def frozen() -> dict[str, Any]:
    """Learn the tasks in two orders with a learner as it is by default."""
    tasks, strange = domains(), without("test")
    learner, times = learnt.learn(tasks)
    other, _ = learnt.learn(domains("reversed"))
    some = [sentence for task in tasks for sentence in texts(task.test)[::10]]
    return {
        **learnt.judge(learner, tasks, strange),
        "reversed": learnt.judge(other, tasks, strange)["accuracy"],
        "order changes probabilities by": learnt.farthest(learner, other, some + strange[:100]),
        "nearest mean": learnt.nearest_mean(learner, tasks),
        "milliseconds": learnt.one_at_a_time(learner, some),
        **times,
    }


def tuned_learner() -> dict[str, Any]:
    """Learn the tasks with a learner whose last blocks learn, with its defaults."""
    tasks, strange = domains(), without("test")
    learner, times = learnt.learn(tasks, tune="last")
    return {
        "method": learner.method.name,
        **learnt.judge(learner, tasks, strange),
        "training": learner.training.model_dump(),
        **times,
    }


def contender(label: str, given: list[tuned.Sentences]) -> dict[str, Any]:
    """Tune in one of the ways, with each of its settings; return that which is best at the end.

    It is chosen by validation sentences, of all tasks.
    """
    if not given:
        rows = {"test": as_bytes(without("test"))}
        given.append(tuned.read(Cache(pretrained()), domains(), rows))
    kinds = {one.label: one for one in CONTENDERS}
    settings = kinds[label].settings if label in kinds else [{}]
    tried = []
    for values, rate in product(settings, (0.0,) if label == "frozen blocks" else RATES):
        if label == "all tasks at once":
            found = tuned.together(given[0], rate, SEED)
        else:
            way = kinds.get(label, FineTuning)(**values)
            found = tuned.learn_all(way, given[0], rate, SEED)
        tried.append({"settings": values, "rate": rate, **asdict(found)})
        print(label, json.dumps(tried[-1]), flush=True)
    best = max(tried, key=lambda one: one["valid"])
    return {**best, "epochs": tuned.EPOCHS, "batch": tuned.BATCH, "tried": tried}


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except UserError as error:
        fail(str(error))
