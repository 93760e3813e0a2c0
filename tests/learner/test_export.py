"""An exported task says in PyTorch alone what the learner says."""

import json
import subprocess
import sys
import zipfile

import pytest
import torch
from torch import nn

from classgrad import Learner, Training, __version__
from classgrad.errors import UserError
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
    images = torch.tensor(json.load(open(f"{folder}/images.json")))
    said = [model(batch).tolist() for batch in (images, images[:1], images[:4])]
    json.dump({**json.loads(about["classgrad.json"]), "said": said}, open(f"{folder}/said", "w"))
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
    """Return pictures of three classes, each with a brightness of its own."""
    rng = torch.Generator().manual_seed(seed)
    labels = torch.arange(3).repeat(per_class)
    noise = torch.rand(len(labels), *shape, generator=rng)
    return 0.6 * noise + 0.2 * labels.reshape(-1, *[1] * len(shape)), labels


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


def said_by(learner, x, task):
    """Return the probabilities that the learner gives to the classes in their order."""
    result = []
    for one in learner.predict(x, task=task):
        by_name = {guess.name: guess.probability for guess in one.ranking}
        result.append([by_name.get(name, 0.0) for name in CLASSES])
    return torch.tensor(result)


def test_without_classgrad_the_file_says_what_the_learner_says(own, tmp_path):
    kinds = {
        "own": own,
        "mlp": learnt((1, 4, 4), network="mlp", network_options={"batch_norm": True}),
        "lenet5": learnt((3, 8, 8), network="lenet5"),
        "alexnet5": learnt((3, 19, 19), network="alexnet5"),
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
        assert result == {
            "classgrad": __version__,
            "task": task,
            "tasks": [task] * len(CLASSES),
            "classes": CLASSES,
            "forgotten": ["wren"] if task == "day" else [],
            "input_shape": list(kinds[name].input_shape),
            "dtype": "float32",
        }
    day = wanted[tmp_path / "own-day"]
    assert (day[:, 1] == 0).all()
    assert (day - wanted[tmp_path / "own-night"]).abs().max() > 0.01  # the tasks do differ


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
    assert not model(x).requires_grad


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
    assert (model(x) - said_by(own, x, "night")).abs().max() < 1e-5
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
    refused(call("export", "state", "-o", "m.onnx"), "'m.onnx' does not end in .pt2")
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
        (lambda: export(own, new), "several tasks, day, night: choose one"),
        (lambda: export(own, new, "dya"), "unknown task 'dya': did you mean 'day'"),
        (lambda: export(own, tmp_path / "new.pt", "day"), "does not end in .pt2"),
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
