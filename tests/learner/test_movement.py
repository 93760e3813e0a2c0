"""Without the images of old tasks it is told how far their features can have moved."""

import math

import pytest
import torch
from torch import nn

from classgrad import CGP, GPM, Learner, Training, UserError
from classgrad.learner.info import read
from oracles.models import built
from photos import timeless

QUICK = Training(epochs=2, batch_size=8, learning_rate=0.05)


def task(number, seed=0, count=8, size=16):
    """Return pictures of two classes."""
    rng = torch.Generator().manual_seed(1000 * seed + number)
    centres = torch.randint(40, 216, (2, 3, size, size), generator=rng)
    noise = 30 * torch.randn(2 * count, 3, size, size, generator=rng)
    labels = torch.arange(2).repeat_interleave(count)
    return (centres[labels] + noise).clamp(0, 255).to(torch.uint8), labels


def dense():
    return nn.Sequential(
        nn.Flatten(), nn.Linear(768, 24), nn.ReLU(), nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 12)
    )


def convolutional():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, padding=1, groups=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )


def own(make, method, seed=1, training=QUICK):
    return Learner(built(make).float(), method, training=training, size=16, seed=seed)


def pretrained(method, tune, seed=1):
    options = {"weights": "random", "size": 32}
    gentle = Training(epochs=1, batch_size=8, learning_rate=0.002)
    return Learner(
        None, method, network="efficientnet-lite0", network_options=options, tune=tune, seed=seed,
        training=gentle, size=16,
    )  # fmt: skip


def features(learner, images):
    with torch.no_grad():
        return learner.net.eval().embed(learner.inputs(images), 0).double()


def followed(learner, tasks=3, seed=0):
    """Let a learner learn tasks; return (drift, how far features really moved) of each."""
    known = []
    for number in range(tasks):
        images, labels = task(number, seed)
        learner.learn(f"task {number}", (images, labels))
        known.append((images, features(learner, images)))
    moved = [
        float((features(learner, images) - then).norm() / then.norm()) for images, then in known
    ]
    return list(zip(learner.drift(), moved, strict=True))


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("method", [GPM(energy=0.9), CGP(energy=0.8)], ids=["gpm", "cgp"])
@pytest.mark.parametrize("make", [dense, convolutional])
def test_the_bound_never_under_reports(make, method, seed):
    result = followed(own(make, method, seed), seed=seed)
    for drift, moved in result[:-1]:
        assert 1e-4 < moved <= drift.bound < 1000 * moved
        assert moved / 10 < drift.estimate <= drift.bound
        assert not drift.reason
    last, moved = result[-1]
    assert (last.bound, last.estimate, moved) == (0, 0, 0)


@pytest.mark.parametrize(("method", "tune"), [(GPM(), "last"), (CGP(), "all")], ids=["gpm", "cgp"])
def test_the_bound_never_under_reports_for_a_deep_network(method, tune):
    learner = pretrained(method, tune)
    for drift, moved in followed(learner, tasks=2)[:-1]:
        assert 0 < moved <= drift.bound < math.inf


def test_one_layer_moves_by_what_its_change_does_to_each_image():
    # With a single layer nothing is amplified, so of two tasks the bound is exact.
    learner = own(lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 12)), GPM(energy=0.9))
    drift, moved = followed(learner, tasks=2)[0]
    assert drift.bound == pytest.approx(moved, rel=1e-3)
    assert drift.bound >= moved * (1 - 1e-5)


def test_images_that_are_added_later_are_bounded_too():
    learner = own(dense, GPM(energy=0.9))
    learner.learn("first", task(0))
    learner.learn("second", task(1))
    images, labels = task(0, count=12)
    learner.learn("first", (images, labels))
    then = features(learner, images)
    before = learner.movement.images
    learner.learn("third", task(2))
    assert learner.movement.images == before + 16
    moved = float((features(learner, images) - then).norm() / then.norm())
    assert moved <= learner.drift()[0].bound


def test_it_is_saved_and_goes_on_alike(tmp_path):
    one = own(dense, GPM())
    for number in range(2):
        one.learn(f"task {number}", task(number))
    one.save(tmp_path)
    again = Learner.load(tmp_path, trunk=built(dense).float())
    assert again.drift() == one.drift() == read(tmp_path).drift
    for learner in (one, again):
        learner.learn("task 2", task(2))
    assert timeless(again) == timeless(one)
    state = again.state_dict()
    state["movement"]["energies"].pop()
    with pytest.raises(ValueError, match="of other tasks"):
        again.load_state_dict(state)
    state = one.state_dict()
    state["movement"]["products"].popitem()
    with pytest.raises(ValueError, match="of other layers"):
        again.load_state_dict(state)


