"""The classifier of class statistics: figures, probabilities and p-values hold on new samples."""

import pytest
import torch
from torch.overrides import TorchFunctionMode

from classgrad.prediction.classifier import (
    StatisticsClassifier,
    calibration_error,
    novelty,
    sample_digests,
)
from classgrad.prediction.statistics import on_grid, unit

D, CLASSES = 30, 6


def cloud(number, count, seed, noise=1.0):
    """Return samples of one class, around a centre of its own."""
    centre = torch.randn(D, generator=torch.Generator().manual_seed(number))
    rng = torch.Generator().manual_seed(1000 * seed + number)
    return centre + noise * torch.randn(count, D, generator=rng)


def draws(x, seed=1):
    return sample_digests(x, str(seed).encode())


def made(count=40, classes=range(CLASSES), noise=1.0, **options):
    """Return a classifier of clouds."""
    classifier = StatisticsClassifier(D, **options)
    for number in classifier.add_classes(len(classes)):
        x = cloud(classes[number], count, 1, noise)
        classifier.add(x, torch.full((count,), number), draws(x, 2), draws(x))
    return classifier


def fresh(count=200, classes=range(CLASSES), noise=1.0):
    """Return samples that no classifier has seen, and their classes."""
    x = torch.cat([cloud(number, count, 2, noise) for number in classes])
    return x, torch.arange(len(classes)).repeat_interleave(count)


@pytest.mark.parametrize("noise", [0.8, 1.5, 2.5])
def test_figures_are_those_of_new_samples(noise):
    classifier = made(noise=noise, kept=40)
    x, labels = fresh(noise=noise)
    rows, _ = classifier.probabilities(x, range(CLASSES))
    accuracy = 100 * float((rows.argmax(1) == labels).double().mean())
    figures = classifier.figures(range(CLASSES))
    assert figures.samples == 40 * CLASSES
    assert figures.accuracy == pytest.approx(accuracy, abs=6)
    # Scored without leaving them out, they would look far better than new ones.
    seen = torch.cat([cloud(number, 40, 1, noise) for number in range(CLASSES)])
    known, _ = classifier.probabilities(seen, range(CLASSES))
    flattering = 100 * float((known.argmax(1) == labels[::5]).double().mean())
    if accuracy < 95:
        assert flattering > accuracy + 5
    confidence, predicted = rows.max(1)
    assert 100 * calibration_error(confidence, predicted == labels) < 8


@pytest.mark.parametrize("share", [0.05, 0.2])
def test_at_most_the_given_share_of_known_samples_is_refused(share):
    classifier = made(kept=40)
    known, _ = fresh()
    _, p_values = classifier.probabilities(known, range(CLASSES))
    refused = float((p_values <= share).double().mean())
    assert share / 3 < refused < share + 0.04
    other, _ = fresh(classes=range(50, 60))
    _, p_values = classifier.probabilities(other, range(CLASSES))
    assert float((p_values <= share).double().mean()) > 3 * share


def test_novelty_also_tells_one_class_from_others():
    distances = torch.tensor([[1.0], [4.0]])
    assert novelty(distances)[0] < novelty(distances)[1]
    assert len(novelty(torch.zeros(3, 0))) == 3


def test_any_order_of_samples_gives_the_same_classifier():
    whole = made(kept=5)
    other = StatisticsClassifier(D, kept=5)
    other.add_classes(CLASSES)
    for part in range(4):
        for number in reversed(range(CLASSES)):
            x = cloud(number, 40, 1)[part::4]
            other.add(x, torch.full((10,), number), draws(x, 2), draws(x))
    x, _ = fresh(20)
    for one, two in zip(
        whole.probabilities(x, range(CLASSES)), other.probabilities(x, range(CLASSES)), strict=True
    ):
        assert (one - two).abs().max() < 1e-9
    assert whole.figures(range(CLASSES)).accuracy == other.figures(range(CLASSES)).accuracy


