"""What is still in the state of a learner of a class and of one photo, found by attacks.

An attacker has the state and photos of the class: some that were learnt, the members, and others.
Each attack is made on the state as it is, after `forget_class`, and after `forget_class` with all
images of the class. In a state that has nothing an attack could use, all photos look the same, so
it finds what chance does: 1 of 100 photos, or an area under the curve of 0.5.

- nearest: of one member and 99 others, is the member the nearest to the mean of the class?
- mean, kept: members against others, by the distance to the mean of the class, and by the cosine
  with the nearest of the embeddings that are kept (areas under the curve).
- digests: the share of members, and of others, whose digest with the key of the state is in it.
- covariance, one photo: members against others, by how little of x - μ the shared covariance S
  lacks, (x - μ)ᵀ (|S| + λI)⁻¹ (x - μ), with the better of two λ; μ is the mean of the class or, if
  there is none, that of 50 more photos of the class that the attacker has.
- covariance, two photos: pairs of members against pairs of others, by the same of x - y. For less
  samples than features, differences of members are all that S spans.
- task digest: who has all photos of the task but one, in their order, tries 10 photos in its place.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.photos import area_under_curve, class_order, features, of_classes, pictures
from classgrad import Learner
from classgrad.learner.learner import LookAlikes, SingleImage, TracesStay, keyed
from classgrad.prediction.classifier import StatisticsClassifier, sample_digests
from classgrad.prediction.statistics import unit
from classgrad.tasks import Split, digest

TASK_CLASSES, TARGETS = 6, 3  # so many classes of the first task are attacked, each by itself
# (classes, photos of each, learners with other photos)
SETTINGS = ((12, 1, 3), (12, 5, 1), (12, 54, 1), (100, 54, 1))
MEMBERS, OTHERS, MORE = 54, 100, 50  # photos of a class: learnt at most; others; of the attacker
CANDIDATES = 10  # for the last photo of a task
# λ, of the mean variance: with the smaller one, rounding is enough.
RIDGES = (1e-6, 1e-12)
KEEPING = ("before", "forgotten", "forgotten with images")


def default_learner() -> Learner:
    """Return a new learner, as a new user would make it."""
    return Learner()


@torch.no_grad()
def forgetting(train: Split, test: Split) -> list[dict[str, Any]]:
    """Return the mean of each attack's figures for each size of classes."""
    order = class_order()
    learner = default_learner()
    images = [of_classes(train, [number], MEMBERS + OTHERS + MORE)[0] for number in order[:TARGETS]]
    learner.learn("any", (pictures(images[0][:4], learner.size), ["0", "0", "1", "1"]))
    embeddings = [unit(features(learner, of_class)).double() for of_class in images]
    figures = []
    for classes, count, repeats in SETTINGS:
        rows: dict[str, list[dict[str, float | None]]] = {name: [] for name in KEEPING}
        for repeat in range(repeats):
            learner = default_learner()
            chosen = slice(repeat * count, (repeat + 1) * count)
            given = learn_tasks(learner, train, order[:classes], chosen)
            state = learner.state_dict()
            for target in range(TARGETS):
                own = pictures(images[target][chosen], learner.size)
                for name in KEEPING:
                    learner.load_state_dict(state)
                    stays = True
                    if name != "before":
                        with_images = name == "forgotten with images"
                        stays = forget(learner, str(order[target]), own if with_images else None)
                    rows[name].append(
                        attacks(learner, target, own, chosen, images[target], embeddings[target])
                        | {
                            "task_digest": last_photo(learner, given, target, images[target]),
                            "said_to_stay": float(stays),
                        }
                    )
        figures.append(
            {
                "classes": classes,
                "photos": count,
                "members": TARGETS * repeats * count,
                **{name: averaged(of_name) for name, of_name in rows.items()},
            }
        )
    return figures


def learn_tasks(learner: Learner, train: Split, classes: Sequence[int], chosen: slice) -> Split:
    """Learn these photos of each class; return those of the first task, as they were given."""
    for first in range(0, len(classes), TASK_CLASSES):
        images, labels = [], []
        for place, number in enumerate(classes[first : first + TASK_CLASSES]):
            images.append(of_classes(train, [number], chosen.stop)[0][chosen])
            labels += [place] * len(images[-1])
        names = [str(number) for number in classes[first : first + TASK_CLASSES]]
        given = Split(pictures(torch.cat(images), learner.size), torch.tensor(labels))
        with warnings.catch_warnings():
            for category in (SingleImage, LookAlikes):  # which do not matter here
                warnings.simplefilter("ignore", category)
            learner.learn(
                f"task {first // TASK_CLASSES}", (given.images, given.labels), classes=names
            )
        if not first:
            kept = given
    return kept


