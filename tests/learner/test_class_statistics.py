"""A learner that tells the classes of all tasks apart by their statistics."""

import json
import warnings

import pytest
import torch
from PIL import Image
from torch import nn

from classgrad import GPM, Learner, Training, UserError
from classgrad.cli.info import accuracy_lines
from classgrad.data.lookalikes import Scenes
from classgrad.learner.drift import leakage
from classgrad.learner.export import export
from classgrad.learner.learner import LookAlikes, SingleImage, TracesStay
from oracles.models import built
from photos import photos, timeless

QUICK = Training(epochs=4, batch_size=8, learning_rate=0.05)
NAMES = ["ant", "bee", "cod", "dog"]


def images(number, count=12, seed=0):
    """Return pictures of a class, around one of its own."""
    centre = torch.randint(60, 196, (3, 8, 8), generator=torch.Generator().manual_seed(number))
    rng = torch.Generator().manual_seed(100 * seed + number)
    noise = 25 * torch.randn(count, 3, 8, 8, generator=rng)
    return (centre + noise).clamp(0, 255).to(torch.uint8)


def data(*numbers, count=12, seed=0):
    """Return pictures of classes with their names."""
    labels = [NAMES[number] for number in numbers for _ in range(count)]
    return torch.cat([images(number, count, seed) for number in numbers]), labels


class Features(nn.Module):
    """A network with BatchNorm, as pretrained ones have."""

    def __init__(self):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(5)
            self.conv, self.norm = nn.Conv2d(3, 32, 3), nn.BatchNorm2d(32)
            self.norm.running_mean.normal_()
            self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        return self.norm(self.conv(x)).relu().flatten(2).mean(2)


def fixed(**options):
    return Learner(Features(), tune="none", size=8, **options)


@pytest.fixture(scope="module")
def learnt():
    learner = fixed()
    learner.learn("first", data(0, 1))
    learner.learn("second", data(2, 3))
    return learner


def correct(learner, **options):
    x, labels = data(0, 1, 2, 3, count=25, seed=9)
    return (
        sum(p.name == n for p, n in zip(learner.predict(x, **options), labels, strict=True)) / 100
    )


def test_classes_of_all_tasks_are_told_apart(learnt):
    assert correct(learnt) > 0.9
    assert learnt.ways == ("statistics",)
    assert learnt.tasks[1].task_free["samples"] == 40
    assert learnt.tasks[1].task_free["accuracy"] > 85
    one = learnt.predict(data(2)[0][:1])[0]
    assert len(one.ranking) == 4
    assert sum(guess.probability for guess in one.ranking) == pytest.approx(1)
    assert {guess.task for guess in learnt.predict(data(2)[0][:1], "second")[0].ranking} == {
        "second"
    }


def test_norms_are_those_of_test_time_and_nothing_is_trained(learnt):
    x = learnt.inputs(data(0)[0])
    expected = Features().eval()(x)
    torch.testing.assert_close(learnt.net.train().embed(x, 0), expected)
    assert not any(p.requires_grad for p in learnt.net.trunk.parameters())


def test_any_order_of_tasks_and_images_gives_the_same_classifier(learnt):
    other = fixed()
    for name, numbers in [("second", (3, 2)), ("first", (1, 0))]:
        for half in (1, 0):
            x, labels = data(*numbers)
            other.learn(name, (x[half::2], labels[half::2]))
    x = data(0, 1, 2, 3, seed=4)[0]
    for one, two in zip(learnt.predict(x), other.predict(x), strict=True):
        assert {(g.name, g.task) for g in one.ranking} == {(g.name, g.task) for g in two.ranking}
        for guess in one.ranking:
            match = next(g for g in two.ranking if g.name == guess.name)
            assert match.probability == pytest.approx(guess.probability, abs=1e-4)
        assert one.p_value == pytest.approx(two.p_value)