def test_only_samples_that_were_not_trained_on_are_kept():
    classifier = StatisticsClassifier(D, kept=5)
    classifier.add_classes(1)
    x = cloud(0, 20, 1)
    unseen = torch.arange(20) >= 17
    classifier.add(x, torch.zeros(20, dtype=torch.int64), draws(x, 2), draws(x), unseen)
    assert int(classifier.statistics.counts) == 20
    assert len(classifier.kept_classes) == 3


def shots(number, scenes=30, count=4, seed=1):
    """Return samples of one class that come in scenes, and the scene of each."""
    centres = cloud(number, scenes, seed, noise=3.0)
    scene = torch.arange(scenes).repeat(count)
    rng = torch.Generator().manual_seed(number)
    return centres[scene] + 0.1 * torch.randn(len(scene), D, generator=rng), 1000 * number + scene


def of_shots(parts=1, told=True, known=False, kept=30):
    """Return a classifier of clouds that come in scenes, given at once or in parts."""
    classifier = StatisticsClassifier(D, kept=kept)
    classifier.add_classes(CLASSES)
    for number in reversed(range(CLASSES)) if parts > 1 else range(CLASSES):
        x, scene = shots(number)
        before = torch.zeros(len(x), dtype=torch.bool)
        for part in range(parts):
            now = torch.arange(len(x)) % parts == part
            given = before | now if known else now
            classifier.add(
                x[given],
                torch.full((int(given.sum()),), number),
                draws(x, 2)[given],
                draws(x)[given],
                scenes=scene[given] if told else None,
                known=before[given],
            )
            before |= now
    return classifier


def test_figures_of_samples_that_come_in_scenes_are_those_of_new_scenes():
    classifier, flattering = of_shots(), of_shots(told=False)
    x, labels = fresh(noise=3.0)
    rows, p_values = classifier.probabilities(x, range(CLASSES))
    accuracy = 100 * float((rows.argmax(1) == labels).double().mean())
    figures = classifier.figures(range(CLASSES))
    assert figures.samples == 30 * CLASSES
    assert figures.accuracy == pytest.approx(accuracy, abs=5)
    assert flattering.figures(range(CLASSES)).accuracy > accuracy + 15
    assert 0.02 < float((p_values <= 0.1).double().mean()) < 0.14


def test_of_a_scene_one_sample_is_kept_with_the_sum_of_all():
    classifier = of_shots(kept=10)
    assert classifier.kept_classes.bincount().tolist() == [10] * CLASSES
    assert (classifier.scene_sizes == 4).all()
    x, scene = shots(2)
    rows = classifier.kept_classes == 2
    place = {int(draw): int(number) for draw, number in zip(draws(x), scene, strict=True)}
    kept = [place[int(draw)] for draw in classifier.kept_draws[rows]]
    assert len(set(kept)) == 10
    for one, total in zip(kept, classifier.scene_sums[rows], strict=True):
        of_scene = draws(x)[scene == one]
        assert int(of_scene.min()) in classifier.kept_draws
        assert torch.equal(total, on_grid(unit(x[scene == one])).double().sum(0))


def test_scenes_that_are_given_again_are_known_again():
    whole, parts = of_shots(kept=5), of_shots(3, known=True, kept=5)
    x, _ = fresh(20)
    for one, two in zip(
        whole.probabilities(x, range(CLASSES)), parts.probabilities(x, range(CLASSES)), strict=True
    ):
        assert (one - two).abs().max() < 1e-9
    order = parts.kept_draws.argsort()[whole.kept_draws.argsort().argsort()]
    assert torch.equal(parts.kept_draws[order], whole.kept_draws)
    assert torch.equal(parts.scene_sizes[order], whole.scene_sizes)
    assert torch.allclose(parts.scene_sums[order], whole.scene_sums, atol=1e-12)
    assert parts.figures(range(CLASSES)).accuracy == whole.figures(range(CLASSES)).accuracy
    # What is not given again is not known to be of the same scene: two come at a time.
    assert (of_shots(4, kept=5).scene_sizes == 2).all()


