"""An exported file says what the learner says, in PyTorch alone and in onnxruntime."""

import json
import random
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from classgrad import Learner, Training, __version__
from classgrad.data.pictures import as_pictures
from classgrad.errors import UserError
from classgrad.learner import export as exporting
from classgrad.learner.export import export
from classgrad.methods import Finetune
from oracles.models import built

QUICK = Training(epochs=2, batch_size=8)
CLASSES = ["crow", "wren", "owl"]
# Where the file is used there is no classgrad: None refuses its import.
ALONE = """
import sys
sys.modules["classgrad"] = None
import json, torch
for folder in sys.argv[1:]:
    about = {"classgrad.json": ""}
    model = torch.export.load(f"{folder}/model.pt2", extra_files=about).module()
    about = json.loads(about["classgrad.json"])
    dtype = getattr(torch, about["dtype"])
    images = torch.tensor(json.load(open(f"{folder}/images.json")), dtype=dtype)
    batches = [model(batch) for batch in (images, images[:1], images[:4])]
    said = [batch["probabilities"].tolist() for batch in batches]
    json.dump({**about, "said": said}, open(f"{folder}/said", "w"))
"""
OWN = """
from torch import nn

def trunk():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(144, 10),
    )

def none():
    return 3
"""


def images(shape, seed, per_class=6):
    """Return pictures of three classes, each with a brightness of its own, or points."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat(per_class)
    noise = torch.rand(len(labels), *shape, generator=rng)
    values = 0.6 * noise + 0.2 * labels.reshape(-1, *[1] * len(shape))
    return (255 * values).to(torch.uint8) if len(shape) == 3 else values, labels


def trunk():
    return built(
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            nn.Dropout(0.2),
            nn.Flatten(),
            nn.Linear(4 * 36, 10),
        )
    ).float()


def learnt(shape, **values):
    """Return a learner of two tasks, of the first of which it has forgotten a class."""
    learner = Learner(method=Finetune(), training=QUICK, size=shape[-1], **values)
    learner.learn("day", images(shape, 1), classes=CLASSES)
    learner.learn("night", images(shape, 2), classes=CLASSES)
    learner.forget_class("day", "wren")
    return learner


@pytest.fixture(scope="module")
def own():
    return learnt((3, 8, 8), trunk=trunk())


def said_by(learner, x, task=None):
    """Return the probabilities that the learner gives to the classes in their order."""
    known = [
        (one.name, name)
        for one in learner.tasks
        for name in one.class_names
        if task in (None, one.name) and name not in one.forgotten
    ]
    result = []
    for one in learner.predict(x, task=task):
        by_name = {(guess.task, guess.name): guess.probability for guess in one.ranking}
        assert len(by_name) == len(known)
        result.append([by_name[name] for name in known])
    return torch.tensor(result)


def open_onnx(path):
    """Return a function from images to outputs by name, and what the file says about itself."""
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    about = json.loads(session.get_modelmeta().custom_metadata_map["classgrad.json"])
    names = [output.name for output in session.get_outputs()]
    assert names == about["outputs"]

    def run(x):
        values = session.run(None, {"images": x.numpy()})
        return dict(zip(names, map(torch.from_numpy, values), strict=True))

    return run, about


def open_torch(path):
    """Return the same of a file for PyTorch."""
    about = {"classgrad.json": ""}
    model = torch.export.load(path, extra_files=about).module()
    return model, json.loads(about["classgrad.json"])


OPEN = {".pt2": open_torch, ".onnx": open_onnx}


def test_without_classgrad_the_file_says_what_the_learner_says(own, tmp_path):
    kinds = {
        "own": own,
        "mlp": learnt((1, 4, 4), network="mlp", network_options={"batch_norm": True}),
        "points": learnt((5,), trunk=built(lambda: nn.Linear(5, 8)).float()),
    }
    wanted = {}
    for name, learner in kinds.items():
        for task in ("day", "night") if name == "own" else ("day",):
            folder = tmp_path / f"{name}-{task}"
            folder.mkdir()
            x = images(learner.input_shape, 3)[0]
            (folder / "images.json").write_text(json.dumps(x.tolist()))
            export(learner, folder / "model.pt2", task)
            wanted[folder] = said_by(learner, x, task)
    ended = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", ALONE, *map(str, wanted)],
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    for folder, probabilities in wanted.items():
        name, _, task = folder.name.partition("-")
        result = json.loads((folder / "said").read_text())
        for batch in result.pop("said"):
            difference = torch.tensor(batch) - probabilities[: len(batch)]
            assert difference.abs().max() < 1e-5, folder.name
        known = [one for one in CLASSES if task == "night" or one != "wren"]
        shape = list(kinds[name].input_shape)
        pictures = len(shape) == 3
        assert len(result.pop("sha256")) == 64
        assert (result.pop("preprocessing") is not None) == (shape[0] == 3 and pictures)
        channels = {"mean": [0.5] * shape[0], "deviation": [0.25] * shape[0]}
        assert result == {
            "classgrad": __version__,
            "task": task,
            "tasks": [task] * len(known),
            "classes": known,
            "by": "confidence",
            "outputs": ["probabilities"],
            "input_shape": shape,
            "dtype": "uint8" if pictures else "float32",
            "normalisation": channels if pictures else None,
        }
    day, night = wanted[tmp_path / "own-day"], wanted[tmp_path / "own-night"]
    both = night[:, [0, 2]] / night[:, [0, 2]].sum(1, keepdim=True)
    assert (day - both).abs().max() > 0.01  # the tasks do differ


def test_the_learner_is_left_as_it_was_and_the_file_holds_one_task_only(own, tmp_path):
    x = images(own.input_shape, 3)[0]
    before = said_by(own, x, "night")
    weights = {name: value.clone() for name, value in own.net.state_dict().items()}
    own.net.train()
    export(own, tmp_path / "model.pt2", "night")
    assert own.net.training
    assert all(p.requires_grad for p in own.net.parameters())
    assert all(torch.equal(weights[name], v) for name, v in own.net.state_dict().items())
    assert torch.equal(said_by(own, x, "night"), before)
    model = torch.export.load(tmp_path / "model.pt2").module()
    kept = set(model.state_dict())
    assert "net.heads.1.weight" in kept
    assert not {name for name in kept if name.endswith(("_0", "heads.0.weight"))}
    assert not model(x)["probabilities"].requires_grad


def test_the_file_holds_neither_pickles_nor_paths(own, tmp_path):
    export(own, tmp_path / "model.pt2", "day")
    with zipfile.ZipFile(tmp_path / "model.pt2") as file:
        contents = {name: file.read(name) for name in file.namelist()}
    assert not contents["archive/data/sample_inputs/model.pt"]
    for name, content in contents.items():
        assert not content.startswith((b"PK", b"\x80")), name
        assert b".py" not in content, name
    json.loads(contents["archive/extra/classgrad.json"])


def test_the_command_writes_the_file_and_replaces_it_only_by_force(
    call, own, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", list(sys.path))
    own.save(tmp_path / "state")
    (tmp_path / "my_trunk.py").write_text(OWN)
    words = ["export", "state", "--task", "night", "-o", "m.pt2", "--model"]
    assert call(*words, "my_trunk:trunk") == (0, "m.pt2\n", "")
    x = images(own.input_shape, 3)[0]
    model = torch.export.load(tmp_path / "m.pt2").module()
    assert (model(x)["probabilities"] - said_by(own, x, "night")).abs().max() < 1e-5
    (tmp_path / "m.pt2").write_text("old")
    refused(call(*words, "my_trunk:trunk"), "'m.pt2' exists already")
    assert (tmp_path / "m.pt2").read_text() == "old"
    assert call(*words, "my_trunk:trunk", "--force")[0] == 0
    assert (tmp_path / "m.pt2").stat().st_size > 1000
    (tmp_path / "m.pt2").unlink()
    refused(call(*words[:-1]), "give it again")
    refused(call(*words, "my_trunk"), "package.module:name")
    refused(call(*words, "my_funk:trunk"), "cannot be made: ModuleNotFoundError")
    refused(call(*words, "my_trunk:mlp"), "cannot be made: AttributeError")
    refused(call(*words, "my_trunk:none"), "makes a int")
    refused(call(*words[:3], "dusk", *words[4:], "my_trunk:trunk"), "unknown task 'dusk'")
    refused(call("export", "nowhere", "-o", "m.pt2"), "holds no learner")
    refused(call("export", ".", "-o", "m.pt2"), "holds no learner")
    refused(call("export", "state", "-o", "m.pt"), "'m.pt' does not end in .pt2 or .onnx")
    assert not (tmp_path / "m.pt2").exists()


def test_a_model_is_not_given_to_a_learner_with_a_network(call, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    learnt((1, 4, 4), network="mlp").save(tmp_path / "state")
    words = ["export", "state", "--task", "day", "-o", "m.pt2"]
    refused(call(*words, "--model", "collections:Counter"), "makes a Counter")
    refused(call(*words, "--model", "torch.nn:ReLU"), "leave out --model")
    assert call(*words) == (0, "m.pt2\n", "")


def refused(ended, message):
    code, out, err = ended
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(own, tmp_path, monkeypatch):
    (tmp_path / "folder.pt2").mkdir()
    new = tmp_path / "new.pt2"
    for call, message in [
        (lambda: export(own, new, "dya"), "unknown task 'dya': did you mean 'day'"),
        (lambda: export(own, tmp_path / "new.pt", "day"), "does not end in .pt2 or .onnx"),
        (lambda: export(own, tmp_path / "folder.pt2", "day", force=True), "is a folder"),
        (lambda: export(own, tmp_path / "no" / "new.pt2", "day"), "no' is not a folder"),
        (lambda: export(Learner(trunk()), new), "nothing was learnt yet"),
    ]:
        said_in_one_line(call, message)

    def full(*given):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.replace", full)
        said_in_one_line(lambda: export(own, new, "day"), "cannot be written: No space left")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.pt2"]


def said_in_one_line(call, message):
    with pytest.raises(UserError) as error:
        call()
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_the_only_task_need_not_be_named_and_one_without_classes_is_refused(tmp_path):
    learner = Learner(trunk(), Finetune(), training=QUICK)
    learner.learn("day", images((3, 8, 8), 1), classes=CLASSES)
    export(learner, tmp_path / "one.pt2")
    assert (tmp_path / "one.pt2").exists()
    for name in CLASSES:
        learner.forget_class("day", name)
    said_in_one_line(lambda: export(learner, tmp_path / "two.pt2"), "are forgotten")


class Deciding(nn.Module):
    """A trunk that looks at its input before it decides, which cannot be traced."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x):
        return self.layer(x) if x.sum() > 0 else self.layer(-x)


