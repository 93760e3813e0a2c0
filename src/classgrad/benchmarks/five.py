"""5-Datasets (Ebrahimi et al., ECCV 2020): five datasets of ten classes, one task each."""

from pathlib import Path
from typing import Any

from classgrad import data, seeds
from classgrad.benchmarks import cifar
from classgrad.benchmarks.base import BenchmarkSettings, Normalise, load_both
from classgrad.tasks import Split, Task, TaskStream


class FiveDatasetsOptions(BenchmarkSettings):
    """Options of the benchmark."""


# In the order of GPM's and CGP's code, with their means and standard deviations. Grey images are
# padded to 32 x 32 and repeated to three channels. Fashion-MNIST is the real one: a common loader
# silently returns MNIST again in its place.
DATASETS = {
    "cifar10": Normalise(cifar.MEAN, cifar.DEVIATION),
    "mnist": Normalise([0.1], [0.2752], padding=2, channels=3),
    "svhn": Normalise([0.4377, 0.4438, 0.4728], [0.198, 0.201, 0.197]),
    "fashion_mnist": Normalise([0.2190], [0.3318], padding=2, channels=3),
    "notmnist": Normalise([0.4254], [0.4501], padding=2, channels=3),
}
# The same at 32 x 32, in the split of HAT, GPM and CGP; used if its files exist.
NOTMNIST32 = Normalise([0.4254], [0.4501], channels=3)


def five_datasets(root: Path | None = None, seed: int = 1, **values: Any) -> TaskStream:
    """CIFAR-10, MNIST, SVHN, Fashion-MNIST and notMNIST one after another."""
    options = FiveDatasetsOptions(**values)
    tasks: list[Task] = []
    tests: list[Split] = []
    notes = list(options.remarks)
    for number, (name, transform) in enumerate(DATASETS.items()):
        if (
            name == "notmnist"
            and (data.data_dir(root) / "notmnist" / "notmnist_train.pkl").exists()
        ):
            name, transform = "notmnist32", NOTMNIST32
        train, test = load_both(name, root, options.held_out)
        title = data.describe(name).title.split(" at ")[0]
        train_split, valid = options.divide(
            Split(train.images, train.labels), seeds.generator(seed, "valid", number)
        )
        # The digits of MNIST and SVHN have the same names but are not the same classes.
        names = tuple(f"{title} {label}" for label in train.class_names)
        tasks.append(Task(number, title, names, train_split, valid, transform))
        tests.append(options.reduce(Split(test.images, test.labels)))
        notes += [f"{title}: {part.note}" for part in (train, test) if part.note]
    return TaskStream("five-datasets", tasks, tests, notes, options.model_dump())