def test_the_same_images_and_seed_give_the_same_state(tmp_path):
    one, two = fixed(), fixed()
    for learner in (one, two):
        learner.learn("first", data(0, 1))
    assert timeless(one) == timeless(two)
    assert one.secret != two.secret  # who has the images cannot tell the key
    assert not torch.isin(one.classifier.digests, two.classifier.digests).any()
    assert one.tasks[0].data != two.tasks[0].data
    one.save(tmp_path)
    again = Learner.load(tmp_path, trunk=Features())
    assert timeless(again) == timeless(one)
    again.learn("second", data(2, 3))
    one.learn("second", data(2, 3))
    assert timeless(again) == timeless(one)


def test_images_are_added_to_a_task_and_none_is_counted_twice(learnt):
    learner = fixed()
    x, labels = data(0, 1)
    learner.learn("first", (x[::2], labels[::2]))
    assert learner.tasks[0].samples == [6, 6]
    learner.learn("first", (torch.cat([x, x]), labels + labels))
    assert learner.tasks[0].samples == [12, 12]
    before = timeless(learner)
    learner.learn("first", (x, labels))  # all are known
    assert timeless(learner) == before
    learner.learn("first", data(2))  # a new class
    assert learner.tasks[0].class_names == ["ant", "bee", "cod"]
    learner.learn("second", data(3))
    assert correct(learner) > 0.9
    torch.testing.assert_close(
        learner.classifier.statistics.products, learnt.classifier.statistics.products
    )


def test_classes_of_the_same_name_are_separate_merged_or_refused(tmp_path):
    learner = fixed()
    learner.learn("first", data(0, 1))
    with pytest.raises(UserError, match=r"class 'bee' was learnt in task 'first': .* merge"):
        learner.learn("second", data(1, 2, seed=1), same_classes="refuse")
    assert len(learner.tasks) == 1
    learner.learn("second", data(1, 2, seed=1), same_classes="merge")
    assert learner.tasks[1].numbers == [1, 2]
    assert learner.classifier.statistics.counts.tolist() == [12, 24, 12]
    assert len(learner.predict(data(1)[0][:1])[0].ranking) == 3
    export(learner, tmp_path / "merged.pt2")
    model = torch.export.load(tmp_path / "merged.pt2").module()
    x = data(1)[0][:1]
    (row,) = model(x)["probabilities"].tolist()
    wanted = {guess.name: guess.probability for guess in learner.predict(x)[0].ranking}
    assert dict(zip(NAMES[:3], row, strict=True)) == pytest.approx(wanted, abs=1e-4)
    learner.learn("third", data(1, 3, seed=2))
    assert len(learner.predict(data(1)[0][:1])[0].ranking) == 5
    learner.forget_class("first", "bee")
    assert learner.tasks[1].forgotten == ["bee"]
    assert learner.tasks[2].forgotten == []
    with pytest.raises(UserError, match="value of same_classes"):
        learner.learn("fourth", data(3), same_classes="no")


def test_an_image_in_two_classes_is_refused():
    learner = fixed()
    learner.learn("first", data(0, 1))
    x, _ = data(0)
    for labels, message in [
        (["cod"] * 12, "in class 'ant' and in class 'cod'"),
        (["cod"] * 6 + ["dog"] * 6, "in class 'ant' and in class 'cod'"),
    ]:
        with pytest.raises(UserError, match=message):
            learner.learn("second", (x, labels), same_classes="refuse")
    with pytest.raises(UserError, match="in class 'ant' and in class 'bee'"):
        fixed().learn("one", (torch.cat([x, x]), ["ant"] * 12 + ["bee"] * 12), same_classes="merge")
    assert [task.name for task in learner.tasks] == ["first"]
    assert len(learner.classifier) == 2


def test_what_is_no_class_is_refused(learnt):
    strangers = torch.cat([images(number, 10) for number in range(20, 30)])
    x, _ = data(0, 1, 2, 3, count=25, seed=9)
    known, unknown = (
        [one.known for one in learnt.predict(batch, unknown=0.1)] for batch in (x, strangers)
    )
    assert sum(known) > 80
    assert sum(unknown) < 50
    assert all(one.known for one in learnt.predict(strangers))  # unless it is asked for


