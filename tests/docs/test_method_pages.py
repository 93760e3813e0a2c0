"""The page of every method says what the code does: all settings, with the defaults it has."""

import json
import math
import re
from pathlib import Path

import pytest

from classgrad.methods import METHODS
from classgrad.methods.structure.hat import HAT
from classgrad.runs.spec import Plan, make_plan
from classgrad.training.schedules import Cosine

pytestmark = pytest.mark.docs

PAGES = Path(__file__).parents[2] / "docs" / "methods"
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
