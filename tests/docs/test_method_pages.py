"""The page of every method says what the code does: all settings, with the defaults it has."""

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from classgrad.methods import METHODS
from classgrad.methods.structure.hat import HAT
from classgrad.runs.record import RunRecord
from classgrad.runs.spec import Plan, make_plan
from classgrad.training.schedules import Cosine

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "methods"
TUNING = ROOT / "results" / "tuning"
SECTIONS = ["## Equations", "## Settings", "## What it stores", "## Run it"]


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def table(name: str) -> dict[str, str]:
    """Settings of a page: name -> its cell for the default."""
    text = page(name).split("## Settings")[1].split("\n## ")[0]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    if not rows:
        return {}
    column = [cell.strip() for cell in rows[0]].index("default")
    return {re.findall(r"`(\w+)`", row[0])[0]: row[column].strip(" `") for row in rows[1:]}


def written(cell: str) -> object:
    """The value at the start of a cell."""
    word = re.split(r"[ :,(]", cell.replace("`", "").strip())[0]
    try:
        return json.loads(word)
    except ValueError:
        return word


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_is_on_the_page_with_its_default(name):
    defaults = {field: info.default for field, info in METHODS[name].model_fields.items()}
    result = table(name)
    assert result.keys() == defaults.keys()
    for field, cell in result.items():
        assert written(cell) == defaults[field], field


@pytest.mark.parametrize("name", METHODS)
def test_every_page_has_what_a_reader_looks_for(name):
    text = page(name)
    places = [text.index(section) for section in SECTIONS]
    assert places == sorted(places)
    assert f"--method {name}" in text.split("## Run it")[1]
    assert f"({name}.md)" in page("README")


CIFAR = make_plan("split-cifar100", "hat")


def moves_by(plan: Plan, images: int, units: int) -> float:
    """How far HAT's penalty can move an embedding in a task, by at most c smax / 4 U per rate."""
    training, hat = plan.training, plan.method
    assert isinstance(hat, HAT)
    steps = training.epochs * math.ceil(images / training.batch_size)
    schedule = Cosine(training.learning_rate, steps=steps, warmup=training.warmup)
    rates = sum(schedule.rate(step) for step in range(steps)) / (1 - training.momentum)
    return rates * hat.embedding_rate * hat.sparsity * hat.steepness / (4 * units)


def test_how_far_the_penalty_of_hat_moves_an_embedding_with_the_recipe():
    row = r"^\| `([\w-]+)`.*? \| ([\d,]+) \| ([\d,]+) \| (\d+) \| ([\d.]+) \|$"
    rows = re.findall(row, page("hat"), re.MULTILINE)
    assert len(rows) == 7
    for benchmark, images, units, rate, shown in rows:
        plan = make_plan(benchmark, "hat")
        assert plan.method.embedding_rate == float(rate)
        assert plan.training.schedule == "cosine"
        bound = moves_by(plan, int(images.replace(",", "")), int(units.replace(",", "")))
        assert f"{bound:.2g}" == shown, benchmark
    for rate, steepness, shown in [(0.006, 400, "0.4"), (0.02, 400, "1.5"), (0.02, 25, "0.1")]:
        values = {"learning_rate": rate, "steepness": steepness, "embedding_rate": 1}
        plan = make_plan("split-cifar100", "hat", values=values)
        assert f"{moves_by(plan, 4750, 4544):.1f}" == shown
        assert f"up to {shown} " in " ".join(page("hat").split())
    assert (plan.training, plan.method.steepness) == (CIFAR.training, CIFAR.method.steepness)


def trials(study: str, **values: object) -> list[RunRecord]:
    """Return the records of every trial of a study with these values, each seed once."""
    content = json.loads((TUNING / f"{study}.json").read_text())
    found = {}
    for part in [content, *content["earlier"]]:
        for point in part["points"]:
            for folder in point["folders"].values():
                record = RunRecord.load((TUNING / study).parent / folder)
                settings = {**record.method, **record.training, **record.network_options}
                if all(settings[name] == value for name, value in values.items()):
                    found[folder] = record
    return list(found.values())