def test_a_class_is_forgotten_with_or_without_its_images(tmp_path):
    x, labels = data(0, 1)
    whole = fixed()
    whole.learn("first", data(0))
    whole.learn("second", data(2))
    learner = fixed()
    learner.learn("first", (x, labels))
    learner.learn("second", data(2))
    with pytest.raises(UserError, match="1 of the 12 images of the class are not"):
        learner.forget_class("first", "bee", images(1)[:-1])
    assert learner.tasks[0].forgotten == []
    assert learner.forget_class("first", "bee", images(1)) == {}
    one, two = learner.classifier.statistics, whole.classifier.statistics
    assert torch.equal(one.products, two.products)
    assert one.removed == 0
    assert not one.sums[1].any()
    learner.save(tmp_path)
    again = Learner.load(tmp_path, trunk=Features())
    assert {g.name for g in again.predict(x[:1])[0].ranking} == {"ant", "cod"}
    with pytest.raises(UserError, match="'bee' of task 'first' is forgotten"):
        again.learn("first", data(1))


def test_a_learner_that_forgot_a_class_with_its_images_is_one_that_never_saw_it():
    never, learner = fixed(), fixed()
    never.secret = learner.secret = bytes(32)  # otherwise each has a random one
    never.learn("first", data(0))
    learner.learn("first", data(0, 1))
    before = learner.state_dict()
    for one in (never, learner):
        one.learn("second", data(2, 3))
    learner.forget_class("first", "bee", images(1).flip(0))
    state, wanted = learner.state_dict()["classifier"], never.state_dict()["classifier"]
    for name in ("sums", "counts", "checks"):
        assert not state[name][1].any()
        state[name] = state[name][[0, 2, 3]]
    for name in ("classes", "kept_classes"):
        state[name] = state[name] - (state[name] > 1).long()
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(torch.as_tensor(state[name]), torch.as_tensor(value)), name
    assert learner.tasks[0].data == ""  # a digest of all images of the task
    assert learner.state_dict()["net"].keys() == before["net"].keys()
    x = data(0, 1, 2, 3, seed=9)[0]
    for one, two in zip(learner.predict(x), never.predict(x), strict=True):
        assert one.p_value == two.p_value
        for guess, other in zip(one.ranking, two.ranking, strict=True):
            assert guess.name == other.name
            assert guess.probability == pytest.approx(other.probability, rel=1e-9)


def test_traces_that_stay_are_warned_of(tmp_path, recwarn):
    trunk = built(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())).float()
    learner = Learner(trunk, GPM(energy=0.5), training=QUICK, valid_fraction=0.25, size=8)
    learner.learn("first", data(0, 1))
    learner.learn("second", data(2, 3))
    with pytest.warns(TracesStay, match="traces of the images of class 'bee' stay"):
        learner.forget_class("first", "bee", images(1))
    recwarn.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", TracesStay)
        with pytest.raises(TracesStay):
            learner.forget_class("first", "ant", images(0))
    assert learner.tasks[0].forgotten == ["bee", "ant"], "forgotten although it is an error"
    fixed_features = fixed()
    fixed_features.learn("first", data(0, 1))
    fixed_features.forget_class("first", "bee", images(1))
    assert not recwarn.list
    assert correct(learner, task="second") > 0.4


def test_tuned_features_are_told_apart_by_statistics_too():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU())
    learner = Learner(trunk, GPM(), training=QUICK, valid_fraction=0.25, size=8)
    learner.learn("first", data(0, 1))
    learner.learn("second", data(2, 3))
    assert learner.ways == ("statistics", "confidence", "prototypes")
    assert len(learner.classifier.kept_classes) == 12  # those set aside for validation
    assert learner.classifier.statistics.counts.tolist() == [12] * 4
    assert correct(learner) > 0.9
    for by in ("confidence", "prototypes"):
        assert correct(learner, by=by) > 0.4
    learner.learn("first", data(0, seed=3))
    assert learner.classifier.statistics.counts.tolist() == [24, 12, 12, 12]
    with pytest.raises(UserError, match="which was trained without it"):
        learner.learn("first", data(3, seed=3))


