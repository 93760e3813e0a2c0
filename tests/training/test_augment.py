"""Augmented training images: what sees them, and what sees images as they are."""

import copy

import pytest
import torch
from torch.nn import functional

from classgrad import Learner, Training, methods, run
from classgrad.data.augment import FUNCTIONS, augmentation
from classgrad.errors import UserError
from classgrad.methods import Finetune
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.loop import Loop
from states import same
from streams import blobs

STREAM = blobs()
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "width": 24}


class Watching(Finetune):
    """Finetuning that notes what each step was given."""

    name = "watching"

    def loss(self, net, step):
        seen.append((step.images, step.x, step.index))
        return super().loss(net, step)


seen: list = []


def steps(monkeypatch, augment):
    """What the steps of two tasks were given."""
    seen.clear()
    monkeypatch.setitem(methods.METHODS, "watching", Watching)
    run(STREAM, Watching(), values={**QUICK, "augment": augment})
    return list(seen)


def in_task(number, index):
    return STREAM[number].train.unit_images(index)


def test_by_default_images_are_as_they_are(monkeypatch):
    for images, x, _ in steps(monkeypatch, "none"):
        assert torch.equal(images, x)
    first = steps(monkeypatch, "none")[0]
    assert torch.equal(first[0], in_task(0, first[2]))


def test_a_flip_turns_about_half_of_the_images_anew_in_every_step(monkeypatch):
    given = steps(monkeypatch, "flip")
    per_task = len(given) // len(STREAM)
    turned = []
    for number, (images, x, index) in enumerate(given):
        as_they_are = in_task(number // per_task, index)
        assert torch.equal(images, x)
        for one, before in zip(images, as_they_are, strict=True):
            flipped = torch.equal(one, before.flip(-1))
            assert flipped or torch.equal(one, before)
            turned.append(flipped)
    assert 0.4 < sum(turned) / len(turned) < 0.6
    first, second = (given[epoch * per_task // 2] for epoch in (0, 1))
    assert not torch.equal(first[0], second[0])


def test_a_crop_is_a_window_of_the_padded_image(monkeypatch):
    images, _, index = steps(monkeypatch, "crop-flip")[0]
    for one, before in zip(images, in_task(0, index), strict=True):
        padded = functional.pad(before, [4] * 4)
        windows = [padded[:, y : y + 8, x : x + 8] for y in range(9) for x in range(9)]
        assert any(torch.equal(one, w) or torch.equal(one, w.flip(-1)) for w in windows)


def test_augmix_changes_images_within_their_range(monkeypatch):
    images, _, index = steps(monkeypatch, "augmix")[0]
    assert not torch.equal(images, in_task(0, index))
    assert 0 <= float(images.min()) <= float(images.max()) <= 1


def test_bases_are_of_images_as_they_are():
    values = {**QUICK, "learning_rate": 1e-30}  # so that weights do not differ
    plain, augmented = (
        Run(make_plan(STREAM, "gpm", values={**values, "augment": name}), STREAM)
        for name in ("none", "crop-flip")
    )
    plain.execute()
    augmented.execute()
    assert same(plain.method.state_dict(), augmented.method.state_dict())


@pytest.mark.parametrize("name", ["er", "agem", "gem", "icarl"])
def test_kept_samples_are_augmented_like_new_ones(name, monkeypatch):
    counts = []

    def counting(images, generator, among):
        counts.append(len(images))
        return images.flip(-1)

    monkeypatch.setitem(FUNCTIONS, "flip", counting)
    run(STREAM, name, values={**QUICK, "memory": 12, "memory_batch": 5, "augment": "flip"})
    new = sum(len(task.train) for task in STREAM) * QUICK["epochs"]
    assert sum(counts) > new
    assert 5 in counts


@pytest.mark.parametrize("name", ["lwf", "icarl"])
def test_old_heads_are_pulled_to_their_answers_for_the_same_augmented_images(name):
    plan = make_plan(STREAM, name, values={**QUICK, "augment": "crop-flip"})
    running = Run(plan, STREAM)
    running.learn(0)
    task = running.session._augmenting(STREAM[1])
    running.session.add_task(task.classes)
    running.method.begin_task(running.net, task)
    loop = Loop(running.net, running.method, [task], running.session.training, seed=1)
    index = torch.arange(12)
    running.net.train()
    with running.method.sharded(running.net, 12) as shard:
        step = loop.step_on(task, index, shard)
    assert not torch.equal(step.images, task.train.unit_images(index))
    x, old = step.x, running.net
    now = torch.cat([old.heads[0](old.embed(x, 0))], dim=1)
    earlier = running.method.teacher_logits(running.net, x, [0])
    assert torch.allclose(now, earlier, atol=1e-6)


def test_a_state_of_an_earlier_version_goes_on():
    task = STREAM[0]
    loop = Loop(*parts(), [task], Training(epochs=1), seed=1)
    state = copy.deepcopy(loop.state_dict())
    del state["chances"]["augment"]
    loop.load_state_dict(state)
    assert loop.rngs["augment"] is not None


def parts():
    running = Run(make_plan(STREAM, "finetune", values=QUICK), STREAM)
    return running.net, running.method


@pytest.mark.parametrize(
    ("shape", "name", "words"),
    [
        ((30,), "flip", r"shape \(30,\): give augment=none"),
        ((2, 8, 8), "augmix", "grey or RGB images"),
    ],
)
def test_inputs_it_is_not_for_are_refused(shape, name, words):
    with pytest.raises(UserError, match=words):
        run(blobs(shape=shape), "finetune", values={**QUICK, "augment": name})


def test_a_learner_augments_too(monkeypatch):
    calls = []

    def noting(images, generator, among):
        calls.append(images.shape)
        return images

    monkeypatch.setitem(FUNCTIONS, "flip", noting)
    learner = Learner(network="mlp", training=Training(epochs=1, augment="flip"))
    train = STREAM[0].train
    learner.learn("first", (train.images, train.labels))
    assert calls
    assert augmentation("none") is None