def test_a_trunk_that_cannot_be_traced_is_reported_in_one_line(tmp_path):
    learner = Learner(built(Deciding).float(), Finetune(), training=QUICK)
    learner.learn("day", images((5,), 1))
    said_in_one_line(lambda: export(learner, tmp_path / "new.pt2"), "cannot export this network")
    assert not list(tmp_path.iterdir())


# Learners that predict by something else than heads.


def bright(*numbers, size=8, count=12, seed=1):
    """Return pictures of classes with a picture of their own, and their names."""
    centres = torch.rand(6, 3, size, size, generator=torch.Generator().manual_seed(0))
    rng = torch.Generator().manual_seed(seed)
    labels = [number for number in numbers for _ in range(count)]
    values = 0.6 * centres[labels] + 0.4 * torch.rand(len(labels), 3, size, size, generator=rng)
    return (255 * values).to(torch.uint8), [f"class {number}" for number in labels]


def by_statistics(**values):
    """Return a learner of three tasks: one class of two of them is the same, one is forgotten."""
    learner = Learner(trunk(), tune="none", size=8, **values)
    learner.learn("first", bright(0, 1, 2))
    learner.learn("second", bright(1, 3, count=20, seed=2), same_classes="merge")
    learner.learn("third", bright(4, 5, 0, seed=3))
    learner.forget_class("third", "class 4")
    return learner


