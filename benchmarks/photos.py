"""What a learner with default settings makes of real photos, when nobody tells it the task.

`python -m benchmarks.photos` needs CIFAR-100 in the data directory and writes results/photos.json:

- twelve: 12 classes in 3 tasks, 54 photos of each class, as a new user would start; and the 88
  other classes, none of which was learnt: near ones, of the same superclass as a known one, and
  far ones.
- forty: 80 classes in 40 tasks, 54 photos of each.
- speed: photos of 12 megapixels and thumbnails, from their files to the answers.
- novelty: the factor in `classifier.novelty`, by how well it tells 12 classes from the 88 others,
  on training images alone, over six draws of the 12.
- blocks: 12 classes in 3 tasks, with layers as they are and with last blocks that learn, on
  training images alone, over two draws of the 12.
- drift: how far the features of 2 earlier tasks moved while a third was learnt by gradient steps
  under projection, beside what `Learner.drift` says without their photos.
- hundred: 100 classes in 10 tasks, all 500 photos of each, beside other classifiers on the same
  features: nearest mean, Deep_SLDA in two orders of the classes, RanPAC's ridge, and a ridge on a
  lift that follows from sums alone.

`python -m benchmarks.photos twelve` repeats one of them and keeps the others.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

from benchmarks.machine import describe_machine
from classgrad import CGP, GPM, Learner, Training
from classgrad.data import data_dir
from classgrad.data.cifar import superclasses
from classgrad.data.loading import load
from classgrad.data.pictures import as_pictures
from classgrad.prediction.statistics import ClassStatistics, LinearDiscriminant, unit
from classgrad.tasks import Split

RESULTS = Path(__file__).parent.parent / "results" / "photos.json"
PER_CLASS = 54
UNKNOWN = 0.05
ORDER_SEED = 1  # of the order of classes
BATCH = 64
DRIFT_SEEDS, DRIFT_PHOTOS = (1, 2), 10
GENTLE = Training(epochs=4, batch_size=16, learning_rate=0.001)
BLOCK_DRAWS, BLOCK_RATES, JUDGED = 2, (0.001, 0.003), 40
FACTORS, DRAWS = (0, 0.25, 0.5, 0.7, 0.85, 1), 6
SIZES = {"large": (4000, 3000), "thumbnail": (320, 240)}
SPEED_PHOTOS, DIFFERENT = 1000, 20
RANDOM_FEATURES = 4000  # of RanPAC, and of the lift
RIDGES = [10.0**exponent for exponent in range(-8, 9)]  # as in its code


def main(parts: Sequence[str]) -> None:
    """Measure some parts, or all, and write the figures."""
    content = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    train, test = photos("train"), photos("test")
    for name in parts or PARTS:
        machine = describe_machine([], quick=False) | {"command": "python -m benchmarks.photos"}
        content[name] = {**machine, **PARTS[name](train, test)}
        print(name, json.dumps(content[name]["figures"]), flush=True)
        RESULTS.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def photos(part: str) -> Split:
    """Return the photos of CIFAR-100."""
    data = load("cifar100", data_dir(), part)
    return Split(data.images, data.labels)


def near_and_far(known: Sequence[int], others: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the other classes that share a superclass with a known one, and the rest."""
    coarse = superclasses(load("cifar100", data_dir(), "test")).tolist()
    taken = {coarse[number] for number in known}
    near = [number for number in others if coarse[number] in taken]
    return near, [number for number in others if number not in near]


def class_order() -> list[int]:
    """Return all classes in the order they are learnt."""
    return torch.randperm(100, generator=torch.Generator().manual_seed(ORDER_SEED)).tolist()


def of_classes(split: Split, classes: Sequence[int], count: int) -> tuple[Tensor, list[str]]:
    """Return the first photos of each class, and the names of their classes."""
    chosen = [(split.labels == number).nonzero().flatten()[:count] for number in classes]
    rows = torch.cat(chosen)
    return split.images[rows], [str(number) for number in split.labels[rows].tolist()]


def pictures(images: Tensor, size: int) -> Tensor:
    """Return photos scaled as a learner scales those it reads from files."""
    scaled = [Image.fromarray(image.permute(1, 2, 0).numpy()) for image in images]
    return as_pictures(scaled, size)


def write_folders(folder: Path, split: Split, classes: Sequence[int], count: int) -> None:
    """Write photos as files, in a folder for each class."""
    for number in classes:
        images, _ = of_classes(split, [number], count)
        (folder / str(number)).mkdir(parents=True)
        for index, image in enumerate(images):
            pixels = image.permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(folder / str(number) / f"{index:03}.png")


