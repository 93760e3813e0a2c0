"""Classes of all tasks told apart by their statistics: probabilities, and "none of these".

One linear discriminant scores the classes of all tasks (see `statistics`). Of each class the
embeddings of a few samples are kept. Each of them can be left out of the statistics, in closed
form, so they show how the classifier does on samples that it has not seen:

- how often it is right, among all classes or among those of one task;
- one temperature T, so that softmax(score / T) over all classes is as often right as it says;
- how novel samples of known classes look. The p-value of an image is the share of them that look at
  least as novel, the image counted: (1 + #{i: v_i ≥ v}) / (1 + n). If images with p ≤ α are
  refused, that is at most a share α of those of known classes (conformal prediction, Vovk et al.
  2005). Novelty is v = min_c d_c - 0.85 mean_c d_c, with the distances d_c of the discriminant:
  far from the nearest class, and not much farther from the others.

Samples are known by a digest, so that none is counted twice. Which of them are kept is drawn by
another digest: those with the smallest. So whatever the order in which samples arrive, the
classifier is the same.

Samples that look alike (see `data.lookalikes`) would flatter: when one is left out, the others of
its scene are still there. So of each scene at most one sample is kept, that with the smallest draw,
and the whole scene is left out with it: kept for that are the size of the scene and the sum of its
embeddings. The only scene of a class cannot be left out. Scenes are told among samples that are
given together.

Embeddings are rounded to a grid, on which sums are exact (see `statistics`). So a class is removed
without a trace if all its samples are kept, or given again.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from classgrad.core.linalg import from_upper_half, upper_half
from classgrad.prediction.balanced import balanced_accuracy
from classgrad.prediction.calibration import calibrate
from classgrad.prediction.statistics import (
    GRID,
    ClassStatistics,
    LinearDiscriminant,
    on_grid,
    unit,
    with_sum,
)

KEPT = 10  # samples of each class
# Of 0, 0.25, 0.5, 0.7, 0.85 and 1, that which told known classes from others best: areas under the
# curve 0.79, 0.80, 0.81, 0.83, 0.85 and 0.82 for 12 classes of CIFAR-100's training images against
# the other 88, with 54 images of each (`novelty` in results/photos.json). With 1 a single class
# could not be told from anything.
MEAN_SHARE = 0.85
BINS, BIN_SAMPLES = 10, 25  # bins of confidence at most, and samples in each at least


@dataclass(frozen=True)
class Figures:
    """How a classifier does on samples of known classes that it has not seen."""

    samples: int
    accuracy: float  # balanced, in per cent, with its interval
    low: float
    high: float
    calibration_error: float  # in points: mean difference between confidence and accuracy
    recalls: dict[int, float]  # in per cent, by class


@dataclass(frozen=True)
class Fitted:
    """What follows from the statistics and the samples that are kept."""

    discriminant: LinearDiscriminant
    sharpness: float  # 1 / T
    logits: Tensor  # of the samples kept, each left out of the statistics
    classes: Tensor  # of these samples
    novelties: Tensor  # of these samples, sorted


class StatisticsClassifier:
    """A classifier over numbered classes, from the embeddings of their samples.

    `priors` are "equal", all classes as probable, or "counts", as frequent as their samples.
    """

    def __init__(self, embedding: int, *, priors: str = "equal", kept: int = KEPT) -> None:
        self.priors, self.kept = priors, kept
        self.grid = GRID  # of embeddings; 0 in states of earlier versions
        self.statistics = ClassStatistics.empty(0, embedding)
        none = torch.zeros(0, dtype=torch.int64)
        self.checks = none  # of each class: the sum of digests of its rounded embeddings
        self.digests, self.classes = none, none  # of all samples
        self.kept_draws, self.kept_classes = none, none
        self.kept_features = torch.zeros(0, embedding)
        # Of the scene of each sample kept: the number of its samples, and the sum of embeddings.
        self.scene_sizes = none
        self.scene_sums = torch.zeros(0, embedding, dtype=torch.float64)
        self._fitted: Fitted | None = None

    def __len__(self) -> int:
        return len(self.statistics.counts)

    def add_classes(self, count: int) -> list[int]:
        """Add classes without samples; return their numbers."""
        first = len(self)
        self.statistics.append(ClassStatistics.empty(count, self.statistics.sums.shape[1]))
        self.checks = torch.cat([self.checks, self.checks.new_zeros(count)])
        self._fitted = None
        return list(range(first, first + count))

    def add(
        self,
        features: Tensor,
        classes: Tensor,
        digests: Tensor,
        draws: Tensor,
        unseen: Tensor | None = None,
        scenes: Tensor | None = None,
        known: Tensor | None = None,
    ) -> None:
        """Add samples that are not known yet: embeddings, classes, digests, and draws of each.

        `unseen` marks those that the network was not trained on; only these can show how the
        classifier does on new ones. By default it is all of them. `scenes` has the same number for
        samples of a class that look alike. Samples that are `known` are not added: they are of the
        same scene as one that is new.
        """
        features, classes = on_grid(unit(features), self.grid), classes.cpu()
        count = len(classes)
        new = torch.ones(count, dtype=torch.bool) if known is None else ~known
        unseen = new if unseen is None else new & unseen
        scenes = torch.arange(count) if scenes is None else scenes.unique(return_inverse=True)[1]
        self.statistics.add(features[new], classes[new])
        self.checks.index_add_(0, classes[new], self._row_digests(features[new]))
        self.digests = torch.cat([self.digests, digests[new]])
        self.classes = torch.cat([self.classes, classes[new]])
        self._keep_smallest(features, classes, draws, unseen, scenes, new)

    def _keep_smallest(
        self,
        features: Tensor,
        classes: Tensor,
        draws: Tensor,
        unseen: Tensor,
        scenes: Tensor,
        new: Tensor,
    ) -> None:
        """Keep the samples with the smallest draws of their class, at most one of each scene."""
        keys = zip(classes.tolist(), draws.tolist(), strict=True)
        given = dict(zip(keys, scenes.tolist(), strict=True))
        keys = zip(self.kept_classes.tolist(), self.kept_draws.tolist(), strict=True)
        # Those kept so far that are not given again are of scenes of their own, from `own` on.
        own = len(classes)
        numbers = [given.get(key, own + place) for place, key in enumerate(keys)]

        all_draws = torch.cat([self.kept_draws, draws])
        all_classes = torch.cat([self.kept_classes, classes])
        class_of, scene_of = all_classes.tolist(), [*numbers, *scenes.tolist()]
        usable = torch.cat([torch.ones(len(numbers), dtype=torch.bool), unseen])
        order = all_draws.argsort(stable=True)  # of a sample given again, the first embedding
        index: list[int] = []
        taken, of_class = set[int](), Counter[int]()
        for place in order[usable[order]].tolist():
            if of_class[class_of[place]] < self.kept and scene_of[place] not in taken:
                index.append(place)
                taken.add(scene_of[place])
                of_class[class_of[place]] += 1
        index.sort(key=class_of.__getitem__)

        sizes = torch.zeros(len(index), dtype=torch.int64)
        sums = torch.zeros(len(index), features.shape[1], dtype=torch.float64)
        # Most samples kept are of classes that are not given: nothing changes for them.
        untouched = [row for row, place in enumerate(index) if scene_of[place] >= own]
        places = [index[row] for row in untouched]
        sizes[untouched], sums[untouched] = self.scene_sizes[places], self.scene_sums[places]
        known_in, given_in = members_of(numbers), members_of(scenes.tolist())
        for row, place in enumerate(index):
            if (scene := scene_of[place]) >= own:
                continue
            now = torch.tensor(given_in[scene])
            added = now[new[now]]
            # Of several that turn out to be one scene, the largest: they may share samples.
            for known in known_in.get(scene, []):
                if self.scene_sizes[known] > sizes[row]:
                    sizes[row], sums[row] = self.scene_sizes[known], self.scene_sums[known]
            if len(now) > sizes[row] + len(added):  # more of it is given again than was known
                sizes[row], sums[row], added = 0, 0, now
            sizes[row] += len(added)
            sums[row] += features[added].double().sum(0)
        self._set_kept(
            torch.cat([self.kept_features, features])[index],
            all_classes[index],
            all_draws[index],
            sizes,
            sums,
        )

    def _set_kept(
        self, features: Tensor, classes: Tensor, draws: Tensor, sizes: Tensor, sums: Tensor
    ) -> None:
        """Keep these samples and no other."""
        self.kept_features, self.kept_classes, self.kept_draws = features, classes, draws
        self.scene_sizes, self.scene_sums = sizes, sums
        self._fitted = None

    def known_samples(self) -> dict[int, set[int]]:
        """Return the classes of each sample by its digest."""
        known: dict[int, set[int]] = {}
        for digest, number in zip(self.digests.tolist(), self.classes.tolist(), strict=True):
            known.setdefault(digest, set()).add(number)
        return known

    def forget(
        self, number: int, samples: Tensor | None = None, draws: Tensor | None = None
    ) -> bool:
        """Remove a class and what is known of its samples; tell whether nothing stays.

        Samples that are kept are removed from the covariance, and so are the others if there is one
        only, or if all `samples` of the class are given, with their draws. Otherwise the scatter of
        the others around their mean stays. Given embeddings that are not those that were added, as
        those of layers that have learnt since, leave traces.
        """
        statistics, own = self.statistics, self.kept_classes == number
        removed = self.kept_features[own].double()
        statistics.remove(number, removed)
        rest: Tensor | None = None
        left = int(statistics.counts[number])
        if left == 1:
            rest = statistics.sums[number][None].clone()
            removed = torch.cat([removed, rest])
        elif left and samples is not None and draws is not None:
            rest = unit(samples)[~torch.isin(draws, self.kept_draws[own])].double()
            if self.grid:
                rest = with_sum(rest, statistics.sums[number], self.grid)
            removed = torch.cat([removed, rest])
        gone = bool(self.grid) and bool(self._row_digests(removed).sum() == self.checks[number])
        if gone and rest is not None:
            statistics.remove(number, rest)
        statistics.forget(number, rest, self.grid)  # what is left of it
        self.checks[number] = 0
        others = self.classes != number
        self.digests, self.classes = self.digests[others], self.classes[others]
        others = self.kept_classes != number
        self._set_kept(
            self.kept_features[others],
            self.kept_classes[others],
            self.kept_draws[others],
            self.scene_sizes[others],
            self.scene_sums[others],
        )
        return gone

    def _row_digests(self, rows: Tensor) -> Tensor:
        """Return a digest of each rounded embedding, by which it is known to be the same."""
        if not self.grid:
            return torch.zeros(len(rows), dtype=torch.int64)
        return sample_digests((rows / self.grid).to(torch.int32), b"")

    # Predicting.

    @property
    def fitted(self) -> Fitted:
        """What follows from the statistics so far."""
        if self._fitted is None:
            discriminant = LinearDiscriminant(self.statistics, self.priors)
            # The only scene of a class cannot be left out.
            usable = self.statistics.counts[self.kept_classes] > self.scene_sizes
            features, classes = self.kept_features[usable], self.kept_classes[usable]
            sizes, sums = self.scene_sizes[usable], self.scene_sums[usable]
            distances = discriminant.distances_left_out(features, classes, sizes, sums)
            logits = discriminant.log_priors - distances / 2
            present = self.statistics.counts > 0
            places = present.cumsum(0) - 1
            self._fitted = Fitted(
                discriminant,
                calibrate(logits[:, present], places[classes]),
                logits,
                classes,
                novelty(distances[:, present]).sort().values,
            )
        return self._fitted

    def probabilities(self, features: Tensor, classes: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return the probabilities of these classes (n, classes), and the p-value of each input.

        A p-value is of the hypothesis that the input is of any known class.
        """
        fitted = self.fitted
        distances = fitted.discriminant.distances(unit(features))
        logits = (fitted.discriminant.log_priors - distances / 2)[:, list(classes)]
        values = novelty(distances[:, self.statistics.counts > 0])
        less_novel, count = torch.searchsorted(fitted.novelties, values), len(fitted.novelties)
        return (logits * fitted.sharpness).softmax(1), (1 + count - less_novel) / (1 + count)

    def figures(self, classes: Sequence[int]) -> Figures | None:
        """Return how samples of these classes are told apart; None without usable samples."""
        fitted, chosen = self.fitted, torch.tensor(list(classes))
        rows = torch.isin(fitted.classes, chosen)
        if not rows.any():
            return None
        scores = (fitted.logits[rows][:, chosen] * fitted.sharpness).softmax(1)
        confidence, predicted = scores.max(1)
        labels = fitted.classes[rows]
        correct = chosen[predicted] == labels
        error = calibration_error(confidence, correct)
        return Figures(**asdict(balanced_accuracy(labels, correct)), calibration_error=100 * error)

    def confusions(self) -> list[tuple[int, int, float]]:
        """Return (class, predicted class, share) of all mistakes, the most frequent first."""
        fitted = self.fitted
        predicted = fitted.logits.argmax(1)
        counts = torch.bincount(fitted.classes, minlength=len(self))
        table = torch.zeros(len(self), len(self))
        for true, answer in zip(fitted.classes.tolist(), predicted.tolist(), strict=True):
            table[true, answer] += (true != answer) / int(counts[true])
        pairs = sorted(table.nonzero().tolist(), key=lambda pair: -float(table[pair[0], pair[1]]))
        return [(true, answer, float(table[true, answer])) for true, answer in pairs]

    # Saving and loading.

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the settings; of a symmetric matrix, one half."""
        return {
            "counts": self.statistics.counts.clone(),
            "sums": self.statistics.sums.clone(),
            "products": upper_half(self.statistics.products),
            "removed": self.statistics.removed,
            "grid": self.grid,
            "checks": self.checks.clone(),
            "digests": self.digests,
            "classes": self.classes,
            "kept_features": self.kept_features,
            "kept_classes": self.kept_classes,
            "kept_draws": self.kept_draws,
            "scene_sizes": self.scene_sizes,
            # The sum of one sample is that sample.
            "scene_sums": self.scene_sums[self.scene_sizes > 1],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state; refuse one whose parts do not match."""
        d, classes = self.statistics.sums.shape[1], len(state["counts"])
        samples, kept = len(state["digests"]), len(state["kept_draws"])
        # Earlier versions did not know which samples look alike.
        sizes = state.get("scene_sizes", torch.ones(kept, dtype=torch.int64))
        several = sizes > 1
        sums = state.get("scene_sums", torch.zeros(0, d, dtype=torch.float64))
        checks = state.get("checks", torch.zeros(classes, dtype=torch.int64))
        state = {**state, "scene_sizes": sizes, "scene_sums": sums, "checks": checks}
        # Earlier versions added embeddings as they were.
        grid = float(state.get("grid", 0.0))
        if not 0 <= grid < 1:
            raise ValueError("class statistics have an invalid grid")
        self.grid = grid
        for name, shape in {
            "counts": (classes,),
            "sums": (classes, d),
            "checks": (classes,),
            "products": (d * (d + 1) // 2,),
            "digests": (samples,),
            "classes": (samples,),
            "kept_features": (kept, d),
            "kept_classes": (kept,),
            "kept_draws": (kept,),
            "scene_sizes": (kept,),
            "scene_sums": (int(several.sum()), d),
        }.items():
            if tuple(state[name].shape) != shape:
                raise ValueError(f"{name} of the class statistics have another shape")
        for name in ("classes", "kept_classes"):
            if (
                len(state[name])
                and not 0 <= int(state[name].min()) <= int(state[name].max()) < classes
            ):
                raise ValueError("class statistics have samples of unknown classes")
        if kept and int(sizes.min()) < 1:
            raise ValueError("class statistics have scenes without samples")
        self.statistics = ClassStatistics(
            state["counts"].clone(),
            state["sums"].clone(),
            from_upper_half(state["products"].double(), d),
            int(state["removed"]),
        )
        self.checks = checks.clone()
        self.digests, self.classes = state["digests"], state["classes"]
        scene_sums = state["kept_features"].double()
        scene_sums[several] = sums
        self._set_kept(
            state["kept_features"], state["kept_classes"], state["kept_draws"], sizes, scene_sums
        )


def members_of(scenes: Sequence[int]) -> dict[int, list[int]]:
    """Return the places of each scene.

    >>> members_of([3, 0, 3])
    {3: [0, 2], 0: [1]}
    """
    members: dict[int, list[int]] = {}
    for place, scene in enumerate(scenes):
        members.setdefault(scene, []).append(place)
    return members


def novelty(distances: Tensor) -> Tensor:
    """Return how little samples resemble any class, from their distances to all (n, classes)."""
    if not distances.numel():
        return distances.new_zeros(len(distances))
    return distances.min(1).values - MEAN_SHARE * distances.mean(1)


def sample_digests(images: Tensor, key: bytes) -> Tensor:
    """Return a digest of each image (n) that only those who have the key can compute."""
    numbers = []
    for image in images.cpu().contiguous():
        content = image.view(torch.uint8).numpy().tobytes()
        digest = hashlib.blake2b(content, key=key, digest_size=8).digest()
        numbers.append(int.from_bytes(digest, "little", signed=True))
    return torch.tensor(numbers, dtype=torch.int64)


def calibration_error(confidence: Tensor, correct: Tensor) -> float:
    """Return the mean difference between confidence and accuracy, over bins of equal size."""
    gaps = (confidence.double() - correct.double())[confidence.argsort()]
    bins = gaps.chunk(min(max(len(gaps) // BIN_SAMPLES, 1), BINS))
    return sum(abs(float(part.sum())) for part in bins) / len(gaps)
