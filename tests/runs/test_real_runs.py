"""Short runs on the real datasets, two tasks each, with the networks of the paper."""

import os
from pathlib import Path

import pytest

from classgrad import benchmarks, run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, TaskStream

ROOT = os.environ.get("CLASSGRAD_DATA")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ROOT, reason="CLASSGRAD_DATA is not set: no real data"),
]


def beginning(name, **options):
    """Return the first two tasks with few images."""
    full = benchmarks.load(name, Path(ROOT), **options)
    few = [full.test(i) for i in range(2)]
    tests = [Split(test.images[:40], test.labels[:40]) for test in few]
    return TaskStream(name, full[:2], tests, full.notes)


@pytest.mark.parametrize(
    ("name", "options", "recipe"),
    [
        ("split-cifar100", {}, "fast"),
        ("cifar100-superclass", {"layout": "scrambled"}, "paper"),
        ("five-datasets", {}, "paper"),
        ("permuted-mnist", {}, "fast"),
    ],
)
def test_cgp_learns_the_beginning_of(name, options, recipe):
    deep = name in ("five-datasets", "split-cifar100")
    few = 4 if deep else 8 if name == "cifar100-superclass" else 30
    stream = beginning(name, train_per_class=few, **options)
    values = {"batch_size": 10, "learning_rate": 0.02, "momentum": 0.8, "epochs": 1 if deep else 4}
    if name == "five-datasets":
        values["width"] = 5  # channels of the first stage: a quarter of the paper's
    record = run(stream, make_plan(name, "cgp", recipe=recipe).method, recipe=recipe, values=values)
    assert record.complete
    assert record.network == {
        "split-cifar100": "alexnet5",
        "cifar100-superclass": "lenet5",
        "five-datasets": "resnet18",
    }.get(name, "mlp")
    assert record.data_notes
    if name == "five-datasets":  # two notes on every dataset, also on a subset
        assert len(record.data_notes) == 10
        cifar = record.data_notes[0]
        assert "of 50,000" in cifar or "50,000 training images, as released" in cifar
    if not deep:  # with four images of each class a deep network learns nothing to speak of
        assert record.accuracy_matrix[0][0] > 1.15 * 100 / stream[0].classes
    for layer in record.layers:
        assert 0 < layer.ranks[0] <= layer.ranks[1] <= layer.dimension


def test_an_mlp_learns_cifar():
    stream = beginning("split-cifar100", train_per_class=5)
    values = {"epochs": 1, "learning_rate": 0.02}
    assert run(stream, "gpm", network="mlp", values=values).complete