def learn_tasks(train: Split, tasks: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Let a new learner learn tasks from folders; return it with the seconds that it took."""
    with tempfile.TemporaryDirectory() as place:
        state = Path(place) / "state"
        learner, seconds = Learner(), []
        for number, classes in enumerate(tasks):
            folder = Path(place) / f"task{number}"
            write_folders(folder, train, classes, PER_CLASS)
            begun = time.perf_counter()
            learner.learn(f"task {number}", folder, checkpoint_dir=state)
            seconds.append(time.perf_counter() - begun)
        newest = sorted((state / "checkpoints").glob("[0-9]*"))[-1]
        size = sum(file.stat().st_size for file in newest.iterdir())
    return {"learner": learner, "seconds": seconds, "bytes": size}


def predicted(learner: Learner, images: Tensor) -> list[Any]:
    """Return predictions without the task."""
    return learner.predict(pictures(images, learner.size), batch_size=BATCH, unknown=UNKNOWN)


def share(values: Sequence[bool]) -> float:
    """Return the share of true values, in per cent."""
    return 100 * sum(values) / len(values)


def area_under_curve(known: Tensor, unknown: Tensor) -> float:
    """Return how often an unknown sample has the lower p-value; equal ones count half."""
    difference = known[:, None] - unknown
    return float((difference > 0).double().mean() + (difference == 0).double().mean() / 2)


def accepted_at(known: Tensor, unknown: Tensor, kept: float = 0.95) -> float:
    """Return the per cent of unknown samples that pass where this share of the known ones does."""
    limit = torch.quantile(known.double(), 1 - kept, interpolation="lower")
    return 100 * float((unknown >= limit).double().mean())


def twelve(train: Split, test: Split) -> dict[str, Any]:
    """Learn 12 classes in 3 tasks; meet them again, and 88 others."""
    order = class_order()
    known, others = order[:12], order[12:]
    made = learn_tasks(train, [known[:4], known[4:8], known[8:]])
    images, names = of_classes(test, known, 100)
    answers = predicted(made["learner"], images)
    strangers = predicted(made["learner"], of_classes(test, others, 10)[0])
    values = [torch.tensor([one.p_value for one in part]) for part in (answers, strangers)]
    of_stranger = torch.tensor([int(n) for n in of_classes(test, others, 10)[1]])
    near, far = (
        values[1][torch.isin(of_stranger, torch.tensor(part))]
        for part in near_and_far(known, others)
    )
    correct = [one.name == name for one, name in zip(answers, names, strict=True)]
    confidence = torch.tensor([one.probability for one in answers])
    learnt = made["learner"].tasks[-1].task_free
    return {
        "classes": known,
        "figures": {
            "accuracy": share(correct),
            "accuracy_printed": learnt["accuracy"],
            "seconds": sum(made["seconds"]),
            "known_refused": share([not one.known for one in answers]),
            "unknown_refused": share([not one.known for one in strangers]),
            "area_under_curve": area_under_curve(*values),
            "area_near": area_under_curve(values[0], near),
            "area_far": area_under_curve(values[0], far),
            "unknown_accepted_at_95": accepted_at(values[0], values[1]),
            "mean_confidence": 100 * float(confidence.mean()),
        },
    }


def forty(train: Split, test: Split) -> dict[str, Any]:
    """Learn 80 classes in 40 tasks."""
    known = class_order()[:80]
    made = learn_tasks(train, [known[i : i + 2] for i in range(0, 80, 2)])
    images, names = of_classes(test, known, 30)
    answers = predicted(made["learner"], images)
    first = learn_tasks(train, [known[:2]])
    return {
        "figures": {
            "accuracy": share([a.name == name for a, name in zip(answers, names, strict=True)]),
            "seconds": sum(made["seconds"]),
            "seconds_last_task": made["seconds"][-1],
            "state_megabytes": made["bytes"] / 1e6,
            "milliseconds_per_photo": milliseconds(made["learner"], images[:1]),
            "milliseconds_after_one_task": milliseconds(first["learner"], images[:1]),
        }
    }


def milliseconds(learner: Learner, image: Tensor) -> float:
    """Return how long the prediction of one photo takes, the best of 20."""
    one, times = pictures(image, learner.size), []
    for _ in range(20):
        begun = time.perf_counter()
        learner.predict(one)
        times.append(time.perf_counter() - begun)
    return 1000 * min(times)


def speed(train: Split, test: Split) -> dict[str, Any]:
    """Predict photos of 12 megapixels one by one and in batches, and thumbnails in batches."""
    learner = learn_tasks(train, [class_order()[:4]])["learner"]
    figures = {}
    with tempfile.TemporaryDirectory() as place:
        for name, size in SIZES.items():
            files = []
            for number, image in enumerate(test.images[:DIFFERENT]):
                pixels = Image.fromarray(image.permute(1, 2, 0).numpy())
                files.append(Path(place) / f"{name}{number}.jpg")
                pixels.resize(size, Image.Resampling.BICUBIC).save(files[-1], quality=90)
            times = []
            for file in files:
                begun = time.perf_counter()
                learner.predict(file)
                times.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            learner.predict(files * (SPEED_PHOTOS // DIFFERENT), batch_size=BATCH)
            figures[f"{name}_milliseconds"] = 1000 * min(times)
            figures[f"{name}_per_second"] = SPEED_PHOTOS / (time.perf_counter() - begun)
    return {"photos": SPEED_PHOTOS, "files": DIFFERENT, "sizes": SIZES, "figures": figures}


@torch.no_grad()
def novelty(train: Split, test: Split) -> dict[str, Any]:
    """Compare factors of the mean distance in the measure of novelty, on training images."""
    count = PER_CLASS + 40
    images, _ = of_classes(train, range(100), count)
    x = unit(features(started(train), images)).reshape(100, count, -1)
    areas: dict[str, list[float]] = {f"{factor:g}": [] for factor in FACTORS}
    for seed in range(DRAWS):
        order = torch.randperm(100, generator=torch.Generator().manual_seed(100 + seed))
        known, others = x[order[:12]], x[order[12:]]
        statistics = ClassStatistics.empty(12, x.shape[-1])
        labels = torch.arange(12).repeat_interleave(PER_CLASS)
        statistics.add(known[:, :PER_CLASS].flatten(0, 1), labels)
        discriminant = LinearDiscriminant(statistics)
        new = discriminant.distances(known[:, PER_CLASS:].flatten(0, 1))
        strange = discriminant.distances(others[:, PER_CLASS : PER_CLASS + 10].flatten(0, 1))
        for factor in FACTORS:
            one, two = (-(d.min(1).values - factor * d.mean(1)) for d in (new, strange))
            areas[f"{factor:g}"].append(area_under_curve(one, two))
    return {"figures": {factor: sum(values) / DRAWS for factor, values in areas.items()}}


def blocks(train: Split, test: Split) -> dict[str, Any]:
    """Compare layers as they are with last blocks that learn, on training images."""
    figures: dict[str, list[float]] = {}
    for seed in range(BLOCK_DRAWS):
        order = torch.randperm(100, generator=torch.Generator().manual_seed(300 + seed)).tolist()
        tasks = [order[first : first + 4] for first in (0, 4, 8)]
        learners = {"none": Learner(seed=seed)}
        for method in (GPM(), CGP(contrast=0)):
            for rate in BLOCK_RATES:
                training = GENTLE.replace(learning_rate=rate)
                learners[f"{method.name}, rate {rate:g}"] = Learner(
                    method=method, tune="last", training=training, seed=seed
                )
        for name, learner in learners.items():
            figures.setdefault(name, []).append(judged(learner, train, tasks))
    return {"training": GENTLE.model_dump(), "photos": PER_CLASS, "figures": figures}


def judged(learner: Learner, train: Split, tasks: Sequence[Sequence[int]]) -> float:
    """Learn tasks; return the accuracy without the task on training images not learnt."""
    new: list[Tensor] = []
    wanted: list[str] = []
    for number, classes in enumerate(tasks):
        images, names = of_classes(train, classes, PER_CLASS + JUDGED)
        learnt = torch.arange(len(names)) % (PER_CLASS + JUDGED) < PER_CLASS
        given = [name for name, one in zip(names, learnt, strict=True) if one]
        learner.learn(f"task {number}", (pictures(images[learnt], learner.size), given))
        new.append(images[~learnt])
        wanted += [name for name, one in zip(names, learnt, strict=True) if not one]
    answers = predicted(learner, torch.cat(new))
    return share([one.name == name for one, name in zip(answers, wanted, strict=True)])


def drift(train: Split, test: Split) -> dict[str, Any]:
    """Compare the drift that a learner reports with the movement of features, with the photos."""
    figures = {}
    for method in (GPM(), CGP(contrast=0)):
        for tune in ("last", "all"):
            rows = []
            for seed in DRIFT_SEEDS:
                learner = Learner(method=method, tune=tune, training=GENTLE, seed=seed)
                rows += [
                    {"moved": moved, "bound": one.bound, "estimate": one.estimate}
                    for one, moved in followed(learner, train, seed)
                ]
            figures[f"{method.name} {tune}"] = rows
    return {"training": GENTLE.model_dump(), "seeds": list(DRIFT_SEEDS), "figures": figures}


@torch.no_grad()
def followed(learner: Learner, train: Split, seed: int) -> list[tuple[Any, float]]:
    """Learn 3 tasks of 4 classes; return (drift, how far features moved) of the first two."""
    order = torch.randperm(100, generator=torch.Generator().manual_seed(200 + seed)).tolist()
    known = []
    for number in range(3):
        images, names = of_classes(train, order[4 * number : 4 * number + 4], DRIFT_PHOTOS)
        with torch.enable_grad():
            learner.learn(f"task {number}", (pictures(images, learner.size), names))
        known.append((images, features(learner, images)))
    moved = [float((features(learner, x) - then).norm() / then.norm()) for x, then in known[:2]]
    return list(zip(learner.drift(), moved, strict=False))


def started(train: Split) -> Learner:
    """Return a learner with its network."""
    learner = Learner()
    images, names = of_classes(train, [0, 1], 2)
    learner.learn("any", (pictures(images, learner.size), names))
    return learner


def features(learner: Learner, images: Tensor) -> Tensor:
    """Return the embeddings of photos."""
    parts = []
    for batch in images.split(BATCH):
        parts.append(learner.net.embed(learner.inputs(pictures(batch, learner.size)), 0))
    return torch.cat(parts)


@torch.no_grad()
def hundred(train: Split, test: Split) -> dict[str, Any]:
    """Tell 100 classes apart, with all photos, by several classifiers on the same features."""
    learner = started(train)
    place = torch.tensor(class_order()).argsort()
    x, labels = features(learner, train.images), place[train.labels]
    new, answers = features(learner, test.images), place[test.labels]
    ours = ClassStatistics.empty(100, x.shape[1])
    ours.add(unit(x), labels)
    other = ClassStatistics.empty(0, x.shape[1])  # tasks in reverse, and appended
    for task in range(9, -1, -1):
        rows = ((labels >= 10 * task) & (labels < 10 * task + 10)).nonzero().flatten().flip(0)
        part = ClassStatistics.empty(10, x.shape[1])
        part.add(unit(x[rows]), labels[rows] - 10 * task)
        other.append(part)
    scores = LinearDiscriminant(ours).scores(unit(new))
    back = torch.cat([torch.arange(10 * task, 10 * task + 10) for task in range(9, -1, -1)])
    moved = LinearDiscriminant(other).scores(unit(new))[:, back.argsort()]
    means = functional.normalize(ours.means().float(), dim=1)

    def accuracy(predictions: Tensor) -> float:
        return 100 * float((predictions == answers).double().mean())

    return {
        "figures": {
            "accuracy": accuracy(scores.argmax(1)),
            "nearest_mean": accuracy((unit(new) @ means.T).argmax(1)),
            "deep_slda": accuracy(streaming_lda(x, labels, new, range(100))),
            "deep_slda_reversed": accuracy(streaming_lda(x, labels, new, range(99, -1, -1))),
            "ranpac": accuracy(random_ridge(x, labels, new)),
            "lifted": accuracy(lifted_ridge(x, labels, new)),
            "order_changes_scores_by": float((scores - moved).abs().max()),
        }
    }


def random_ridge(x: Tensor, labels: Tensor, new: Tensor) -> Tensor:
    """Return the classes of new samples as RanPAC does (McDonnell et al., 2023).

    A ridge regression on random ReLU features. The ridge is chosen on a fifth of the last task,
    which is all that its code has of any task.
    """
    rng = torch.Generator().manual_seed(0)
    lift = torch.randn(x.shape[1], RANDOM_FEATURES, generator=rng)
    products = torch.zeros(RANDOM_FEATURES, RANDOM_FEATURES)
    sums = torch.zeros(RANDOM_FEATURES, 100)

    def add(rows: Tensor) -> None:
        for part in rows.split(5000):
            lifted = (x[part] @ lift).relu_()
            products.addmm_(lifted.T, lifted)
            sums.addmm_(lifted.T, functional.one_hot(labels[part], 100).float())

    add((labels < 90).nonzero().flatten())
    last = (labels >= 90).nonzero().flatten()
    last = last[torch.randperm(len(last), generator=rng)]
    held, kept = last.split([len(last) // 5, len(last) - len(last) // 5])
    add(kept)
    lifted, wanted = (x[held] @ lift).relu_(), functional.one_hot(labels[held], 100).float()

    def solved(ridge: float) -> Tensor:
        square = (products + ridge * torch.eye(RANDOM_FEATURES)).double()
        weights: Tensor = torch.linalg.solve(square, sums.double()).float()
        return weights

    errors = {ridge: float((lifted @ solved(ridge) - wanted).square().mean()) for ridge in RIDGES}
    add(held)
    weights = solved(min(errors, key=errors.__getitem__))
    return torch.cat([((part @ lift).relu_() @ weights).argmax(1) for part in new.split(5000)])


def lifted_ridge(x: Tensor, labels: Tensor, new: Tensor) -> Tensor:
    """Return the classes of new samples by a ridge on random ReLU features of square roots.

    All of it, the ridge too, follows from sums over samples: in no order, and of no task alone.
    """
    rng = torch.Generator().manual_seed(0)
    lift = torch.randn(x.shape[1], RANDOM_FEATURES, generator=rng)
    products = torch.zeros(RANDOM_FEATURES, RANDOM_FEATURES, dtype=torch.float64)
    classes = int(labels.max()) + 1
    sums = torch.zeros(RANDOM_FEATURES, classes, dtype=torch.float64)

    def lifted(rows: Tensor) -> Tensor:
        features: Tensor = (unit(rows.clamp(min=0).sqrt()) @ lift).relu_().double()
        return features

    for rows, answers in zip(x.split(5000), labels.split(5000), strict=True):
        part = lifted(rows)
        products.addmm_(part.T, part)
        sums.addmm_(part.T, functional.one_hot(answers, classes).double())
    weights = ridge_by_gcv(products, sums, len(x))
    return torch.cat([(lifted(part) @ weights).argmax(1) for part in new.split(5000)])


def ridge_by_gcv(products: Tensor, sums: Tensor, count: int) -> Tensor:
    """Return the weights (features, classes) of the ridge with the least GCV score (Golub, 1979).

    Of `count` samples x in one class each, `products` is Σ x xᵀ, and `sums` has Σ x of each class.
    With a ridge λ the residual is N - 2 tr(Wᵀ S) + tr(Wᵀ G W), and h = tr(G (G + λ)⁻¹); the score
    is residual / (1 - h / N)².
    """
    values, vectors = torch.linalg.eigh(products)
    values, rotated = values.clamp(min=0), vectors.T @ sums

    def score(ridge: float) -> float:
        shrunk = rotated / (values + ridge)[:, None]
        fitted = (shrunk * rotated).sum()
        residual = count - 2 * fitted + (values[:, None] * shrunk.square()).sum()
        used = (values / (values + ridge)).sum()
        return float(residual / (1 - used / count) ** 2)

    scale = float(values.mean())
    best = min((scale * ridge for ridge in RIDGES), key=score)
    weights: Tensor = vectors @ (rotated / (values + best)[:, None])
    return weights


def streaming_lda(x: Tensor, labels: Tensor, new: Tensor, order: Sequence[int]) -> Tensor:
    """Return the classes of new samples by deep streaming LDA (Hayes and Kanan, 2020).

    Its covariance is updated sample by sample, by how far each is from the mean of its class so
    far, here class after class in this order, and is shrunk by 1e-4.
    """
    d = x.shape[1]
    means = torch.zeros(100, d, dtype=torch.float64)
    covariance, seen = torch.zeros(d, d, dtype=torch.float64), 0
    for number in order:
        rows = x[labels == number].double()
        earlier = torch.cat([torch.zeros(1, d).double(), rows.cumsum(0)[:-1]])
        earlier /= torch.arange(len(rows)).clamp(min=1)[:, None]
        steps = seen + torch.arange(len(rows)).double()
        deviations = (rows - earlier) * (steps / (steps + 1)).sqrt()[:, None]
        covariance += deviations.T @ deviations
        seen += len(rows)
        means[number] = rows.mean(0)
    shrunk = (1 - 1e-4) * covariance / seen + 1e-4 * torch.eye(d, dtype=torch.float64)
    weights = torch.linalg.solve(shrunk, means.T)
    scores: Tensor = new.double() @ weights - (means * weights.T).sum(1) / 2
    return scores.argmax(1)


PARTS = {
    "twelve": twelve,
    "forty": forty,
    "speed": speed,
    "novelty": novelty,
    "blocks": blocks,
    "drift": drift,
    "hundred": hundred,
}

if __name__ == "__main__":
    main(sys.argv[1:])