def test_a_merged_class_is_forgotten_in_every_task_that_has_it():
    with torch.random.fork_rng():
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.ReLU())
    learner = Learner(trunk, GPM(), training=QUICK, valid_fraction=0.25, size=8)
    learner.learn("first", data(0, 1))
    learner.learn("second", data(1, 2, seed=1), same_classes="merge")
    learner.forget_class("first", "bee")
    for number, label in [(0, 1), (1, 0)]:
        assert learner.tasks[number].forgotten == ["bee"]
        assert not learner.net.head_parameters(number)[0][label].any()
        assert not learner.prototypes[number][label].any()
        assert learner.net.head_parameters(number)[0][1 - label].any()


def test_methods_that_protect_no_features_keep_no_statistics():
    from classgrad.methods import METHODS

    with torch.random.fork_rng():
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(192, 8))
    learner = Learner(trunk, METHODS["finetune"](), training=QUICK)
    learner.learn("first", data(0, 1))
    assert learner.ways == ("confidence", "prototypes")
    assert learner.default_way() == "prototypes"
    assert learner.default_way("first") == "confidence"
    with pytest.raises(UserError, match="has no statistics: predict by confidence or prototypes"):
        learner.predict(data(0)[0], by="statistics")


def test_one_file_predicts_all_classes(learnt, tmp_path):
    export(learnt, tmp_path / "all.pt2")
    about = {"classgrad.json": ""}
    model = torch.export.load(tmp_path / "all.pt2", extra_files=about).module()
    about = json.loads(about["classgrad.json"])
    assert about["classes"] == NAMES
    assert about["tasks"] == ["first", "first", "second", "second"]
    x, _ = data(0, 1, 2, 3, seed=5)
    rows = model(x)["probabilities"]
    for row, one in zip(rows, learnt.predict(x), strict=True):
        wanted = {guess.name: guess.probability for guess in one.ranking}
        assert dict(zip(NAMES, row.tolist(), strict=True)) == pytest.approx(wanted, abs=1e-4)


def test_fixed_features_do_not_drift(tmp_path):
    learner = fixed()
    learner.learn("first", data(0, 1))
    reference = learner.reference(data(0)[0], "first")
    learner.learn("second", data(2, 3))
    change = leakage(learner, reference)
    assert (change.largest, change.changed) == (0, 0)


def test_a_task_of_one_class_and_classes_of_few_images():
    learner = fixed()
    learner.learn("first", data(0, 1, 2))
    with pytest.warns(UserWarning, match="one training image"):
        learner.learn("one", (images(3)[:1], ["dog"]))
    assert learner.tasks[1].accuracy is None  # its only image cannot be left out
    assert learner.tasks[1].task_free["samples"] == 30
    assert correct(learner) > 0.7


def test_what_one_image_reveals_is_said_with_a_remedy_that_there_is():
    x = torch.rand(3, 6, generator=torch.Generator().manual_seed(1))
    trunk = built(lambda: nn.Linear(6, 4)).float()
    for tune, remedy in [("none", "let layers learn and leave"), ("all", "give more, or leave")]:
        learner = Learner(trunk, tune=tune, method=None if tune == "none" else GPM())
        with pytest.warns(SingleImage, match=f"mean of one image .*{remedy} prototypes out"):
            learner.learn("one", (x, ["a", "a", "b"]))