@pytest.mark.parametrize("part", ["products", "steps"])
def test_a_state_with_parts_of_another_shape_is_refused_when_loading(part):
    learner = own(dense, GPM())
    for number in range(2):
        learner.learn(f"task {number}", task(number))
    state = learner.state_dict()
    parts = state["movement"][part] if part == "products" else state["movement"]["steps"][1]
    parts["3"] = parts["3"][:1]
    with pytest.raises(ValueError, match="of layer '3' have another shape"):
        learner.load_state_dict(state)


def test_a_task_without_a_new_image_has_no_bound_once_features_move():
    learner = own(dense, GPM(energy=0.9))
    learner.learn("first", task(0), classes=["a", "b"])
    learner.learn("again", task(0), classes=["a", "b"], same_classes="merge")
    assert (learner.drift()[1].bound, learner.drift()[1].reason) == (0, "")
    learner.learn("third", task(1))
    first, again, _ = learner.drift()
    assert first.bound > 0
    assert str(again) == "not known: not one of its images was new"


def test_a_learner_whose_first_tasks_were_learnt_without_it_says_so():
    learner = own(dense, GPM())
    learner.learn("first", task(0))
    state = learner.state_dict()
    del state["movement"]
    learner.load_state_dict(state)
    learner.learn("second", task(1))
    for drift in learner.drift():
        assert drift.bound is drift.estimate is None
        assert "a version of classgrad without it" in str(drift)


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize(
    ("make", "options", "reason"),
    [
        (lambda: nn.Sequential(*dense(), Doubled()), {}, "layer 6 (Doubled) cannot be followed"),
        (
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(768, 4)),
            {"precision": "bfloat16"},
            "lower",
        ),
        (
            lambda: nn.Sequential(
                nn.Flatten(), nn.Linear(768, 2049), nn.ReLU(), nn.Linear(2049, 3)
            ),
            {},
            "layer '3' has more than 2,048 inputs",
        ),
        (
            lambda: nn.Sequential(nn.Conv2d(3, 16, 3), nn.ConvTranspose2d(16, 2, 3), nn.Flatten()),
            {},
            "layer 1 (ConvTranspose2d) cannot be followed",
        ),
    ],
)
def test_what_cannot_be_bounded_is_said(make, options, reason):
    learner = Learner(built(make).float(), GPM(), training=QUICK, size=16, **options)
    learner.learn("first", task(0))
    learner.learn("second", task(1))
    assert all(reason in one.reason and one.bound is None for one in learner.drift())
    assert not learner.movement.state_dict()["products"]


def test_without_layers_that_learn_there_is_no_drift(call, tmp_path):
    learner = Learner(built(dense).float(), tune="none", size=16)
    learner.learn("first", task(0))
    learner.learn("second", task(1))
    assert [(one.bound, one.estimate, one.reason) for one in learner.drift()] == [
        (0, 0, "no layer learns")
    ] * 2
    learner.save(tmp_path / "state")
    assert "drift      none: no layer learns" in call("info", str(tmp_path / "state"))[1]


def test_the_command_line_shows_it(call, tmp_path):
    import json

    learner = own(dense, GPM(energy=0.9))
    learner.learn("first", task(0))
    learner.learn("second", task(1))
    learner.save(tmp_path / "state")
    out = call("info", str(tmp_path / "state"))[1]
    assert f"drift      of first: {learner.drift()[0]}" in out
    assert "% at most" in out
    shown = json.loads(call("info", str(tmp_path / "state"), "--json")[1])["drift"]
    assert shown[0]["bound"] == learner.drift()[0].bound
    assert shown[1] == {"task": "second", "bound": 0.0, "estimate": 0.0, "reason": ""}


def test_without_statistics_nothing_is_kept():
    learner = Learner(built(dense).float(), GPM(), training=QUICK, size=16, prototypes=False)
    with pytest.raises(UserError, match="nothing was learnt"):
        learner.net  # noqa: B018
    learner.learn("first", task(0))
    assert learner.movement is None
    assert "no class statistics" in str(learner.drift()[0])
