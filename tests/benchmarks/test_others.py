"""MNIST, 5-Datasets and the digits."""

import itertools
from pathlib import Path

import pytest
import torch

from classgrad import benchmarks, seeds
from classgrad.benchmarks import five, mnist
from classgrad.benchmarks.base import Normalise, Permute
from classgrad.benchmarks.digits import digits
from classgrad.data import Images


def small(per_class, channels, size, note="as released"):
    labels = torch.arange(10).repeat(per_class)
    images = torch.zeros(len(labels), channels, size, size, dtype=torch.uint8)
    images[:, 0, 0, 0] = labels.to(torch.uint8)
    return Images(images, labels, tuple("0123456789"), note=note)


def test_permuted_mnist_has_another_order_in_every_task(monkeypatch):
    monkeypatch.setattr(mnist, "load_both", lambda *_: (small(20, 1, 28), small(3, 1, 28)))
    stream = benchmarks.permuted_mnist()
    assert len(stream) == 10
    assert stream.input_shape == (1, 28, 28)
    x = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    seen = [task.transform(x) for task in stream]
    assert torch.equal(seen[0], x)
    for one, other in itertools.pairwise(seen):
        assert not torch.equal(one, other)
        assert torch.equal(one.flatten(1).sort().values, other.flatten(1).sort().values)
    assert len(stream[0].valid) == 20
    assert stream.notes == ("as released", "as released")


def test_split_mnist_has_two_digits_in_every_task(monkeypatch):
    monkeypatch.setattr(mnist, "load_both", lambda *_: (small(20, 1, 28), small(3, 1, 28)))
    stream = benchmarks.split_mnist()
    assert [task.class_names for task in stream][2] == ("4", "5")
    assert stream[2].train.images[:, 0, 0, 0].unique().tolist() == [4, 5]


def test_five_datasets_come_in_order_with_their_own_normalisation(monkeypatch):
    asked = []

    def load(name, root, held_out):
        asked.append(name)
        shape = (3, 32) if name in ("cifar10", "svhn") else (1, 28)
        return small(20, *shape, note=f"{name} subset"), small(3, *shape)

    monkeypatch.setattr(five, "load_both", load)
    stream = benchmarks.five_datasets(Path("nowhere"))
    assert asked == ["cifar10", "mnist", "svhn", "fashion_mnist", "notmnist"]
    titles = [task.name for task in stream]
    assert titles == ["CIFAR-10", "MNIST", "SVHN", "Fashion-MNIST", "notMNIST"]
    assert len(stream.class_names) == 50
    assert "SVHN: svhn subset" in stream.notes
    for task in stream:
        x = task.transform(task.train.unit_images(slice(0, 2)))
        assert x.shape == (2, 3, 32, 32)
    grey = stream[1].transform(torch.ones(1, 1, 28, 28))
    assert grey[0, :, 16, 16].tolist() == pytest.approx([(1 - 0.1) / 0.2752] * 3)
    assert grey[0, :, 0, 0].tolist() == pytest.approx([-0.1 / 0.2752] * 3)


def test_five_datasets_prefers_notmnist_in_the_split_of_gpm(monkeypatch, tmp_path):
    (tmp_path / "notmnist").mkdir()
    (tmp_path / "notmnist" / "notmnist_train.pkl").write_bytes(b"")
    asked = []

    def load(name, root, held_out):
        asked.append(name)
        if name in ("mnist", "fashion_mnist"):
            return small(20, 1, 28), small(3, 1, 28)
        channels = 1 if name == "notmnist32" else 3
        return small(20, channels, 32), small(3, channels, 32)

    monkeypatch.setattr(five, "load_both", load)
    stream = benchmarks.five_datasets(tmp_path)
    assert asked[-1] == "notmnist32"
    assert stream[4].transform(torch.ones(1, 1, 32, 32)).shape == (1, 3, 32, 32)


def test_normalise_keeps_precision_and_permute_keeps_shape():
    x = torch.rand(2, 1, 4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert Normalise([0.3], [0.7])(x).dtype == torch.float64
    assert Permute(torch.arange(15, -1, -1))(x).shape == x.shape
    assert torch.equal(Permute(torch.arange(15, -1, -1))(x).flatten(1), x.flatten(1).flip(1))


def test_the_digits_are_those_of_scikit_learn():
    datasets = pytest.importorskip("sklearn.datasets")
    released = datasets.load_digits()
    train, test = digits()
    images = torch.cat([test.images, train.images]).squeeze(1).double()
    order = torch.randperm(len(images), generator=seeds.generator(0, "digits", "test"))
    assert torch.equal(torch.cat([test.labels, train.labels]), torch.tensor(released.target)[order])
    assert torch.equal((images * 16 / 255).round(), torch.tensor(released.images)[order])