def test_priors_of_counts_prefer_frequent_classes():
    x = torch.cat([images(0, 100), images(1, 4)])
    made = []
    for priors in ("equal", "counts"):
        learner = fixed(priors=priors)
        learner.learn("first", (x, ["ant"] * 100 + ["bee"] * 4))
        (one,) = learner.predict(images(1, 1, seed=8))
        made.append(next(guess.probability for guess in one.ranking if guess.name == "bee"))
    assert made[1] < made[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tune": "some"}, "value of tune"),
        ({"priors": "none"}, "kind of priors"),
        ({"tune": "none", "method": GPM()}, "the method would have no effect"),
        ({"tune": "none", "training": QUICK}, "the training would have no effect"),
        ({"tune": "none", "prototypes": False}, "class statistics, which have the mean"),
        ({"tune": "none", "network": "alexnet5"}, "has to learn all its layers"),
        ({"tune": "none", "network_options": {"trainable": 2}}, "contradicts trainable=2"),
        ({"tune": "last", "trunk": Features()}, "is not known: tune all"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        Learner(**options)


def test_layers_that_learn_follow_from_the_choice():
    made = {
        tune: Learner(network="efficientnet-lite0", tune=tune).network_options["trainable"]
        for tune in ("none", "last", "all")
    }
    assert made == {"none": 0, "last": 5, "all": 18}
    assert Learner().tune == "none"
    assert Learner(network_options={"trainable": 3}).tune == "last"
    assert Learner(network="alexnet5").tune == "all"


def test_command_line(call, tmp_path):
    photos(tmp_path / "birds", "crow", "wren", seed=1)
    photos(tmp_path / "fish", "cod", "wren", seed=2)
    learn = ["learn", "state", "--size", "32", "--task"]
    code, out, err = call(*learn, "birds", "--images", "birds", "--verbose")
    assert (code, err) == (0, "")
    assert "task-free" in out
    code, _, err = call(*learn, "fish", "--images", "fish")
    assert code == 2
    assert "class 'wren' was learnt in task 'birds'" in err
    assert "(--same-classes merge)" in err
    code, out, err = call(*learn, "fish", "--images", "fish", "--same-classes", "separate")
    assert (code, err) == (0, "")
    assert "among all 4 classes so far" in out
    code, out, _ = call(*learn, "birds", "--images", "birds")
    assert code == 0
    assert "learnt before from the same images" in out
    predict = ["predict", "state", "birds/crow/00.png", "--unknown", "0.05"]
    (line,) = json.loads(call(*predict, "--json")[1])
    assert line["classes"][0]["class"] == "crow"
    assert line["known"] is (line["p_value"] > 0.05)
    header, row = call(*predict, "--csv")[1].splitlines()
    assert header == "file,class,task,probability,known,p_value,error"
    assert row.startswith("birds/crow/00.png,crow,birds,")
    assert "crow" in call(*predict)[1]
    code, out, _ = call("info", "state")
    assert "tune none" in out
    assert "statistics" in out
    code, out, _ = call("forget", "state", "--task", "birds", "--class", "crow")
    assert code == 0
    assert "and its share of the covariance" in out  # all of its ten images are kept
    assert "give its images" not in out
    code, out, _ = call(
        "forget", "state", "--task", "birds", "--class", "wren", "--images", "birds/wren"
    )
    assert code == 0
    assert "and its share of the covariance" in out
    photos(tmp_path / "more", "owl", "tit", count=14, seed=3)
    assert call(*learn, "more", "--images", "more")[0] == 0
    code, out, _ = call("forget", "state", "--task", "more", "--class", "owl")
    assert code == 0
    assert "share of the covariance that all classes have in common stays: give its images" in out
    assert "removed: its mean, its count and the features kept of it\n" in out
    learner = Learner.load(tmp_path / "state")
    learner.classifier.checks += 1  # as if the images were embedded otherwise now
    learner.save(tmp_path / "state")
    code, out, err = call(
        "forget", "state", "--task", "more", "--class", "tit", "--images", "more/tit"
    )
    assert (code, err) == (0, "")
    assert "traces of the images of class 'tit' stay" in out
    assert "share of" not in out


# Images that look alike.

EDGE = 24


def scene_views(number, count, seed):
    """Return smooth pictures of a class, each of another scene, larger than what a shot shows."""
    rng = torch.Generator().manual_seed(number)
    centre = torch.rand(3, 6, 6, generator=rng)
    rng = torch.Generator().manual_seed(1000 * seed + number)
    coarse = 0.22 * centre + 0.78 * torch.rand(count, 3, 6, 6, generator=rng)
    return nn.functional.interpolate(coarse, EDGE + 2, mode="bilinear")


def shots(number, scenes=12, count=5, seed=1):
    """Return shots of the scenes of a class, with a camera that is moved by up to a pixel."""
    views = scene_views(number, scenes, seed)
    rng = torch.Generator().manual_seed(number)
    parts = []
    for shot in range(count):
        y, x = (1, 1) if shot == 0 else torch.randint(3, (2,), generator=rng).tolist()
        seen = views[:, :, y : y + EDGE, x : x + EDGE]
        parts.append((255 * seen + 2 * torch.randn(seen.shape, generator=rng)).clamp(0, 255))
    return torch.cat(parts).to(torch.uint8)


def classes_of(parts):
    """Return pictures of several classes, and the names of their classes."""
    labels = [NAMES[number] for number, part in enumerate(parts) for _ in part]
    return torch.cat(parts), labels


def wide(**options):
    trunk = built(lambda: nn.Sequential(nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.Flatten()))
    return Learner(trunk.float(), tune="none", size=EDGE, **options)


def test_figures_of_shots_taken_in_a_row_are_those_of_new_scenes():
    reported, true = [], []
    for seed in (1, 2, 3):
        learner = wide(kept_features=12)
        learnt = learner.learn("one", classes_of([shots(n, seed=seed) for n in range(4)]))
        assert learnt.samples == [60] * 4
        assert learnt.scenes == [12] * 4
        assert learnt.task_free["samples"] == 48
        x, labels = classes_of([shots(n, 60, 1, seed + 10) for n in range(4)])
        named = [one.name for one in learner.predict(x, batch_size=240)]
        true.append(sum(map(str.__eq__, named, labels)) / 2.4)
        reported.append(learnt.accuracy)
    assert 40 < sum(true) / 3 < 90
    assert sum(reported) / 3 == pytest.approx(sum(true) / 3, abs=5)


def test_each_shot_of_a_row_on_its_own_would_flatter(monkeypatch):
    alone = lambda *parts: Scenes(torch.arange(sum(len(part) for part in parts)))  # noqa: E731
    monkeypatch.setattr("classgrad.learner.images.find_scenes", alone)
    flattering = wide().learn("one", classes_of([shots(n) for n in range(4)])).accuracy
    monkeypatch.undo()
    learnt = wide().learn("one", classes_of([shots(n) for n in range(4)]))
    assert flattering > 95 > 85 > learnt.interval["high"]


def test_new_shots_of_a_scene_that_is_given_again_belong_to_it():
    whole, parts = wide(), wide()
    x, labels = classes_of([shots(n) for n in range(4)])
    whole.learn("one", (x, labels))
    some = [row for row in range(240) if row % 5 in (1, 3) or row % 60 < 24]
    parts.learn("one", (x[some], [labels[row] for row in some]))
    assert parts.tasks[0].samples != whole.tasks[0].samples
    parts.learn("one", (x, labels))
    for key in ("samples", "scenes", "recalls"):
        assert getattr(parts.tasks[0], key) == getattr(whole.tasks[0], key)
    one, two = whole.classifier, parts.classifier
    order = two.kept_draws.argsort()[one.kept_draws.argsort().argsort()]
    assert torch.equal(two.scene_sizes[order], one.scene_sizes)
    assert torch.allclose(two.scene_sums[order], one.scene_sums, atol=1e-6)
    more = [shots(n, 3, 2, seed=8) for n in range(4)]
    parts.learn("one", classes_of(more))
    assert parts.tasks[0].samples == [66] * 4
    assert parts.tasks[0].scenes == [15] * 4


def test_a_class_of_one_scene_is_named_as_unmeasured(tmp_path):
    learner = wide()
    parts = [shots(0, 1), shots(1, 1), shots(2), shots(3)]
    learnt = learner.learn("one", classes_of(parts))
    assert learnt.scenes == [1, 1, 12, 12]
    assert set(learnt.recalls) == {"cod", "dog"}
    lines = dict(accuracy_lines(learner, learnt))
    assert lines["unmeasured"] == "ant, bee: all images look alike"
    assert lines["alike"] == "130 images show 26 scenes, each of which counts as one image"
    learner.learn("one", classes_of([shots(0, 1, seed=5)]))
    assert set(learner.tasks[0].recalls) == {"ant", "cod", "dog"}
    alone = wide()
    learnt = alone.learn("one", classes_of(parts[:2]))
    assert learnt.accuracy is None
    lines = dict(accuracy_lines(alone, learnt))
    assert lines["accuracy"] == "no validation data: all images of a class look alike"
    with pytest.raises(UserError, match="too few images that do not look alike"):
        wide().learn("one", classes_of(parts[:2]), require=50)


def test_what_looks_alike_in_two_classes_is_warned_of_before_anything_is_learnt(tmp_path):
    x, labels = classes_of([shots(0, 8, 1), shots(1, 12, 1)])
    x = torch.cat([x, shots(0, 8, 2)[8:9]])
    learner, seen = wide(), []
    message = (
        r"^2 images look like one of another class: image 1 of 21 \('ant'\) and image 21 of 21 "
        r"\('bee'\); is each in the right class\?$"
    )
    with pytest.warns(LookAlikes, match=message):
        learner.learn("one", (x, [*labels, "bee"]), observer=lambda _: seen.append(1))
    assert learner.tasks[0].scenes == [8, 13]  # of two classes, so of two scenes
    for row, name in enumerate([*labels, "bee"]):
        (tmp_path / name).mkdir(exist_ok=True)
        Image.fromarray(x[row].permute(1, 2, 0).numpy()).save(tmp_path / name / f"{row:02}.png")
    named = rf"'{tmp_path}/ant/00.png' and '{tmp_path}/bee/20.png'; is each"
    with pytest.warns(LookAlikes, match=named):
        wide().learn("one", tmp_path)
    (tmp_path / "ant" / "no picture").write_text("")
    with pytest.warns(LookAlikes, match=named):
        wide().learn("one", tmp_path, skip_bad=True)
    valid = (torch.cat([x[20:], shots(0, 1, 1, 7)]), ["bee", "ant"])
    with pytest.warns(LookAlikes, match=r"image 1 of 20 \('ant'\) and validation image 1 of 2"):
        wide().learn("one", (x[:20], labels), valid=valid)


def test_no_trace_by_which_images_could_be_compared_is_in_the_state():
    learner = wide(kept_features=2)
    learner.learn("one", classes_of([shots(n, 9, 1) for n in range(3)]))
    state = learner.state_dict()["classifier"]
    per_sample = {
        name for name, value in state.items() if getattr(value, "shape", [0])[:1] == (27,)
    }
    assert per_sample == {"digests", "classes"}
    again = wide(kept_features=2)
    x, labels = classes_of([shots(n, 9, 2)[9:] for n in range(3)])
    again.secret = learner.secret
    again.learn("one", (x, labels))
    both = torch.cat([state["digests"], again.state_dict()["classifier"]["digests"]])
    assert len(both.unique()) == 54  # of images that look alike nothing is the same


def test_command_line_names_what_looks_alike(call, tmp_path):
    for name, x in (("crow", shots(0, 6, 2)), ("wren", torch.cat([shots(1, 9), shots(0, 1)[:1]]))):
        (tmp_path / "birds" / name).mkdir(parents=True)
        for row, image in enumerate(x):
            file = tmp_path / "birds" / name / f"{row:02}.png"
            Image.fromarray(image.permute(1, 2, 0).numpy()).save(file)
    learn = ["learn", "state", "--task", "birds", "--images", "birds", "--size", "32"]
    code, out, err = call(*learn, "--same-classes", "separate")
    assert (code, err) == (0, "")
    named = "3 images look like one of another class: 'birds/crow/00.png' and 'birds/wren/45.png'"
    assert named in out
    assert "alike      58 images show 16 scenes, each of which counts as one image" in out
    code, out, err = call(*learn)
    assert code == 2
    assert named in out
    assert "the same image is in class" in err
