"""Images held out of the training data, in every benchmark, with made-up files of the datasets."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image

from classgrad import benchmarks, data, run
from classgrad.benchmarks import BENCHMARKS
from classgrad.benchmarks.base import HELD_OUT_NOTE, hold_out
from classgrad.benchmarks.digits import digits
from classgrad.data import Images
from classgrad.errors import UserError

PER_CLASS = 15
COLOUR = ("cifar10", "cifar100", "svhn")


def numbered(name, folder, split):
    """Stand in for `data.load`: every image is another; there are no test images."""
    assert split == "train", f"the test images of {name} are read"
    classes = 100 if name == "cifar100" else 10
    labels = torch.arange(classes).repeat(PER_CLASS)
    shape = (3, 32, 32) if name in COLOUR else (1, 28, 28)
    images = torch.zeros(len(labels), *shape, dtype=torch.uint8)
    numbers = torch.arange(len(labels))
    images[:, 0, 0, 0], images[:, 0, 0, 1] = numbers // 256, numbers % 256
    images[:, 0, 0, 2] = len(name)  # the datasets of a stream differ, too
    names = tuple(f"class {label}" for label in range(classes))
    coarse = {}
    if name in ("cifar100", "clinc150"):
        coarse = {"coarse": labels // 5, "coarse_names": names[: classes // 5]}
    return Images(images, labels, names, note=f"{name} as released", **coarse)


@pytest.fixture
def load(monkeypatch, tmp_path):
    """Return what loads a benchmark without the files of its datasets, or a folder of images."""
    monkeypatch.setattr(data, "load", numbered)

    def stream(name, **values):
        if name == "folder":
            rng = np.random.default_rng(0)
            for place in ("a/one", "a/two", "b/one", "b/two"):
                for number in range(PER_CLASS):
                    path = tmp_path / place / f"{number}.png"
                    path.parent.mkdir(parents=True, exist_ok=True)
                    pixels = rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)
                    Image.fromarray(pixels).save(path)
            name, values = f"folder:{tmp_path}", {"image_size": 8, **values}
        return benchmarks.load(name, tmp_path, **values)

    return stream


def counted(split):
    return Counter(
        (int(label), image.numpy().tobytes())
        for image, label in zip(split.images, split.labels, strict=True)
    )


every = pytest.mark.parametrize("name", [*BENCHMARKS, "folder"])


@every
def test_held_out_images_are_a_share_of_each_class_and_in_no_other_part(load, name):
    whole = load(name, held_out=0.01)  # one image of each class, or a few of the digits
    stream = load(name, held_out=0.2)
    for task, before in zip(stream, whole, strict=True):
        held, train, valid = stream.test(task.id), task.train, task.valid
        assert not (counted(held) & counted(train))
        assert not (counted(held) & counted(valid))
        together = counted(held) + counted(train) + counted(valid)
        assert together == sum(
            map(counted, (whole.test(task.id), before.train, before.valid)), Counter()
        )
        total = Counter(label for label, _ in together.elements())
        assert torch.bincount(held.labels).tolist() == [
            round(0.2 * total[label]) for label in range(task.classes)
        ]


@every
def test_held_out_images_are_the_same_for_all_seeds_and_the_notes_name_them(load, name):
    streams = [load(name, seed=seed, held_out=0.2) for seed in (101, 102)]
    for task in range(len(streams[0])):
        one, other = (stream.test(task) for stream in streams)
        assert torch.equal(one.images, other.images)
        assert torch.equal(one.labels, other.labels)
    # Sentences for validation are those released for it.
    same = torch.equal(streams[0][0].valid.images, streams[1][0].valid.images)
    assert same == (name == "clinc150")
    for stream in streams:
        assert stream.notes.count(HELD_OUT_NOTE) == 1
        assert stream.options["held_out"] == 0.2


def test_the_digits_hold_out_no_test_image():
    train, test = digits()
    rest, held = digits(0.3)
    assert counted(rest) + counted(held) == counted(train)
    assert not (counted(held) & counted(test))


def test_folders_hold_out_no_test_image_of_seed_1(load):
    tests = load("folder", seed=1)
    stream = load("folder", seed=101, held_out=0.5)
    for task in stream:
        seen = counted(task.train) + counted(task.valid) + counted(stream.test(task.id))
        assert not (seen & counted(tests.test(task.id)))


def test_fewer_images_are_taken_of_what_is_left_and_of_what_is_held_out():
    stream = benchmarks.load("split-digits", held_out=0.5, train_per_class=7, test_per_class=9)
    for task in stream:
        assert torch.bincount(task.train.labels).tolist() == [7, 7]
        assert torch.bincount(stream.test(task.id).labels).tolist() == [9, 9]


def test_both_parts_have_an_image_of_each_class():
    labels = torch.tensor([0, 0, 1, 1, 1])
    for share in (0.001, 0.999):
        for part in hold_out(labels, share):
            assert labels[part].unique().tolist() == [0, 1]
    with pytest.raises(UserError, match="at least 2 training images of each class, and class 1"):
        hold_out(torch.tensor([0, 0, 1]), 0.5)


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, "some", float("nan")])
def test_other_shares_are_refused(share):
    with pytest.raises(UserError, match=r"^held_out must be "):
        benchmarks.load("split-digits", held_out=share)


def test_a_record_says_what_it_was_judged_on():
    values = {"held_out": 0.2, "epochs": 1, "tasks": 2, "train_per_class": 5}
    record = run("split-digits", "finetune", values=values)
    assert record.benchmark_options["held_out"] == 0.2
    assert record.data_notes == ["judged on held-out training images"]
    usual = run("split-digits", "finetune", values={**values, "held_out": None})
    assert usual.data_notes == []
    assert usual.data != record.data