@pytest.mark.parametrize("rate", [0.05, 0.1])
def test_what_multitask_and_finetune_reach_on_the_digits_is_of_the_records(rate):
    (row,) = re.findall(rf"^\| {rate} \| (.*) \|$", page("multitask"), re.MULTILINE)
    *joint, alone = map(float, row.split(" | "))
    for factor, shown in zip((1, 2, 3, 5), joint, strict=True):
        found = trials(
            "baselines/permuted-digits-multitask",
            epoch_factor=factor,
            learning_rate=rate,
            epochs=10,
        )
        assert len(found) == 3
        mean = sum(record.average_accuracy for record in found) / 3
        assert shown == pytest.approx(mean, abs=0.0501)
    learnt = [
        record.accuracy_matrix[task][task]
        for record in trials("permuted-digits-finetune", learning_rate=rate)
        for task in range(len(record.tasks))
    ]
    assert len(learnt) == 15
    assert alone == pytest.approx(sum(learnt) / 15, abs=0.0501)
    assert joint[2] >= alone  # the default factor makes a bound


def test_the_capacity_of_apd_and_the_memory_of_cgp_are_of_the_records():
    capacity = [
        trials(f"strengths/cifar100-superclass-{name}")[-1].capacity for name in ("apd", "apd2")
    ]
    apd, apd2 = capacity
    assert f"| held-out, seed 101 | {apd:.0f} % | {apd2:.0f} % |" in page("apd")
    assert max(capacity) < 2 * 130  # as published
    kept = {}
    for reading in ("algorithm", "pooled", "released"):
        newest, *_ = [
            record
            for record in trials("readings/split-cifar100-cgp", reading=reading, warmup=6)
            if record.seed == 101
        ]
        kept[reading] = newest.memory_bytes / 1e6
    prototypes = 4 * 100 * (3 * 32**2 + 64 * 14**2 + 128 * 6**2 + 1024 + 2048) / 1e6
    words = " ".join(page("cgp").split())
    was = "have {algorithm:.0f} MB for `algorithm`, {pooled:.0f} for `pooled` and {released:.0f}"
    assert f"{was.format(**kept)} for `released`, of which prototypes are {prototypes:.0f}" in words
    now = {name: (size - prototypes) / 2 + prototypes for name, size in kept.items()}
    half = "{algorithm:.0f}, {pooled:.0f} and {released:.0f} MB".format(**now)
    assert f"the same bases and prototypes are {half}." in words


STUDIED = [
    ("er", "baselines/permuted-digits-er", {"bn_samples": 32}, "{acc} % with 32"),
    ("er", "baselines/permuted-digits-er", {"bn_samples": 8}, "{acc} % with 8"),
    ("den", "baselines/permuted-digits-den", {"shrink": "step"}, "{acc} % with `shrink=step`"),
    ("den", "baselines/permuted-digits-den", {"shrink": "rate"}, "{acc} % with `shrink=rate`"),
    (
        "lwf",
        "baselines/permuted-digits-lwf",
        {"targets": "step"},
        "`targets=step` forgets {lost} points and ends at {acc} %",
    ),
    (
        "lwf",
        "baselines/permuted-digits-lwf",
        {"targets": "task"},
        "`targets=task` forgets {lost} and ends at {acc} %",
    ),
    ("owm", "norms/split-cifar100-owm", {"affine": "task"}, "`affine=task` ends at {acc} %"),
    ("owm", "norms/split-cifar100-owm", {"affine": "first"}, "after the first task, at {acc} %"),
    ("hat", "strengths/split-cifar100-hat", {"steepness": 25}, "by a point, {acc} ± {sd} against"),
    ("hat", "strengths/split-cifar100-hat", {"steepness": 400}, "against {acc} ± {sd}, with"),
    ("hat", "strengths/split-cifar100-hat", {"steepness": 50}, "with {acc} ± {sd} at 50"),
]