def same_as_predict(learner, path, x, task=None, close=1e-5):
    """Compare what a file says with what the learner says."""
    run, about = OPEN[path.suffix](path)
    said = run(x)
    classes = list(zip(about["tasks"], about["classes"], strict=True))
    p_values = said["p_values"].tolist() if "p_values" in said else [None] * len(x)
    predictions = learner.predict(x, task)
    assert len(predictions) == len(said["probabilities"]) == len(p_values)
    for one, row, p_value in zip(predictions, said["probabilities"], p_values, strict=True):
        wanted = {(guess.task, guess.name): guess.probability for guess in one.ranking}
        assert dict(zip(classes, row.tolist(), strict=True)) == pytest.approx(wanted, abs=close)
        assert classes[row.argmax()] == (one.task, one.name)
        assert p_value == (None if one.p_value is None else pytest.approx(one.p_value, abs=close))
    return about


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    """A learner with class statistics, and a folder with what it was exported to."""
    learner, folder = by_statistics(priors="counts"), tmp_path_factory.mktemp("exported")
    for suffix in suffixes_here():
        export(learner, folder / f"model{suffix}")
        export(learner, folder / f"floats{suffix}", floats=True)
    return learner, folder


def suffixes_here():
    """Return the formats that can be written here."""
    return [*OPEN] if all(map(exporting.find_spec, exporting.ONNX_PACKAGES)) else [".pt2"]


