"""What later tasks did to the answers of an earlier one is measured, and is next to nothing."""

import pytest
import safetensors.torch
import torch
from safetensors import safe_open
from torch import nn

from classgrad import CGP, Learner, Training, leakage
from classgrad.errors import UserError
from classgrad.learner.drift import Leakage, Reference
from classgrad.methods import Finetune
from oracles.models import built

QUICK = Training(epochs=12, batch_size=16, learning_rate=0.1)


def points(task, per_class=20, size=30):
    """Return two clouds of points in a plane, which shares a line with the next task's."""
    rng = torch.Generator().manual_seed(task)
    plane = torch.zeros(2, size)
    plane[:, task : task + 2] = torch.eye(2)
    labels = torch.arange(2).repeat(per_class)
    inside = torch.eye(2)[labels] + 0.1 * torch.randn(len(labels), 2, generator=rng)
    return 2 * inside @ plane, labels


def trunk(size=30):
    return built(
        lambda: nn.Sequential(nn.Linear(size, 40, bias=False), nn.ReLU(), nn.Linear(40, 40))
    ).float()


def first_task(method):
    learner = Learner(trunk(), method, training=QUICK)
    learner.learn("one", points(1), classes=["a", "b"])
    return learner


@pytest.fixture(scope="module")
def learner():
    """A learner of one task: the tests do not change it."""
    return first_task(CGP(contrast=0, energy=1))


def test_with_all_energy_protected_nothing_leaks_and_finetuning_leaks():
    result = {}
    for name, method in {"cgp": CGP(contrast=0, energy=1), "finetune": Finetune()}.items():
        one = first_task(method)
        reference = one.reference(points(1)[0], "one")
        assert leakage(one, reference) == Leakage("one", 0.0, 0.0, 0, 40)
        assert one.learn("two", points(2)).accuracy == 100
        result[name] = leakage(one, reference)
    assert result["cgp"].mean <= result["cgp"].largest < 1e-4
    assert result["cgp"].changed == 0
    assert result["finetune"].largest >= result["finetune"].mean > 0.1


def test_the_change_is_that_of_each_image_by_the_norm_of_its_logits(learner):
    reference = learner.reference(points(1)[0][[0, 20]], "one")
    now = reference.logits
    # The first image's logits were half of what they are, the second's the other way round.
    then = torch.stack([now[0] / 2, now[1].flip(0)])
    result = leakage(learner, Reference(reference.images, then, "one", reference.identity))
    second = float((now[1] - now[1].flip(0)).norm() / now[1].norm())
    assert result.largest == pytest.approx(max(1, second))
    assert result.mean == pytest.approx((1 + second) / 2)
    assert (result.changed, result.images) == (1, 2)
    assert str(Leakage("one", 0.00123, 0.5, 3, 40)) == (
        "task 'one': logits changed by 1.2e-03 of their norm on average, 5.0e-01 at most; "
        "3 of 40 predictions changed"
    )


def test_logits_that_were_zero_and_are_zero_have_not_changed(learner):
    reference = learner.reference(points(1)[0][:1], "one")
    with torch.no_grad():
        weight = learner.net.head_parameters(0)[0]
        kept = weight.clone()
        weight.zero_()
        zero = learner.reference(points(1)[0][:1], "one")
        assert leakage(learner, zero).largest == 0
        assert leakage(learner, reference).largest == 1
        weight.copy_(kept)
    assert leakage(learner, zero).largest == torch.inf


def test_a_forgotten_class_is_no_leakage():
    one = first_task(Finetune())
    reference = one.reference(points(1)[0], "one")
    one.forget_class("one", "a")
    assert leakage(one, reference) == Leakage("one", 0.0, 0.0, 0, 40)
    one.forget_class("one", "b")
    with pytest.raises(UserError, match="are forgotten"):
        leakage(one, reference)


def test_a_reference_outlives_images_and_classes_that_are_added():
    x, labels = points(1)
    one = Learner(trunk(), tune="none")
    one.learn("one", (x[:30], labels[:30]), classes=["a", "b"])
    reference = one.reference(x[:6], "one")
    assert leakage(one, reference).largest == 0
    one.learn("one", (x, labels), classes=["a", "b"])
    assert 0 < leakage(one, reference).mean < 0.5  # the means of the classes have moved
    one.learn("one", (points(2)[0][:4], torch.zeros(4, dtype=torch.int64)), classes=["c"])
    assert leakage(one, reference).images == 6
    before = {**reference.identity, "samples": [15, 15], "when": "then"}  # of an older version
    older = Reference(reference.images, reference.logits, "one", before)
    assert leakage(one, older) == leakage(one, reference)


