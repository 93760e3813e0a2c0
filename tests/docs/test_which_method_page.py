"""The page on choosing a method says of each what the code and the records say."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from classgrad import Learner, Training, UserError
from classgrad.methods import METHODS
from learner.stored_states import DATA
from oracles.models import built

pytestmark = pytest.mark.docs

PAGE = (Path(__file__).parents[2] / "docs" / "which-method.md").read_text()
GROWING = {"pgn", "den", "rcl", "apd", "apd2", "stl"}
SAMPLES = {"er", "agem", "gem", "icarl"}
OTHERWISE = SAMPLES | GROWING | {"hat", "trgp", "multitask", "finetune", "imm"}


def cells(head):
    lines = PAGE.split(head)[1].split("\n\n")[0].split("\n<!--")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


TABLE = {re.findall(r"\[(\w+)\]", row[0])[0]: row[1:] for row in cells("| method | kept |")}
FIGURES = {row[0]: row[1:] for row in cells("| method | ACC % |")}


def number(name, column):
    """Return a mean of the filled table: 1 is BWT, 2 and 3 are without the task, 4 seconds."""
    return float(FIGURES[name][column].split()[0])


def test_every_method_is_on_the_page():
    assert TABLE.keys() == METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_what_a_learner_takes_and_what_grows_is_as_the_page_says(name):
    kept, learner, own, grows, needed, _ = TABLE[name]
    assert (learner == "yes") == METHODS[name].rehearsal_free
    assert (kept == "samples") == (name in SAMPLES)
    assert (grows == "yes") == (name in GROWING)
    assert (own == "-") == (learner == "no")
    assert (needed == "yes") == (name in GROWING | {"hat", "trgp"})


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[1] == "yes"])
def test_which_methods_take_a_trunk_of_ones_own_is_as_the_page_says(name):
    trunk = built(lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU())).float()
    rng = torch.Generator().manual_seed(1)
    images, labels = torch.rand(16, 3, 2, 2, generator=rng), torch.arange(16) % 2
    learner = Learner(trunk, METHODS[name](), training=Training(epochs=1, batch_size=8))
    if TABLE[name][2] == "yes":
        for task in ("one", "two"):
            learner.learn(task, (images, labels))
    else:
        with pytest.raises(UserError, match="cannot tell how the layers"):
            learner.learn("one", (images, labels))


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row[1] == "yes"])
def test_whether_the_task_is_needed_is_as_the_page_says(name):
    net = Learner.load(DATA / "0.1.0" / name).net
    assert net.task_dependent == (TABLE[name][4] == "yes")


def test_what_is_said_of_the_records_is_in_them():
    plain = METHODS.keys() - OTHERWISE
    none_lost = {n for n in METHODS if n not in ("imm", "multitask") and number(n, 1) == 0}
    assert none_lost == {"stl", "pgn", "hat", "rcl", "apd", "apd2"}
    capacity = {name: float(row[-1].split()[0]) for name, row in FIGURES.items()}
    assert all(capacity[name] >= 110 for name in none_lost - {"hat"})
    little = {"sgp", "gpm", "cgp", "owm", "ewc", "mas", "si"}
    assert plain == little | {"lwf", "ogd"}
    assert all(number(name, 1) >= -1.2 for name in little)
    assert max(number(name, 1) for name in ("lwf", "ogd")) < -4
    assert max(number(name, 1) for name in ("er", "agem", "gem")) < -4
    assert number("icarl", 1) >= -2.8
    by_head = {name for name in FIGURES if number(name, 2) > number(name, 3)}
    assert by_head == {"pgn"}
    best = max(number(name, 3) for name in FIGURES.keys() - {"multitask"})
    near = {name for name in FIGURES.keys() - {"multitask"} if number(name, 3) > best - 1}
    assert near == {"icarl", "gpm", "mas", "sgp"}
    assert number("cgp", 4) > 3 * number("gpm", 4)
    assert FIGURES["ogd"][5].endswith(" MB")
    assert all(FIGURES[name][5].endswith("kB") for name in ("gpm", "cgp", "sgp", "owm", "trgp"))