def test_part_of_a_scene_given_again_adds_to_what_was_known():
    classifier = StatisticsClassifier(D)
    classifier.add_classes(1)
    x = 0.1 * torch.randn(6, D, generator=torch.Generator().manual_seed(1)) + cloud(0, 1, 1)
    x = x[draws(x).argsort()]  # the first one is kept

    def add(rows, known=()):
        index = torch.tensor([*rows, *known])
        classifier.add(
            x[index],
            torch.zeros(len(index), dtype=torch.int64),
            draws(x, 2)[index],
            draws(x)[index],
            scenes=torch.zeros(len(index), dtype=torch.int64),
            known=torch.tensor([False] * len(rows) + [True] * len(known)),
        )

    add([1, 2, 3])
    assert classifier.scene_sizes.tolist() == [3]
    add([4], [1])
    assert classifier.scene_sizes.tolist() == [4]
    add([0], [2])  # the one kept so far is not given again, so this is another scene
    assert classifier.scene_sizes.tolist() == [2, 4]
    add([5], [0, 1])  # now they are one, and no sample of it is counted twice
    assert classifier.scene_sizes.tolist() == [5]
    assert int(classifier.statistics.counts) == 6


def test_the_only_scene_of_a_class_is_not_measured():
    classifier = made()
    (number,) = classifier.add_classes(1)
    x = cloud(70, 1, 1) + 0.1 * torch.randn(5, D, generator=torch.Generator().manual_seed(1))
    scene = torch.zeros(5, dtype=torch.int64)
    classifier.add(x, torch.full((5,), number), draws(x, 2), draws(x), scenes=scene)
    assert set(classifier.figures(range(CLASSES + 1)).recalls) == set(range(CLASSES))
    assert int(classifier.probabilities(x, range(CLASSES + 1))[0].argmax(1)[0]) == number


def test_a_forgotten_class_leaves_no_sample_and_is_not_predicted():
    classifier = made()
    classifier.forget(2)
    x, labels = fresh(50)
    rows, _ = classifier.probabilities(x[labels != 2], [0, 1, 3, 4, 5])
    assert rows.isfinite().all()
    assert 2 not in classifier.classes
    assert 2 not in classifier.kept_classes
    assert classifier.figures([0, 1, 3, 4, 5]).accuracy > 80


KEYS = ("sums", "products", "checks", "kept_features", "kept_draws", "scene_sums", "digests")


def forgotten(count, altered=lambda x: x, given=True, kept=10):
    """Return whether class 2 is said to have left nothing, and whether it has, to the last bit."""
    classifier = made(count, kept=kept)
    x = cloud(2, count, 1)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(5))
    options = (altered(x[order]), draws(x[order])) if given else ()
    gone = classifier.forget(2, *options)
    state, never = classifier.state_dict(), made(count, [0, 1, 3, 4, 5], kept=kept).state_dict()
    others = [0, 1, 3, 4, 5]
    for name in ("sums", "checks", "counts"):
        assert not state[name][2].any()
        state[name] = state[name][others]
    same = all(torch.equal(state[name], never[name]) for name in KEYS)
    return gone, same and state["removed"] == never["removed"] == 0


@pytest.mark.parametrize("count", [1, 2, 5, 40])
def test_a_class_whose_samples_are_given_is_removed_to_the_last_bit(count):
    assert forgotten(count) == (True, True)
    assert forgotten(count, kept=0) == (True, True)


def test_samples_that_are_kept_need_not_be_given_and_neither_does_a_single_other_one():
    assert forgotten(11, given=False) == (True, True)
    assert forgotten(12, given=False) == (False, False)


def test_samples_that_another_machine_computes_are_recognised_or_traces_are_told():
    noise = 1e-7 * torch.randn(40, D, generator=torch.Generator().manual_seed(3))
    rounded = on_grid(unit(cloud(2, 40, 1)))
    order = torch.randperm(40, generator=torch.Generator().manual_seed(5))
    moved = on_grid(unit(cloud(2, 40, 1)[order]) + noise[:40]) != rounded[order]
    assert moved.any()  # some are rounded to the other side
    assert forgotten(40, lambda x: unit(x) + noise) == (True, True)
    # Two that make up for each other in the sum are noticed, too.
    wrong = torch.zeros(40, D)
    wrong[:2, 0] = torch.tensor([2.0, -2.0]) / 2**15
    assert forgotten(40, lambda x: unit(x) + wrong, kept=0) == (False, False)
    gone, _ = forgotten(40, lambda x: x + 0.01 * noise / noise.std())
    assert not gone


