"""What every benchmark in the table promises; those on real data when CLASSGRAD_DATA is set."""

import os
from functools import lru_cache

import pytest
import torch

from classgrad import benchmarks, data
from classgrad.benchmarks import BENCHMARKS

pytestmark = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                bool(benchmark.datasets) and not os.environ.get("CLASSGRAD_DATA"),
                reason="CLASSGRAD_DATA is not set: no real data",
            ),
        )
        for name, benchmark in BENCHMARKS.items()
    ],
    scope="module",  # all tests of a benchmark one after another: they share what is loaded
)


@pytest.fixture(autouse=True, scope="module")
def files_are_read_once():
    """Streams are made anew for every test, of files that were read once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", lru_cache(maxsize=10)(data.load))  # five datasets, two splits
        yield


@lru_cache(maxsize=1)  # up to 300 MB
def load(name):
    return benchmarks.load(name, seed=1)


def test_gives_a_stream_whose_parts_do_not_overlap(name):
    stream = load(name)
    assert stream.name == name
    for task in stream:
        assert len(task.train) > len(task.valid) > 0
    for task in stream[:: max(1, len(stream) // 5)]:
        test, train, valid = (
            {row.tobytes() for row in split.images.numpy()}
            for split in (stream.test(task.id), task.train, task.valid)
        )
        # A few images stand twice in some releases; whole sets must not be shared.
        assert len(train & test) < 0.03 * len(test)
        assert len(train & valid) < 0.05 * len(valid)


def test_is_the_same_for_the_same_seed(name):
    one, two = load(name), benchmarks.load(name, seed=1)
    for a, b in zip(one, two, strict=True):
        assert torch.equal(a.train.images, b.train.images)
        x = a.train.unit_images(slice(0, 5))
        assert torch.equal(a.transform(x), b.transform(x))


def test_test_data_do_not_depend_on_the_seed(name):
    one, two = load(name), benchmarks.load(name, seed=2)
    for task in range(len(one)):
        assert torch.equal(one.test(task).images, two.test(task).images)


def test_takes_fewer_images_and_leaves_no_class_without_a_training_image(name):
    """Even if nearly all images are kept for validation."""
    stream = benchmarks.load(name, valid_fraction=0.999, train_per_class=3, test_per_class=5)
    for task in stream:
        assert torch.bincount(stream.test(task.id).labels).tolist() == [5] * task.classes
        per_class = torch.bincount(task.train.labels, minlength=task.classes)
        assert 1 <= per_class.min() <= per_class.max() <= 3