def by_seed(records: list[RunRecord]) -> list[RunRecord]:
    """Return the newest of the runs of each seed: a study is repeated with more points."""
    return [
        next(r for r in records if r.seed == seed) for seed in sorted({r.seed for r in records})
    ]


@pytest.mark.parametrize(("name", "study", "values", "text"), STUDIED)
def test_what_settings_are_worth_is_of_the_records(name, study, values, text):
    found = by_seed(trials(study, **values))
    assert [record.seed for record in found] == ([101] if name == "owm" else [101, 102, 103])
    reached = [record.average_accuracy for record in found]
    lost = [-record.backward_transfer for record in found]
    shown = text.format(
        acc=f"{sum(reached) / len(found):.1f}",
        lost=f"{sum(lost) / len(found):.1f}",
        sd=f"{statistics.stdev(reached):.1f}" if len(found) > 1 else "",
    )
    assert shown in " ".join(page(name).split())


def test_what_one_setting_after_another_reaches_is_of_the_records():
    def reached(study, setting, values):
        figures = [f"{trials(study, **{setting: v})[0].average_accuracy:.1f}" for v in values]
        return f"reach {', '.join(figures[:-1])} and {figures[-1]} %"

    rates = reached("masks/split-cifar100-hat", "embedding_rate", (20, 60, 200, 600))
    assert f"20, 60, 200 and 600 {rates}" in " ".join(page("hat").split())
    words = " ".join(page("cgp").split())
    energies = (0.95, 0.97, 0.99)
    cgp = reached("energy/split-cifar100-cgp", "energy", energies)
    assert f"0.95, 0.97 and 0.99 {cgp}" in words
    gpm = reached("energy/split-cifar100-gpm", "energy", energies)
    assert f"So it is for GPM: {gpm.removeprefix('reach ')}" in words


READINGS = ("released", "algorithm", "pooled", "text")
READ = {
    "CIFAR-100 | 150, 4, 0.01, 6 steps": ("readings/split-cifar100-cgp", {"warmup": 6}),
    "CIFAR-100 | 100, 3, 0.02, 60 steps (longer than training)": (
        "readings/split-cifar100-cgp",
        {"warmup": 60},
    ),
    "permuted digits | recipe `fast`": ("baselines/permuted-digits-cgp", {}),
}


@pytest.mark.parametrize("label", READ)
def test_what_the_readings_of_cgp_reach_is_of_the_records(label):
    study, values = READ[label]
    cells = []
    for reading in READINGS:
        found = by_seed(trials(study, reading=reading, **values))
        reached = [record.average_accuracy for record in found]
        if len(found) == 3:
            cells.append(f"{statistics.mean(reached):.1f} ± {statistics.stdev(reached):.1f}")
        else:
            cells.append("")
    assert f"| {label} | {' | '.join(cells)} |".replace("|  |", "| |") in page("cgp")


def test_directions_of_centred_groups_after_ten_tasks_are_of_the_records():
    rows = re.findall(r"^\| (centred, )?η ([\d.]+)(, any samples)? \|(.*)\|$", page("cgp"), re.M)
    assert len(rows) == 5
    for centred, eta, any_samples, cells in rows:
        (record,) = trials(
            "centred/split-cifar100-cgp",
            centred=bool(centred),
            similarity=float(eta),
            correct_only=not any_samples,
        )
        shown = []
        for layer in record.layers:
            groups = len(set(layer.groups))
            shown.append(f"{layer.ranks[-1]}" + (f" ({groups})" if groups > 1 else ""))
        shown += [f"{record.memory_bytes / 1e6:.1f}", f"{record.average_accuracy:.1f}"]
        assert [cell.strip() for cell in cells.split("|")] == shown