def test_priors_merged_and_forgotten_classes_are_as_in_predict(known, tmp_path):
    learner, folder = known
    white = torch.full((1, 3, 8, 8), 255, dtype=torch.uint8)
    x = torch.cat([bright(0, 1, 2, 3, 4, 5, count=5, seed=9)[0], white])
    abouts = [same_as_predict(learner, folder / f"model{suffix}", x) for suffix in suffixes_here()]
    assert abouts[-1] == abouts[0]
    assert abouts[0]["classes"] == [f"class {number}" for number in (0, 1, 2, 3, 0, 5)]
    assert abouts[0]["tasks"] == ["first"] * 3 + ["second"] + ["third"] * 2
    assert (abouts[0]["by"], abouts[0]["task"]) == ("statistics", None)
    p_values = [one.p_value for one in learner.predict(x)]
    assert len(set(p_values)) > 5
    assert p_values[-1] < 0.05  # white is none of these
    export(learner, tmp_path / "second.pt2", "second")
    about = same_as_predict(learner, tmp_path / "second.pt2", x, "second")
    assert about["classes"] == ["class 1", "class 3"]
    assert about["sha256"] != abouts[0]["sha256"]


def test_a_file_of_onnx_holds_neither_paths_nor_forgotten_names(known):
    pytest.importorskip("onnxscript")
    content = (known[1] / "model.onnx").read_bytes()
    assert b"class 5" in content
    assert b"class 4" not in content
    assert b".py" not in content


def test_all_tasks_of_a_learner_without_statistics_are_in_one_file(tmp_path):
    learner = learnt((3, 8, 8), trunk=trunk())
    x = images(learner.input_shape, 3)[0]
    for suffix in suffixes_here():
        path = tmp_path / f"model{suffix}"
        export(learner, path)
        about = same_as_predict(learner, path, x)
        assert about["by"] == "prototypes"
        assert about["classes"] == ["crow", "owl", *CLASSES]
    for name in CLASSES[::2]:
        learner.forget_class("day", name)
    export(learner, tmp_path / "rest.pt2")
    assert same_as_predict(learner, tmp_path / "rest.pt2", x)["tasks"] == ["night"] * 3


