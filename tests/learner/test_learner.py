"""A learner learns, predicts, forgets, and is the same after it was saved and loaded."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch import nn

from classgrad import CGP, GPM, Learner, Training
from classgrad.checkpoints import CheckpointManager
from classgrad.cli.info import weakest_lines
from classgrad.errors import UserError
from classgrad.learner.inputs import GivenTask, split_off_validation
from classgrad.methods import Finetune
from classgrad.methods.projection.forecast import epsilons, layer_forecast
from classgrad.training.loop import SampleNotFinite
from oracles.models import built
from photos import EDGE, photos, unkeyed

QUICK = Training(epochs=12, batch_size=16, learning_rate=0.1)


def points(task, per_class=20, classes=2, size=6):
    """Return clouds of points around centres of their own, and labels."""
    rng = torch.Generator().manual_seed(task)
    centres = 3 * torch.randn(classes, size, generator=rng)
    labels = torch.arange(classes).repeat(per_class)
    return centres[labels] + 0.3 * torch.randn(len(labels), size, generator=rng), labels


def trunk(size=6):
    return built(
        lambda: nn.Sequential(nn.Linear(size, 40), nn.ReLU(), nn.Linear(40, 20), nn.ReLU())
    ).float()


def small(**values):
    values = {"training": QUICK, **values}
    return Learner(trunk(), CGP(contrast=0, energy=0.99), **values)


@pytest.fixture(scope="module")
def learner():
    result = small()
    for task in range(3):
        result.learn(f"task {task}", points(task), classes=[f"{task}a", f"{task}b"])
    return result


def named(predictions):
    return [(one.name, one.task) for one in predictions]


def same_state(first, second):
    return equal(unkeyed(first), unkeyed(second))


def equal(first, second):
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(equal(first[k], second[k]) for k in first)
    if isinstance(first, list):
        return len(first) == len(second) and all(map(equal, first, second))
    return first == second


@pytest.mark.parametrize("by", ["confidence", "prototypes"])
def test_old_and_new_classes_are_told_apart_with_and_without_the_task(learner, by):
    for task in range(3):
        x, y = points(task)
        wanted = [(f"{task}{'ab'[label]}", f"task {task}") for label in y]
        assert named(learner.predict(x, task=f"task {task}", by=by)) == wanted
        result = named(learner.predict(x, by=by))
        least = {"confidence": 0.5, "prototypes": 0.9}[by]
        assert sum(map(tuple.__eq__, result, wanted)) >= least * len(wanted)


def test_a_prediction_ranks_all_classes_by_probability(learner):
    one = learner.predict(points(0)[0][0])[0]
    assert len(one.ranking) == 6
    values = [guess.probability for guess in one.ranking]
    assert values == sorted(values, reverse=True)
    assert (one.name, one.task, one.probability) == (
        one.ranking[0].name,
        one.ranking[0].task,
        values[0],
    )
    given = learner.predict(points(0)[0][0], task="task 0")[0]
    assert sum(guess.probability for guess in given.ranking) == pytest.approx(1)


def test_an_image_alone_is_predicted_as_among_others_to_the_bit(learner):
    x = points(1)[0]
    together = learner.predict(x)
    assert [learner.predict(x[i])[0] for i in range(len(x))] == together
    assert named(learner.predict(x, batch_size=7)) == named(together)


def test_paths_bytes_open_files_and_pillow_images_are_predicted_alike(tmp_path):
    folder = photos(tmp_path, "ant", "bee", count=4)
    one = Learner(network="mlp", size=EDGE, training=Training(epochs=1))
    one.learn("insects", folder)
    path = folder / "ant" / "00.png"
    expected = one.predict(path)
    assert one.predict(folder / "bee" / "00.png") != expected
    with open(path, "rb") as file, Image.open(path) as image:
        for given in (path.read_bytes(), file, image):
            assert one.predict(given) == expected
        assert one.predict([image, str(path), file, path.read_bytes()]) == expected * 4


def test_a_picture_that_cannot_be_read_is_an_error_or_reported_in_its_place(tmp_path):
    folder = photos(tmp_path, "ant", "bee", count=4)
    path = folder / "ant" / "00.png"
    one = Learner(network="mlp", size=EDGE, training=Training(epochs=1))
    one.learn("insects", folder)
    sound = one.predict(path)
    given = [b"no picture", path, tmp_path / "none.png", path.read_bytes()]
    with pytest.raises(UserError, match=r"^2 item"):
        one.predict(given)
    result = one.predict(given, report_bad=True)
    assert [result[1], result[3]] == sound * 2
    assert [bool(each.error) for each in result] == [True, False, True, False]
    assert result[2].error == "No such file or directory"
    assert not result[0].ranking
    assert [each.error for each in one.predict(given[2], report_bad=True)] == [result[2].error]
    assert one.predict(path, report_bad=True) == sound
    with pytest.raises(UserError, match="the list is empty"):
        one.predict([], report_bad=True)


def test_saved_and_loaded_it_is_the_same_and_learns_on_the_same(tmp_path, learner):
    learner.save(tmp_path / "state")
    again = Learner.load(tmp_path / "state", trunk=trunk())
    assert same_state(learner, again)
    assert again.predict(points(0)[0]) == learner.predict(points(0)[0])
    straight = small()
    for task in range(4):
        straight.learn(f"task {task}", points(task), classes=[f"{task}a", f"{task}b"])
    again.learn("task 3", points(3), classes=["3a", "3b"])
    assert same_state(straight, again)


def test_a_task_that_was_cut_short_resumes_to_the_same_bits(tmp_path, monkeypatch):
    straight, broken = small(), small()
    straight.learn("one", points(1))
    straight.learn("two", points(2))
    broken.learn("one", points(1), checkpoint_dir=tmp_path)
    before = broken.predict(points(1)[0])

    class Cut(Exception):
        pass

    def observer(progress):
        if progress.step == 9:
            raise Cut

    checkpoints = CheckpointManager(tmp_path / "learning", steps=4)
    with pytest.raises(Cut):
        broken.learn(
            "two", points(2), checkpoint_dir=tmp_path, checkpoints=checkpoints, observer=observer
        )
    assert broken.predict(points(1)[0]) == before
    assert [task.name for task in broken.tasks] == ["one"]
    again = Learner.load(tmp_path, trunk=trunk())
    assert [task.name for task in again.tasks] == ["one"]
    with pytest.raises(UserError, match="'two' was cut short with another data"):
        again.learn("two", points(3), checkpoint_dir=tmp_path)
    steps = []
    again.learn("two", points(2), checkpoint_dir=tmp_path, observer=lambda p: steps.append(p.step))
    assert steps[0] == 9  # the state was of after eight steps
    assert same_state(straight, again)
    assert same_state(straight, Learner.load(tmp_path, trunk=trunk()))
    assert not (tmp_path / "learning" / "checkpoints").exists()


def test_a_task_that_fails_leaves_the_learner_as_it_was():
    learner = small()
    x, y = points(1)
    with pytest.raises(SampleNotFinite):
        learner.learn("bad", (x * torch.inf, y))
    assert not learner.tasks
    learner.learn("good", (x, y))
    straight = small()
    straight.learn("good", (x, y))
    assert same_state(learner, straight)


def test_two_learners_on_one_state_do_not_overwrite_each_other(tmp_path):
    first = small()
    first.learn("one", points(1), checkpoint_dir=tmp_path)
    second = Learner.load(tmp_path, trunk=trunk())
    second.learn("two", points(2), checkpoint_dir=tmp_path)
    with pytest.raises(UserError, match="has learnt more since"):
        first.save(tmp_path)
    with pytest.raises(UserError, match="has learnt more since"):
        first.learn("three", points(3), checkpoint_dir=tmp_path)
    assert [task.name for task in Learner.load(tmp_path, trunk=trunk()).tasks] == ["one", "two"]


def test_a_class_is_forgotten(learner, tmp_path):
    learner.save(tmp_path)
    one = Learner.load(tmp_path, trunk=trunk())
    x = points(0)[0][:1]  # of class 0a
    by_head = {"by": "confidence"}
    ranking = one.predict(points(1)[0], **by_head)[0].ranking
    others = [guess for guess in ranking if guess.task == "task 1"]
    assert set(one.forget_class("task 0", "0a").values()) == {0}
    for by in ("statistics", "confidence", "prototypes"):
        assert "0a" not in {guess.name for guess in one.predict(x, by=by)[0].ranking}
    ranking = one.predict(points(1)[0], **by_head)[0].ranking
    assert [guess for guess in ranking if guess.task == "task 1"] == others
    with pytest.raises(UserError, match="0a"):
        one.forget_class("task 0", "0a")
    one.forget_class("task 0", "0b")
    assert {guess.task for guess in one.predict(x)[0].ranking} == {"task 1", "task 2"}
    one.save(tmp_path)
    assert Learner.load(tmp_path, trunk=trunk()).tasks[0].forgotten == ["0a", "0b"]


def test_free_rank_is_forecast_from_the_ranks_after_each_task(learner):
    ranks = {layer.name: layer.rank for layer in learner.method.layer_ranks()}
    assert {layer.name: layer.rank for layer in learner.forecast()} == ranks
    for layer in learner.forecast():
        series = [task.ranks[layer.name] for task in learner.tasks]
        epsilon = epsilons(learner.method, [layer.name])[layer.name]
        assert layer == layer_forecast(layer.name, layer.dimension, series, [2, 2, 2], epsilon)
    assert learner.capacity().layers == learner.forecast()


def test_labels_may_be_names_and_data_a_dataset():
    x, y = points(1)
    learner = small()
    names = [["crow", "wren"][label] for label in y]
    learner.learn("birds", list(zip(x, names, strict=True)))
    assert learner.predict(x[:2])[0].name == "crow"
    assert learner.tasks[0].samples == [18, 18]
    assert learner.tasks[0].accuracy == 100


def test_validation_data_can_be_given():
    learner = small()
    learner.learn("one", points(1), valid=points(1))
    assert learner.tasks[0].samples == [20, 20]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: Learner(trunk(), network="mlp"),
            "give either a trunk of your own or the name of a network",
        ),
        (lambda: Learner(network="lenet9"), "lenet9"),
        (lambda: small().predict(points(1)[0]), "nothing was learnt yet"),
        (lambda: small().learn("one", (points(1)[0], points(1)[1].float())), "whole number"),
        (lambda: small().learn("one", []), "empty"),
        (lambda: small().learn("one", (points(1)[0][:0], points(1)[1][:0])), "empty"),
        (lambda: small().learn("one", 3), "training data of this type cannot be used"),
        (lambda: small().learn("one", ("photos", points(1)[1])), "of this type cannot be used"),
        (lambda: small().learn("one", (points(1)[0], [None] * 40)), "of type list cannot be used"),
        (
            lambda: small().learn("one", points(1), valid=points(1, size=5)),
            r"validation images of task 'one' have shape \(5,\), those for training \(6,\)",
        ),
        (
            lambda: small(size=12).learn(
                "one",
                (torch.zeros(4, 3, 12, 12), [0, 0, 1, 1]),
                valid=(torch.zeros(2, 1, 12, 12), [0, 1]),
            ),
            "give all the same",
        ),
        (lambda: small().learn("one", points(1), classes=["x", "x"]), "two classes"),
        (lambda: small().learn("one", points(1), classes=["x"]), "outside 0..0"),
        (
            lambda: small().learn("one", (points(1)[0][:, :5], points(1)[1])),
            "refuses inputs of shape",
        ),
        (lambda: Learner.load("nowhere"), "holds no learner"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(call, message):
    with pytest.raises(UserError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


def test_wrong_calls_of_a_learner_that_has_learnt_are_reported(learner):
    x, y = points(1)
    for call, message in [
        (lambda: learner.predict(x, task="task 9"), "task 9"),
        (lambda: learner.predict(x, by="magic"), "magic"),
        (lambda: learner.predict(x[:, :4]), "shape"),
        (lambda: learner.forget_class("task 0", "crow"), "crow"),
        (lambda: learner.learn("task 0", (x, y)), "which was trained without it"),
        (lambda: learner.learn("other", (x[:, :4], y)), "shape"),
    ]:
        with pytest.raises(UserError, match=message):
            call()


def test_another_trunk_or_method_than_that_of_the_state_is_refused(learner, tmp_path):
    learner.save(tmp_path)
    with pytest.raises(UserError, match="trunk of your own: give it again") as error:
        Learner.load(tmp_path)
    wider = built(lambda: nn.Sequential(nn.Linear(6, 41), nn.ReLU(), nn.Linear(41, 20), nn.ReLU()))
    with pytest.raises(UserError, match=r"'trunk\.0\.weight' has shape"):
        Learner.load(tmp_path, trunk=wider)
    deeper = built(lambda: nn.Sequential(*trunk(), nn.Linear(20, 20)))
    with pytest.raises(UserError, match=r"trunk\.4"):
        Learner.load(tmp_path, trunk=deeper)
    with pytest.raises(UserError, match="method is cgp, not gpm"):
        Learner.load(tmp_path, trunk=trunk(), method=GPM())
    assert "\n" not in str(error.value)


def test_norms_and_dropout_of_a_trunk_become_those_of_a_stream():
    own = built(
        lambda: nn.Sequential(
            nn.Linear(6, 30), nn.BatchNorm1d(30), nn.Dropout(0.1), nn.ReLU(), nn.Linear(30, 20)
        )
    )
    own[1].running_mean.fill_(0.5)
    learner = Learner(own, GPM(), training=QUICK)
    state = torch.random.get_rng_state()
    for task in range(2):
        learner.learn(str(task), points(task))
    assert torch.equal(state, torch.random.get_rng_state())
    assert isinstance(own[1], nn.BatchNorm1d)  # the given one stays as it was
    x, y = points(0)
    assert [int(one.name) for one in learner.predict(x, task="0")] == y.tolist()


def test_the_state_holds_no_training_image(learner, tmp_path):
    learner.save(tmp_path)
    from safetensors.torch import load_file

    (path,) = sorted(tmp_path.rglob("tensors.safetensors"))[-1:]
    for values in load_file(path).values():
        flat = values.double().reshape(-1, values.shape[-1]) if values.dim() else values[None, None]
        if flat.shape[1] == 6:
            for task in range(3):
                x = nn.functional.normalize(points(task)[0].double(), dim=1)
                cosines = nn.functional.normalize(flat.double(), dim=1) @ x.T
                assert cosines.max() < 1 - 1e-6
    assert "image" not in json.dumps([task.samples for task in learner.tasks])


def test_a_class_of_one_image_is_warned_of_and_prototypes_can_be_left_out(tmp_path):
    x, y = points(1)
    few = (torch.cat([x[::2], x[1:2]]), torch.cat([y[::2], y[1:2]]))
    with pytest.warns(UserWarning, match="class '1' of task 'one' has one training image"):
        small().learn("one", few)
    with pytest.raises(UserError, match="similarity=1"):
        small(prototypes=False)
    plain = Learner(trunk(), CGP(contrast=0, similarity=1), training=QUICK, prototypes=False)
    plain.learn("one", few)
    plain.learn("two", points(2))
    plain.save(tmp_path)
    again = Learner.load(tmp_path, trunk=trunk())
    assert named(again.predict(points(2)[0][:2], task="two")) == [("0", "two"), ("1", "two")]
    with pytest.raises(UserError, match="this learner has no prototypes"):
        again.predict(x, by="prototypes")
    from safetensors.torch import load_file

    (path,) = sorted(tmp_path.rglob("tensors.safetensors"))[-1:]
    one = x[1] / x[1].norm()
    for values in load_file(path).values():
        if values.dim() == 2 and values.shape[1] == 6:
            assert (nn.functional.normalize(values.float(), dim=1) @ one).max() < 1 - 1e-4


def test_methods_that_keep_samples_are_refused():
    from classgrad.methods import ER, Multitask

    for method in (ER(), Multitask()):
        with pytest.raises(UserError, match="keeps samples or needs all tasks"):
            Learner(trunk(), method)


def test_finetuning_forgets_what_cgp_keeps(learner):
    plain = Learner(trunk(), Finetune(), training=QUICK)
    for task in range(3):
        plain.learn(f"task {task}", points(task), classes=[f"{task}a", f"{task}b"])
    x = points(0)[0]

    def moved(one):
        now = one.net.eval()(x, 0)
        fresh = Learner(trunk(), one.method, training=QUICK)
        fresh.learn("task 0", points(0), classes=["0a", "0b"])
        return ((now - fresh.net.eval()(x, 0)).norm() / now.norm()).item()

    assert moved(learner) < 0.25 * moved(plain)


def test_a_state_whose_parts_do_not_fit_is_refused_in_one_line(learner):
    from classgrad.checkpoints.errors import raising_bad_checkpoint

    for name, value in (
        ("input_shape", [0]),
        ("prototypes", []),
        ("tasks", [{"name": "one"}]),
        ("tasks", [{**learner.state_dict()["tasks"][0], "sharpness": {}}]),
        ("tasks", [{**task, "ranks": {}} for task in learner.state_dict()["tasks"]]),
    ):
        with pytest.raises(UserError, match="does not fit") as error, raising_bad_checkpoint("it"):
            small().load_state_dict({**learner.state_dict(), name: value})
        assert str(error.value).isprintable()


def test_with_less_precision_steps_still_stay_out_of_the_bases():
    learner, exact = small(precision="bfloat16"), small()
    for one in (learner, exact):
        one.learn("one", points(1))
    seen = []
    hook = learner.net.trunk[0].register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    before = {name: value.clone() for name, value in learner.net.state_dict().items()}
    bases = {name: space.basis for name, space in learner.method.subspaces.items()}
    learner.learn("two", points(2))
    hook.remove()
    assert set(seen) == {torch.bfloat16}
    assert learner.net.trunk[0].weight.dtype == torch.float32
    for name, basis in bases.items():
        key = f"trunk.{name}.weight"
        moved = (learner.net.state_dict()[key] - before[key]).double()
        assert moved.norm() > 1e-3
        assert (moved @ basis).norm() < 1e-5 * moved.norm()
    x = points(1)[0]
    assert not torch.equal(learner.net(x, 0), exact.net(x, 0))
    with pytest.raises(UserError, match="int4"):
        small(precision="int4")


def test_validation_data_may_have_their_names_in_another_form(tmp_path):
    apart, together = "e\u0301t", "\u00e9t"  # the same name, before and after "f" in order
    photos(tmp_path / "train", "f", apart, seed=1)
    photos(tmp_path / "valid", apart, "f", seed=2)
    (tmp_path / "valid" / apart).rename(tmp_path / "valid" / together)
    assert sorted([apart, "f"]) != sorted(["f", together])
    learner = Learner(network="mlp", network_options={"width": 8}, size=8, training=QUICK)
    learner.learn("folders", tmp_path / "train", valid=tmp_path / "valid")
    assert learner.tasks[0].class_names == ["f", together]
    x = torch.rand(8, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    one, other = (["f", name] * 4 for name in (apart, together))
    learner.learn("labels", (x, one), valid=(x, other))
    learner.learn("names", (x, one), valid=(x, one), classes=[apart, "f"])
    assert [task.class_names for task in learner.tasks[1:]] == [["f", together], [together, "f"]]


@pytest.mark.parametrize("tune", ["none", "all"])
def test_a_task_that_could_not_be_saved_is_refused_before_training(tune, tmp_path, monkeypatch):
    steps = []
    trunk = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU())).float()
    learner = Learner(trunk, **({"tune": "none"} if tune == "none" else {"method": GPM()}))
    monkeypatch.setattr("classgrad.files.shutil.disk_usage", lambda _: SimpleNamespace(free=9e6))
    x = torch.zeros(8, 4).index_fill_(1, torch.tensor([0]), 1.0)
    x[4:] *= -1
    data, folder = (x, torch.arange(8) // 4), tmp_path / "new" / "state"
    with pytest.raises(
        UserError, match=r"has 9 MB left, but this task needs about 10 MB"
    ) as caught:
        learner.learn("one", data, checkpoint_dir=folder, observer=steps.append)
    assert "\n" not in str(caught.value)
    assert steps == []
    assert learner.tasks == []
    assert not (folder / "checkpoints").exists()
    monkeypatch.undo()
    learner.learn("one", data, checkpoint_dir=folder)
    assert len(Learner.load(folder, trunk).tasks) == 1


# Validation data.


def chosen(labels, scenes, share=0.1, seed=1):
    rng = torch.Generator().manual_seed(seed)
    return split_off_validation(labels, share, rng, scenes)


@pytest.mark.parametrize("share", [0.1, 0.3])
@pytest.mark.parametrize("seed", range(5))
def test_scenes_are_for_training_or_for_validation(share, seed):
    rng = torch.Generator().manual_seed(seed)
    counts = [1, 3, 4, 5, 5, 6, 30, 200, 200]
    labels = torch.arange(9).repeat_interleave(torch.tensor(counts))
    labels = labels[torch.randperm(len(labels), generator=rng)]
    scenes = 1000 * labels + torch.randint(60, (len(labels),), generator=rng)
    scenes[labels == 4] = 4000  # a single scene
    valid = chosen(labels, scenes, share, seed)
    assert not torch.isin(scenes[valid], scenes[~valid]).any()
    for label, count in enumerate(counts):
        of_class = valid[labels == label]
        several = len(scenes[labels == label].unique()) > 1
        assert int((~of_class).sum()) >= 1
        if count >= 5 and several:
            assert of_class.any()
        if count == 200:
            assert abs(int(of_class.sum()) - share * count) <= 3
    assert not valid[labels == 4].any()
    assert not chosen(labels, scenes, 0.0).any()


def test_a_scene_that_is_too_large_is_passed_over_unless_all_are():
    labels = torch.zeros(54, dtype=torch.int64)
    for seed in range(5):
        valid = chosen(labels, torch.arange(54).sub(49).clamp(min=0), seed=seed)
        assert valid.tolist() == [False] * 50 + [True] * 4
        valid = chosen(labels, (torch.arange(54) >= 20).long(), seed=seed)
        assert valid.tolist() == [True] * 20 + [False] * 34


def test_without_scenes_validation_data_are_those_of_earlier_versions():
    labels = torch.arange(3).repeat_interleave(torch.tensor([5, 16, 40]))
    rng, expected = torch.Generator().manual_seed(1), []
    for first, count, share in ((0, 5, 0), (5, 16, 2), (21, 40, 4)):
        expected += (first + torch.randperm(count, generator=rng)[:share]).tolist()
    assert chosen(labels, None).nonzero().flatten().tolist() == sorted(expected)
    alone = chosen(labels, torch.arange(61))
    assert alone[5:].nonzero().flatten().add(5).tolist() == sorted(expected)
    assert int(alone[:5].sum()) == 1  # not so in earlier versions


def test_classes_of_five_images_are_measured_beside_large_ones():
    sizes = (60, 60, 5, 5)
    rng = torch.Generator().manual_seed(1)
    labels = torch.arange(4).repeat_interleave(torch.tensor(sizes))
    centres = torch.randn(4, 6, generator=rng)
    centres[2:] = centres[:2] + 0.3  # so that the small ones are easily missed
    x = centres[labels] + 0.5 * torch.randn(len(labels), 6, generator=rng)
    learner = Learner(trunk(), Finetune(), training=QUICK, prototypes=False)
    learnt = learner.learn("one", (x, labels))
    assert learnt.samples == [54, 54, 4, 4]
    assert learnt.interval["samples"] == 14
    assert set(learnt.recalls) == {"0", "1", "2", "3"}
    assert learnt.accuracy == pytest.approx(sum(learnt.recalls.values()) / 4)
    assert learnt.interval["high"] - learnt.interval["low"] > 30
    assert "unmeasured" not in dict(weakest_lines(learnt))


def shots(classes=3, scenes=6, count=5, edge=12, seed=1):
    """Return pictures with labels: shots of scenes that show nothing of their class."""
    rng = torch.Generator().manual_seed(seed)
    views = 255 * torch.rand(classes * scenes, 3, 4, 4, generator=rng)
    views = nn.functional.interpolate(views, edge, mode="bilinear")
    noise = 4 * torch.randn(count, *views.shape, generator=rng)
    images = (views + noise).clamp(0, 255).to(torch.uint8).flatten(0, 1)
    return images, torch.arange(classes).repeat_interleave(scenes).repeat(count)


def of_pictures(**options):
    net = built(lambda: nn.Sequential(nn.Flatten(), nn.Linear(432, 30), nn.ReLU())).float()
    return Learner(net, training=QUICK, valid_fraction=0.4, size=12, **options)


def test_validation_images_of_a_scene_count_once_and_tell_of_new_scenes(monkeypatch):
    x, y = shots()
    learner = of_pictures(method=Finetune())
    learnt = learner.learn("one", (x, y))
    assert learnt.samples == [20, 20, 20]
    assert learnt.scenes == [4, 4, 4]
    assert learnt.interval["samples"] == 6  # two scenes of each class
    assert learnt.accuracy < 75
    # What looks like a training image is not measured with, wherever it comes from.
    given = of_pictures(method=Finetune())
    learnt = given.learn("one", (x[:54], y[:54]), valid=(x[54:], y[54:]))
    assert learnt.accuracy is None
    one = x[:1].flip(3)
    learnt = of_pictures(method=Finetune()).learn(
        "one", (x[:54], y[:54]), valid=(torch.cat([x[54:], one, one]), torch.cat([y[54:], y[:2]]))
    )
    assert learnt.interval["samples"] == 1

    def as_before(labels, share, rng, scenes=None):
        return split_off_validation(labels, share, rng)

    monkeypatch.setattr("classgrad.learner.learner.split_off_validation", as_before)
    monkeypatch.setattr(GivenTask, "measured", lambda task: task.valid)
    flattering = of_pictures(method=Finetune()).learn("one", (x, y))
    assert flattering.accuracy == 100
    assert flattering.interval["samples"] == 36


def test_kept_samples_of_trained_features_are_of_scenes_that_were_not_trained_on():
    learner = of_pictures(method=GPM())
    learnt = learner.learn("one", shots())
    assert learner.classifier.scene_sizes.tolist() == [5] * 6
    assert learnt.task_free["samples"] == 6
    assert learnt.task_free["accuracy"] < 75


@pytest.mark.parametrize("begun", [True, False])
def test_what_an_earlier_version_split_otherwise_is_resumed_and_recognised(
    begun, tmp_path, monkeypatch
):
    def as_before(labels, share, rng, scenes=None):
        return split_off_validation(labels, share, rng)

    class Cut(Exception):
        pass

    def observer(progress):
        if begun and progress.step == 9:
            raise Cut

    with monkeypatch.context() as patch:
        patch.setattr("classgrad.learner.learner.split_off_validation", as_before)
        with pytest.raises(Cut) if begun else nullcontext():
            of_pictures(method=Finetune()).learn(
                "one",
                shots(),
                checkpoint_dir=tmp_path,
                checkpoints=CheckpointManager(tmp_path / "learning", steps=4),
                observer=observer,
            )
    steps, learner = [], of_pictures(method=Finetune())
    if not begun:
        learner = Learner.load(tmp_path, trunk=learner.trunk)
    options = {"checkpoint_dir": tmp_path, "observer": lambda p: steps.append(p.step)}
    learnt = learner.learn("one", shots(), **options)
    assert learnt.samples == [18, 18, 18]
    assert steps[:1] == ([9] if begun else [])
    with pytest.raises(UserError, match="from other data"):
        learner.learn("one", shots(seed=2), **options)
    again = of_pictures(method=Finetune()).learn("one", shots())
    assert again.samples == [20, 20, 20]


# Mean and deviation of a trunk of one's own.


def with_mean(**values):
    net = built(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten())).float()
    return Learner(net, tune="none", size=4, **values)


def test_pictures_are_normalised_as_a_trunk_of_ones_own_needs_it(tmp_path):
    rng = torch.Generator().manual_seed(1)
    x = torch.randint(0, 256, (12, 3, 4, 4), generator=rng, dtype=torch.uint8)
    mean, deviation = [0.485, 0.456, 0.406], (0.229, 0.224, 0.225)
    learner = with_mean(mean=mean, deviation=deviation)
    learner.learn("one", (x, torch.arange(12) % 2))
    expected = (x / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(deviation)[
        :, None, None
    ]
    torch.testing.assert_close(learner.inputs(x), expected)
    learner.save(tmp_path)
    again = Learner.load(tmp_path, trunk=learner.trunk)
    torch.testing.assert_close(again.inputs(x), expected)
    assert again.settings()["network_options"] == {"mean": mean, "deviation": list(deviation)}
    assert again.predict(x) == learner.predict(x) == learner.frozen().predict(x)
    plain, same = with_mean(), with_mean(mean=0.5, deviation=0.25)
    for one in (plain, same):
        one.learn("one", (x, torch.arange(12) % 2))
        torch.testing.assert_close(one.inputs(x), (x / 255 - 0.5) / 0.25)
    assert plain.predict(x) != learner.predict(x)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"mean": (0.5, 0.5)}, r"the mean has 2 values, but images have shape \(3, 4, 4\)"),
        ({"deviation": [0.0, 1.0, 1.0]}, r"deviation must be greater than 0"),
        ({"deviation": -1}, r"deviation must be greater than 0 \(got -1\)"),
        ({"mean": float("nan")}, "mean must be a finite number"),
        ({"mean": "grey"}, "mean must be a valid number"),
    ],
)
def test_a_mean_or_deviation_that_cannot_be_is_refused(values, message):
    with pytest.raises(UserError, match=message) as error:
        with_mean(**values).learn("one", (torch.zeros(4, 3, 4, 4), [0, 1, 0, 1]))
    assert "\n" not in str(error.value)


def test_a_mean_where_it_has_no_effect_is_refused():
    with pytest.raises(UserError, match="network 'mlp' has a mean and a deviation of its own"):
        Learner(network="mlp", mean=0.4)
    learner = small(mean=0.4)
    with pytest.raises(UserError, match=r"inputs of shape \(6,\) are no pictures .* stay as they"):
        learner.learn("one", points(1))
    assert not learner.input_shape


def test_a_task_is_not_resumed_with_another_mean(tmp_path):
    class Cut(Exception):
        pass

    def observer(progress):
        if progress.step == 9:
            raise Cut

    def learn(mean, **options):
        one = of_pictures(method=Finetune(), mean=mean)
        one.learn("one", shots(), checkpoint_dir=tmp_path, **options)
        return one

    with pytest.raises(Cut):
        learn(0.4, checkpoints=CheckpointManager(tmp_path / "learning", steps=4), observer=observer)
    with pytest.raises(UserError, match="was cut short with another network_options"):
        learn(0.5)
    assert learn(0.4).network_options == {"mean": 0.4}