def forget(learner: Learner, name: str, images: Tensor | None) -> bool:
    """Forget a class of the first task; return whether it is said that something of it stays."""
    assert learner.classifier is not None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TracesStay)
        learner.forget_class("task 0", name, images)
    return bool(caught) or learner.classifier.statistics.removed > 0


def attacks(
    learner: Learner, target: int, own: Tensor, chosen: slice, images: Tensor, x: Tensor
) -> dict[str, float | None]:
    """Return what each attack finds of a class; `own` are its members, x embeddings of images."""
    assert learner.classifier is not None
    classifier = learner.classifier
    number = learner.tasks[0].numbers[target]
    members, others = x[chosen], x[MEMBERS : MEMBERS + OTHERS]
    strange = pictures(images[MEMBERS : MEMBERS + OTHERS], learner.size)
    known = int(classifier.statistics.counts[number]) > 0
    mean = classifier.statistics.means()[number]
    kept = classifier.kept_features[classifier.kept_classes == number].double()
    near = [-(rows - mean).norm(dim=1) for rows in (members, others)]
    alike = [(rows @ kept.T).max(1).values for rows in (members, others)] if len(kept) else None
    centre = mean if known else x[MEMBERS + OTHERS :].mean(0)
    one, two = by_covariance(
        classifier,
        [(members - centre, others - centre), (members.diff(dim=0), others.diff(dim=0))],
    )
    return {
        "nearest": float((near[0] > near[1][1:].max()).double().mean()) if known else 1 / OTHERS,
        "mean": area_under_curve(near[0], near[1]) if known else 0.5,
        "kept": area_under_curve(alike[0], alike[1]) if alike else 0.5,
        "digests": found_digests(classifier, own, learner.secret),
        "digests_of_others": found_digests(classifier, strange, learner.secret),
        "covariance": one,
        "covariance_of_pairs": two,
    }


def found_digests(classifier: StatisticsClassifier, images: Tensor, key: bytes) -> float:
    """Return the share of images whose digest is in a state."""
    return float(torch.isin(sample_digests(images, key), classifier.digests).double().mean())


def by_covariance(
    classifier: StatisticsClassifier, pairs: Sequence[tuple[Tensor, Tensor]]
) -> list[float | None]:
    """Return how often S has more of a member's row than of another's, for the better λ.

    None is for pairs without members.
    """
    scatter, _ = classifier.statistics.scatter()
    variance = float(scatter.trace()) / len(scatter)
    if variance < 1e-12:  # no class has two photos
        return [0.5 if len(members) else None for members, _ in pairs]
    # Removed images leave rounding, which may be negative.
    values, vectors = torch.linalg.eigh(scatter)
    weights = [1 / (values.abs() + ridge * variance) for ridge in RIDGES]
    return [
        max(
            area_under_curve(*(-((rows @ vectors).square() @ weight) for rows in pair))
            for weight in weights
        )
        if len(pair[0])
        else None
        for pair in pairs
    ]


def last_photo(learner: Learner, given: Split, target: int, images: Tensor) -> float:
    """Tell whether the last photo of a class is found by the digest of all others and itself.

    The key of the digest is in the state. Without a digest the photo is guessed.
    """
    if not learner.tasks[0].data:
        return 1 / CANDIDATES
    place = int((given.labels == target).nonzero()[-1])
    strange = pictures(images[MEMBERS : MEMBERS + CANDIDATES - 1], learner.size)
    none = Split(given.images[:0], given.labels[:0])
    found = []
    for candidate in [given.images[place], *strange]:
        tried = given.images.clone()
        tried[place] = candidate
        data = digest([Split(tried, given.labels), none])
        found.append(keyed(data, learner.secret) == learner.tasks[0].data)
    return float(found[0] and sum(found) == 1)


def averaged(rows: Sequence[dict[str, float | None]]) -> dict[str, float | None]:
    """Return the mean of each figure that is known."""
    means: dict[str, float | None] = {}
    for key in rows[0]:
        values = [value for row in rows if (value := row[key]) is not None]
        means[key] = sum(values) / len(values) if values else None
    return means