def test_a_class_without_a_sample_to_spare_has_p_values_of_one(tmp_path):
    learner = Learner(trunk(), tune="none", size=8)
    with pytest.warns(UserWarning, match="one training image"):
        learner.learn("one", bright(0, 1, count=1))
    for suffix in suffixes_here():
        export(learner, tmp_path / f"model{suffix}")
        x = bright(0, 1, 2, count=2, seed=4)[0]
        same_as_predict(learner, tmp_path / f"model{suffix}", x)
        assert [one.p_value for one in learner.predict(x)] == [1] * 6


@pytest.mark.parametrize("suffix", OPEN)
@pytest.mark.parametrize("floats", [False, True])
def test_another_type_shape_or_range_is_refused(known, suffix, floats):
    if suffix not in suffixes_here():
        pytest.skip("ONNX is not installed")
    learner, folder = known
    path = folder / f"{'floats' if floats else 'model'}{suffix}"
    x = bright(0, 1, 2, count=2, seed=4)[0]
    right = x / 255 if floats else x
    run, about = OPEN[suffix](path)
    said = run(right)
    assert about["dtype"] == ("float32" if floats else "uint8")
    if floats:
        same_as_predict(learner, path, right)
    wrong = [
        x if floats else x / 255,
        x.int(),
        x.float(),
        x / 127.5 - 1,
        right.double(),
        right[0],
        right[:, :1],
        right[:, :, :7],
        torch.cat([right, right], 3),
        right.permute(0, 2, 3, 1),
        right.flatten(1),
    ]
    if floats:
        wrong += [right.index_fill(0, torch.tensor([3]), value) for value in (2.0, -0.01, np.nan)]
    for one in wrong:
        with pytest.raises(Exception, match=r"(?i)dtype|type|dim|guard|rank|range|indices|shape"):
            run(one)
    again = run(right[:1])
    assert (again["probabilities"] - said["probabilities"][:1]).abs().max() < 1e-5


# ONNX, and what can be wrong with it.


def test_the_command_writes_onnx_and_says_what_is_missing(call, tmp_path, monkeypatch):
    learner = learnt((1, 4, 4), network="mlp")
    learner.save(tmp_path / "state")
    words = ["export", "state", "--task", "day", "-o", "m.onnx"]
    with monkeypatch.context() as patch:
        patch.setattr(exporting, "find_spec", lambda name: None if name == "onnxscript" else 1)
        refused(call(*words), "not installed, onnxscript: pip install 'classgrad[onnx]'")
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    pytest.importorskip("onnxscript")
    assert call(*words) == (0, "m.onnx\n", "")
    x = images(learner.input_shape, 3)[0]
    assert same_as_predict(learner, tmp_path / "m.onnx", x, "day")["dtype"] == "uint8"
    refused(call(*words), "'m.onnx' exists already")
    words[-1] = "m.pt2"
    assert call(*words, "--floats") == (0, "m.pt2\n", "")
    assert same_as_predict(learner, tmp_path / "m.pt2", x / 255, "day")["dtype"] == "float32"