def test_what_was_added_without_rounding_is_never_said_to_be_gone():
    classifier = made(5)
    classifier.grid = 0.0  # as in states of earlier versions
    assert not classifier.forget(2, cloud(2, 5, 1), draws(cloud(2, 5, 1)))
    assert not classifier.forget(3)


def test_single_samples_are_classified_but_not_measured():
    classifier = made(1)
    assert classifier.figures(range(CLASSES)) is None
    rows, p_values = classifier.probabilities(fresh(5)[0], range(CLASSES))
    assert rows.isfinite().all()
    assert (p_values == 1).all()  # nothing is known about what is usual


def test_confusions_name_the_pair_that_is_mixed_up():
    classifier = StatisticsClassifier(D, kept=30)
    classifier.add_classes(3)
    for number, centre in enumerate([0, 1, 1]):  # the last two are the same
        x = cloud(centre, 30, number + 5)
        classifier.add(x, torch.full((30,), number), draws(x, 2), draws(x))
    first, second = classifier.confusions()[:2]
    assert {first[:2], second[:2]} == {(1, 2), (2, 1)}
    assert first[2] >= second[2] > 0.2


def test_a_state_is_restored_and_a_damaged_one_refused():
    classifier = of_shots()
    other = StatisticsClassifier(D)
    other.load_state_dict(classifier.state_dict())
    x, _ = fresh(10)
    for one, two in zip(
        classifier.probabilities(x, [0, 1]), other.probabilities(x, [0, 1]), strict=True
    ):
        assert torch.equal(one, two)
    for name, value in [
        ("sums", torch.zeros(2, D)),
        ("products", torch.zeros(D)),
        ("kept_classes", torch.full_like(classifier.kept_classes, CLASSES)),
        ("scene_sizes", classifier.scene_sizes[1:]),
        ("scene_sizes", torch.zeros_like(classifier.scene_sizes)),
        ("scene_sums", classifier.scene_sums[1:]),
    ]:
        with pytest.raises(ValueError, match="class statistics"):
            StatisticsClassifier(D).load_state_dict({**classifier.state_dict(), name: value})


def test_a_state_of_an_earlier_version_has_scenes_of_one_sample():
    classifier = made()
    state = classifier.state_dict()
    assert not len(state.pop("scene_sums"))
    assert (state.pop("scene_sizes") == 1).all()
    other = StatisticsClassifier(D)
    other.load_state_dict(state)
    assert other.figures(range(CLASSES)) == classifier.figures(range(CLASSES))


def test_digests_depend_on_the_image_and_on_the_key():
    rng = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (3, 3, 4, 4), dtype=torch.uint8, generator=rng)
    images[2] = images[0]
    one = sample_digests(images, b"key")
    assert one[0] == one[2] != one[1]
    assert not (one == sample_digests(images, b"other")).any()
    assert torch.equal(one, sample_digests(images.mT.contiguous().mT, b"key"))


def test_samples_of_one_class_cost_as_much_however_many_others_are_known():
    class Counting(TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            self.calls += 1
            return function(*args, **(kwargs or {}))

    def calls(known):
        rng = torch.Generator().manual_seed(known)
        classifier = StatisticsClassifier(4)
        classifier.add_classes(known + 1)
        classes, keys = torch.arange(known).repeat(3), torch.arange(3 * known)
        classifier.add(torch.randn(3 * known, 4, generator=rng), classes, keys, keys)
        new, keys = torch.full((5,), known), torch.arange(5) - 5
        with Counting() as counting:
            classifier.add(torch.randn(5, 4, generator=rng), new, keys, keys)
        assert len(classifier.kept_draws) == 3 * known + 5
        return counting.calls

    assert calls(40) == calls(10)