def test_a_reference_comes_back_from_disk_and_fits_the_learner_that_did_too(learner, tmp_path):
    x = points(1)[0][:6].requires_grad_()
    reference = learner.reference(x, "one")
    assert not reference.images.requires_grad
    reference.save(tmp_path / "one.safetensors")
    learner.save(tmp_path / "state")
    again = Reference.load(tmp_path / "one.safetensors")
    assert torch.equal(again.images, x)
    assert torch.equal(again.logits, reference.logits)
    assert (again.task, again.identity) == (reference.task, reference.identity)
    loaded = Learner.load(tmp_path / "state", trunk=trunk())
    assert leakage(loaded, again) == Leakage("one", 0.0, 0.0, 0, 6)
    with safe_open(tmp_path / "one.safetensors", "pt") as file:
        assert set(file.keys()) == {"images", "logits"}


def test_images_are_kept_as_they_were_given():
    pictures = torch.randint(
        0, 256, (8, 3, 6, 6), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    own = built(lambda: nn.Sequential(nn.Flatten(), nn.Linear(108, 8))).float()
    one = Learner(own, Finetune(), training=QUICK, size=6)
    one.learn("one", (pictures, torch.arange(8) % 2))
    reference = one.reference(pictures[3], "one")
    assert torch.equal(reference.images, pictures[3:4])
    wanted = one.net.eval()((pictures[3:4].float() / 255 - 0.5) / 0.25, 0)
    assert torch.allclose(reference.logits, wanted)
    assert leakage(one, reference).images == 1


def test_what_is_wrong_is_said_in_one_line(learner, tmp_path):
    x = points(1)[0]
    reference = learner.reference(x[:2], "one")
    odd = Reference(x[:2, :4], reference.logits, "one", reference.identity)
    lost = Reference(x[:2], reference.logits, "ten", reference.identity)
    other = Learner(trunk(), Finetune(), training=QUICK)
    other.learn("one", points(2), classes=["a", "b"])
    (tmp_path / "text").write_text("no tensors")
    for call, message in [
        (
            lambda: learner.reference(x[:, :4], "one"),
            "shape (40, 4) cannot be used: give one or several of shape (30,)",
        ),
        (
            lambda: learner.reference(x[0, 0], "one"),
            "shape () cannot be used: give one or several of shape (30,)",
        ),
        (lambda: learner.reference(x[:0], "one"), "at least one"),
        (lambda: learner.reference(x, "ten"), "unknown task 'ten'"),
        (
            lambda: leakage(learner, odd),
            "shape (2, 4) cannot be used: give one or several of shape (30,)",
        ),
        (lambda: leakage(learner, lost), "unknown task 'ten'"),
        (lambda: leakage(other, reference), "of another learner: task 'one'"),
        (lambda: Reference.load(tmp_path / "none"), "no reference at"),
        (lambda: Reference.load(tmp_path), "no reference at"),
        (lambda: Reference.load(tmp_path / "text"), "is not a reference"),
        (lambda: reference.save(tmp_path / "no" / "file"), "give a file in an existing folder"),
        (lambda: reference.save(tmp_path), "give a file in an existing folder"),
    ]:
        with pytest.raises(UserError) as error:
            call()
        assert message in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("spoilt", ["logits", "images", "task", "identity"])
def test_a_file_whose_parts_do_not_fit_is_refused(learner, tmp_path, spoilt):
    good = learner.reference(points(1)[0][:3], "one")
    parts = {
        "logits": good.logits[:, :1],
        "images": good.images[:2],
        "task": 3,
        "identity": {"class_names": None},
    }
    fields = {name: getattr(good, name) for name in parts} | {spoilt: parts[spoilt]}
    Reference(**fields).save(tmp_path / "bad")
    with pytest.raises(UserError, match=r"the reference in .* does not fit"):
        Reference.load(tmp_path / "bad")


def test_other_tensors_are_not_a_reference(tmp_path):
    path = tmp_path / "tensors"
    safetensors.torch.save_file({"images": torch.ones(2), "logits": torch.ones(2)}, path)
    with pytest.raises(UserError, match="is not a reference: it names no task"):
        Reference.load(path)


def test_a_bug_in_loading_is_not_taken_for_a_file_that_is_no_reference(
    learner, tmp_path, monkeypatch
):
    learner.reference(points(1)[0][:3], "one").save(tmp_path / "one")
    monkeypatch.setattr(Reference, "refuse_misshapen", lambda self: self.wieght)
    with pytest.raises(AttributeError, match="wieght"):
        Reference.load(tmp_path / "one")