def test_what_onnxruntime_cannot_run_or_computes_otherwise_is_not_written(tmp_path, monkeypatch):
    pytest.importorskip("onnxscript")
    learner, new = learnt((1, 4, 4), network="mlp"), tmp_path / "new.onnx"

    def failing(*given):
        raise ValueError("no such\noperator")

    for name, value, message in [
        ("LARGEST_ONNX", 1000, "too many for one ONNX file: use .pt2"),
        ("convert", failing, "cannot export this network to ONNX: no such operator"),
        ("convert", lambda path, *_: path.write_bytes(b"none"), "onnxruntime cannot run this"),
        ("run_onnx", lambda path, images: torch.full((2, 2), 0.3), "differ by 0."),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(exporting, name, value)
            said_in_one_line(lambda: export(learner, new, "day"), message)
    assert not list(tmp_path.iterdir())


def test_lower_precision_is_for_pytorch_alone(tmp_path):
    learner = learnt((1, 4, 4), network="mlp", precision="bfloat16")
    path, x = tmp_path / "new.pt2", images(learner.input_shape, 3)[0]
    if ".onnx" in suffixes_here():
        new = tmp_path / "new.onnx"
        said_in_one_line(lambda: export(learner, new, "day"), "cannot compute in bfloat16")
    export(learner, path, "day")
    same_as_predict(learner, path, x, "day", close=1e-3)
    with zipfile.ZipFile(path) as file:
        assert not [name for name in file.namelist() if b".py" in file.read(name)]
    assert list(tmp_path.iterdir()) == [path]


# Photos, read without classgrad.

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "export.md").read_text()
READER, ONNX = re.findall(r"```py(?:thon)?\n(.*?)```", PAGE, re.DOTALL)
READ_ALONE = f"""
import sys
sys.modules["classgrad"] = None
import json
import numpy as np
{READER}
size, paths, folders = json.loads(sys.argv[1])
photos = np.stack([np.asarray(read_photo(path, size)) for path in paths]).transpose(0, 3, 1, 2)
np.save("photos.npy", photos)
import os
import torch
for folder in folders:
    os.chdir(folder)
    if os.path.exists("fruit.pt2"):
        said = torch.export.load("fruit.pt2").module()(torch.from_numpy(photos))
        np.savez("fruit.pt2.npz", **{{name: value.numpy() for name, value in said.items()}})
    if os.path.exists("fruit.onnx"):
        exec({ONNX!r})
        np.savez("fruit.onnx.npz", probabilities=probabilities, p_values=p_values)
        json.dump(names, open("names.json", "w"))
"""


