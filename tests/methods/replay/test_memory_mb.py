"""A budget in bytes takes the place of a number of samples."""

import pytest

from classgrad import GPM, run
from classgrad.errors import UserError
from classgrad.methods import METHODS
from classgrad.methods.replay.buffer import MemorySize
from classgrad.runs.run import Run
from classgrad.runs.spec import Plan, make_plan
from streams import blobs

STREAM = blobs(tasks=3)  # images of 64 bytes, labels of 8
QUICK = {"epochs": 2, "batch_size": 12, "width": 8}
# Bytes of a sample, and of the means of nine classes.
COSTS = {"er": (80, 0), "agem": (72, 0), "gem": (72, 0), "icarl": (72, 9 * 8 * 4)}


@pytest.mark.parametrize("name", COSTS)
def test_what_is_kept_fits_and_uses_the_budget(name):
    of_sample, aside = COSTS[name]
    budget = 40 * of_sample + aside + of_sample - 1  # room for 40, not for 41
    by_bytes = run(STREAM, name, values={**QUICK, "memory_mb": budget / 1e6})
    by_count = run(STREAM, name, values={**QUICK, "memory": 40})
    assert by_bytes.accuracy_matrix == by_count.accuracy_matrix
    assert by_bytes.memory_bytes == by_count.memory_bytes
    # An equal share of each task, or of each class, leaves some slots free.
    most = {"er": 40, "agem": 39, "gem": 39, "icarl": 36}[name]
    assert by_bytes.memory_bytes == most * of_sample + aside <= budget


@pytest.mark.parametrize("name", COSTS)
def test_too_little_is_refused_with_what_is_enough(name):
    of_sample, aside = COSTS[name]
    least = {"er": 1, "agem": 3, "gem": 3, "icarl": 9}[name]
    enough = least * of_sample + aside
    with pytest.raises(
        UserError, match=r"memory_mb=.*, room for \d samples?,.*give at least"
    ) as said:
        Run(make_plan(STREAM, name, values={**QUICK, "memory_mb": (enough - 1) / 1e6}), STREAM)
    given = float(str(said.value).rsplit(" ", 1)[1])
    assert given == enough / 1e6
    Run(make_plan(STREAM, name, values={**QUICK, "memory_mb": given}), STREAM)


def test_gem_at_the_bytes_of_gpm():
    gpm = run(STREAM, GPM(), values=QUICK)
    replay = run(STREAM, "gem", values={**QUICK, "memory_mb": gpm.memory_bytes / 1e6})
    assert gpm.memory_bytes - 3 * 72 < replay.memory_bytes <= gpm.memory_bytes


def test_it_takes_the_place_of_the_recipes_number_and_excludes_one_that_is_given():
    assert make_plan("split-digits", "er").method.memory == 100  # the recipe's
    plan = make_plan("split-digits", "er", values={"memory_mb": 0.5})
    assert plan.method.memory_mb == 0.5
    assert plan.identity()["method"] == {"name": "er", "memory_mb": 0.5}
    assert Plan.from_dict(plan.as_dict()).as_dict() == plan.as_dict()
    own = make_plan("split-digits", METHODS["er"](memory_mb=0.5))
    assert own.describes(plan.as_dict())
    for values in ({"memory": 3, "memory_mb": 0.5}, {"memory_mb": 0.5, "memory": 3}):
        with pytest.raises(UserError, match="exclude each other: give one of them"):
            make_plan("split-digits", "er", values=values)
        with pytest.raises(UserError, match="exclude each other: give one of them"):
            METHODS["er"](**values)
    with pytest.raises(UserError, match="exclude each other"):
        make_plan("split-digits", "icarl", values={"K": 3, "memory_mb": 0.5})
    assert METHODS["er"](memory=3).replace(memory_mb=0.5).memory_mb == 0.5
    assert METHODS["er"](memory_mb=0.5).replace(memory=3).memory_mb is None
    assert METHODS["er"](memory=3).replace(memory_mb=None).memory == 3


def test_images_of_different_sizes_all_count_as_the_largest():
    tasks = [*blobs(tasks=1), *blobs(tasks=1, shape=(1, 10, 10))]
    assert MemorySize.of(7, 1080 / 1e6, tasks).samples == 10
    assert MemorySize.of(7, None, tasks).samples == 7
