import os
from pathlib import Path

import pytest
import torch

from classgrad import benchmarks
from classgrad.benchmarks import cifar
from classgrad.cli.options import error_message
from classgrad.data import Images
from classgrad.errors import UserError

ROOT = os.environ.get("CLASSGRAD_DATA")
real = pytest.mark.skipif(not ROOT, reason="CLASSGRAD_DATA is not set: no real data")

# The superclasses as published with CIFAR-100.
PUBLISHED = {
    "aquatic_mammals": "beaver dolphin otter seal whale",
    "fish": "aquarium_fish flatfish ray shark trout",
    "flowers": "orchid poppy rose sunflower tulip",
    "food_containers": "bottle bowl can cup plate",
    "fruit_and_vegetables": "apple mushroom orange pear sweet_pepper",
    "household_electrical_devices": "clock keyboard lamp telephone television",
    "household_furniture": "bed chair couch table wardrobe",
    "insects": "bee beetle butterfly caterpillar cockroach",
    "large_carnivores": "bear leopard lion tiger wolf",
    "large_man-made_outdoor_things": "bridge castle house road skyscraper",
    "large_natural_outdoor_scenes": "cloud forest mountain plain sea",
    "large_omnivores_and_herbivores": "camel cattle chimpanzee elephant kangaroo",
    "medium_mammals": "fox porcupine possum raccoon skunk",
    "non-insect_invertebrates": "crab lobster snail spider worm",
    "people": "baby boy girl man woman",
    "reptiles": "crocodile dinosaur lizard snake turtle",
    "small_mammals": "hamster mouse rabbit shrew squirrel",
    "trees": "maple_tree oak_tree palm_tree pine_tree willow_tree",
    "vehicles_1": "bicycle bus motorcycle pickup_truck train",
    "vehicles_2": "lawn_mower rocket streetcar tank tractor",
}


def small(per_class: int) -> Images:
    """A hundred classes; the first value of an image is its label."""
    labels = torch.arange(100).repeat(per_class)
    images = torch.zeros(len(labels), 3, 32, 32, dtype=torch.uint8)
    images[:, 0, 0, 0] = labels.to(torch.uint8)
    names = tuple(f"class {label}" for label in range(100))
    upper = tuple(f"group {number}" for number in range(20))
    return Images(images, labels, names, labels // 5, upper, "complete", "as released")


@pytest.fixture
def without_files(monkeypatch):
    monkeypatch.setattr(cifar, "load_both", lambda *_: (small(20), small(3)))


@pytest.mark.parametrize("tasks", [5, 10, 20])
def test_natural_order_deals_the_labels_out_in_turn(without_files, tasks):
    stream = benchmarks.split_cifar100(tasks=tasks)
    size = 100 // tasks
    assert len(stream) == tasks
    for task in stream:
        first = task.id * size
        assert task.class_names == tuple(f"class {first + i}" for i in range(size))
        assert task.train.images[:, 0, 0, 0].sub(first).equal(task.train.labels.to(torch.uint8))
        assert len(task.valid) == round(0.05 * 20 * size)
        assert len(task.train) + len(task.valid) == 20 * size
        assert len(stream.test(task.id)) == 3 * size


def test_shuffled_order_is_drawn_with_the_seed(without_files):
    def classes(seed):
        stream = benchmarks.split_cifar100(seed=seed, class_order="shuffled")
        return [name for task in stream for name in task.class_names]

    assert classes(1) == classes(1)
    assert classes(1) != classes(2)
    assert sorted(classes(1)) == sorted(small(1).class_names)
    stream = benchmarks.split_cifar100(seed=1, class_order="shuffled")
    task = stream[3]
    names = [f"class {int(value)}" for value in task.train.images[:, 0, 0, 0]]
    assert names == [task.class_names[label] for label in task.train.labels]


def test_inputs_are_normalised_as_in_the_released_code(without_files):
    task = benchmarks.split_cifar100()[0]
    seen = task.transform(torch.ones(2, 3, 32, 32))
    mean = torch.tensor([125.3, 123.0, 113.9]) / 255
    deviation = torch.tensor([63.0, 62.1, 66.7]) / 255
    torch.testing.assert_close(seen[1, :, 5, 5], (1 - mean) / deviation)


@pytest.mark.parametrize("order", "ABCDE")
def test_superclasses_come_in_the_published_orders(without_files, order):
    stream = benchmarks.cifar100_superclass(task_order=order)
    wanted = cifar.ORDERS[order]
    assert sorted(wanted) == list(range(20))
    assert [task.name for task in stream] == [f"group {number}" for number in wanted]
    for task, number in zip(stream, wanted, strict=True):
        assert task.class_names == tuple(f"class {5 * number + i}" for i in range(5))


def test_scrambled_layout_is_that_of_the_published_loaders():
    """Row-major bytes of three planes, read as pixels of three channels, then channels first."""
    row = torch.arange(3072)
    image = row.reshape(1, 3, 32, 32)
    scrambled = cifar.scramble(image)
    for channel, i, j in [(0, 0, 0), (1, 0, 0), (2, 3, 7), (0, 31, 31), (1, 10, 20)]:
        assert scrambled[0, channel, i, j] == row[(i * 32 + j) * 3 + channel]
    assert not torch.equal(scrambled, image)
    assert torch.equal(scrambled.sort().values.flatten().sort().values, row)


def test_both_layouts_hold_the_same_bytes_in_other_places(without_files, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    noise = torch.randint(0, 256, (300, 3, 32, 32), generator=rng, dtype=torch.uint8)
    part = small(3)
    noisy = Images(noise, part.labels, part.class_names, part.coarse, part.coarse_names)
    monkeypatch.setattr(cifar, "load_both", lambda *_: (noisy, noisy))
    plain = benchmarks.cifar100_superclass(layout="image").test(2).images
    mixed = benchmarks.cifar100_superclass(layout="scrambled").test(2).images
    assert not torch.equal(plain, mixed)
    assert torch.equal(plain.flatten(1).sort().values, mixed.flatten(1).sort().values)
    assert torch.equal(mixed, cifar.scramble(plain))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: benchmarks.split_cifar100(tasks=7), "tasks must be 5, 10 or 20"),
        (lambda: benchmarks.split_cifar100(class_order="x"), "class_order must be"),
        (lambda: benchmarks.cifar100_superclass(layout="x"), "layout must be"),
        (lambda: benchmarks.cifar100_superclass(task_order="F"), "task_order must be"),
    ],
)
def test_wrong_options_are_refused(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_missing_data_are_one_line_with_the_command_that_fetches_them(tmp_path):
    with pytest.raises(UserError) as caught:
        benchmarks.split_cifar100(tmp_path)
    assert "classgrad data fetch cifar100" in error_message(caught.value)
    assert "\n" not in str(caught.value)


@real
def test_every_class_is_in_its_published_superclass():
    stream = benchmarks.cifar100_superclass(Path(ROOT))
    result = {task.name: " ".join(task.class_names) for task in stream}
    assert result == PUBLISHED
    assert all(len(stream.test(task.id)) == 500 for task in stream)
    assert all(len(task.train) == 2375 and len(task.valid) == 125 for task in stream)


@real
def test_split_has_the_sizes_of_the_paper():
    stream = benchmarks.split_cifar100(Path(ROOT))
    for task in stream:
        sizes = (len(task.train), len(task.valid), len(stream.test(task.id)))
        assert sizes == (4750, 250, 1000)
    assert stream[0].class_names[:3] == ("apple", "aquarium_fish", "baby")
    assert stream.input_shape == (3, 32, 32)