def photo_files(folder, count):
    """Write photos of several classes, sizes, formats and modes, and return their names."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    centres = rng.integers(0, 256, (5, 4, 4, 3))
    kinds = [
        *[("jpg", "RGB")] * 5,
        *[("png", "RGB")] * 2,
        *[("jpg", "L"), ("jpg", "CMYK"), ("png", "L"), ("png", "RGBA"), ("png", "P")],
        *[("png", "LA"), ("webp", "RGB"), ("webp", "RGBA"), ("bmp", "RGB"), ("gif", "P")],
        *[("tiff", "RGB"), ("png", "1")],
    ]
    paths = []
    for number in range(count):
        suffix, mode = kinds[number % len(kinds)]
        size = tuple(int(edge) for edge in rng.integers(5, 400, 2))
        coarse = np.clip(centres[number % 5] + rng.normal(0, 40, (4, 4, 3)), 0, 255)
        image = Image.fromarray(coarse.astype(np.uint8)).resize(size, Image.Resampling.BICUBIC)
        pixels = np.asarray(image) + rng.normal(0, 10, (size[1], size[0], 3))
        image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
        if mode in ("RGBA", "LA"):
            image.putalpha(Image.fromarray(rng.integers(0, 256, size[::-1], dtype=np.uint8)))
        exif = Image.Exif()
        exif[0x0112] = random.Random(number).randrange(1, 9)  # orientation
        given = {"exif": exif} if suffix in ("jpg", "png", "webp", "tiff") else {}
        if suffix == "jpg":
            given |= {"quality": 85, "progressive": number % 3 == 0}
        paths.append(folder / f"{number:03}-{mode}.{suffix}")
        image.convert(mode).save(paths[-1], **given)
    return paths


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return photo_files(tmp_path_factory.mktemp("made") / "photos", 200)


def taught(learner, paths):
    """Let a learner learn two tasks of some photos."""
    x, classes = as_pictures(paths[:60], learner.size), torch.arange(60) % 5
    first = classes < 3
    learner.learn("first", (x[first], classes[first]), classes=["lime", "plum", "fig"])
    learner.learn("second", (x[~first], classes[~first] - 3), classes=["pear", "kiwi"])
    return learner


def compare_alone(learner, paths, folder, suffixes):
    """Compare what exported files say of photos that are read without classgrad."""
    for suffix in reversed(suffixes):  # ONNX first, which is faster before paths are removed
        export(learner, folder / f"fruit{suffix}")
    given = json.dumps([learner.size, list(map(str, paths)), [str(folder)]])
    ended = subprocess.run(
        [sys.executable, "-I", "-W", "error", "-c", READ_ALONE, given],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr
    assert torch.equal(
        torch.from_numpy(np.load(folder / "photos.npy")), as_pictures(paths, learner.size)
    )
    predictions = learner.predict(paths, batch_size=50)
    names = ["lime", "plum", "fig", "pear", "kiwi"]
    for suffix in suffixes:
        with np.load(folder / f"fruit{suffix}.npz") as said:
            answered = [said["probabilities"], said["p_values"]]
        for one, row, p_value in zip(predictions, *answered, strict=True):
            wanted = {guess.name: guess.probability for guess in one.ranking}
            assert dict(zip(names, row.tolist(), strict=True)) == pytest.approx(wanted, abs=1e-5)
            assert names[row.argmax()] == one.name
            assert p_value == pytest.approx(one.p_value, abs=1e-5)
    answers = [one.name for one in predictions]
    if ".onnx" in suffixes:
        assert json.loads((folder / "names.json").read_text()) == answers
    assert len(set(answers)) == 5
    assert len({one.p_value for one in predictions}) > 10


def test_200_photos_read_without_classgrad_are_predicted_as_by_the_learner(photos, tmp_path):
    learner = taught(Learner(trunk(), tune="none", size=8), photos)
    compare_alone(learner, photos, tmp_path, suffixes_here())


@pytest.mark.interop
@pytest.mark.parametrize("suffix", OPEN)
def test_photos_are_predicted_as_by_the_pretrained_learner(photos, tmp_path, suffix):
    if suffix not in suffixes_here():
        pytest.skip("ONNX is not installed")
    learner = taught(Learner(size=32), photos)
    assert learner.network == "efficientnet-lite0"
    compare_alone(learner, photos[-60:], tmp_path, [suffix])


def test_the_reader_of_the_page_is_that_of_the_example():
    function = READER[READER.index("def read_photo") :]
    assert function in (ROOT / "examples" / "exported_model.py").read_text()


def resized(pixels, size, axis):
    """Resize rows (axis 1) or columns (axis 0) of a picture as the page says."""
    lines = np.moveaxis(pixels, axis, 0).astype(np.int64)
    step, result = len(lines) / size, np.zeros((size, *lines.shape[1:]), dtype=np.int64)
    for i in range(size):
        centre = (i + 0.5) * step
        weights = [max(0, 1 - abs(j + 0.5 - centre) / max(step, 1)) for j in range(len(lines))]
        for j, weight in enumerate(weights):
            result[i] += int(weight / sum(weights) * 2**22 + 0.5) * lines[j]
    return np.moveaxis((result + 2**21) >> 22, 0, axis)


def test_the_page_says_how_pictures_are_resized_to_the_pixel(tmp_path):
    rng = np.random.default_rng(3)
    path = tmp_path / "picture.png"
    for shape in [(37, 23), (8, 50), (5, 6), (90, 70), (61, 9)]:
        pixels = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(path)
        read = as_pictures(path, 8)[0].permute(1, 2, 0).numpy()
        wanted = resized(resized(pixels, 8, 1), 8, 0)
        other = resized(resized(pixels, 8, 0), 8, 1)
        assert abs(wanted - other).max() <= 1
        if shape == (61, 9):  # Pillow 13 begins with the columns
            assert np.array_equal(read, wanted) or np.array_equal(read, other)
        else:
            assert np.array_equal(read, wanted), shape
