"""--device and --precision on the command line: taken, kept, and refused in one line."""

import json

import pytest
import torch

from classgrad import Learner
from classgrad.devices import available, resolve_device
from classgrad.errors import UserError
from photos import photos

QUICK = ["--network", "mlp", "--size", "8", "--set", "contrast=0", "--set", "epochs=1"]
BIRDS = ["learn", "state", "--task", "birds", "--images", "birds"]


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with pictures, on a machine without a GPU."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    photos(tmp_path / "birds", "crow", "wren")
    return tmp_path


def refused(result, *parts):
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("classgrad: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda", "this machine has no device 'cuda': choose among cpu"),
        ("cuda:1", "this machine has no device 'cuda:1': choose among cpu"),
        ("mps", "this machine has no device 'mps': choose among cpu"),
        ("gpu", "unknown device 'gpu': did you mean 'cpu'? Known: cpu, cuda, mps"),
        ("meta", "unknown device 'meta'"),
        ("", "unknown device ''"),
    ],
)
def test_a_device_that_is_not_there_is_refused_and_nothing_written(call, place, device, message):
    refused(call(*BIRDS, *QUICK, "--device", device), message)
    assert not (place / "state").exists()
    assert call(*BIRDS, *QUICK)[0] == 0
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    refused(call("predict", "state", "birds", "--device", device), message)
    refused(call(*BIRDS, "--device", device), message)
    assert {path: path.read_bytes() for path in place.rglob("*") if path.is_file()} == before
    with pytest.raises(UserError, match="device"):
        Learner(network="mlp", device=device)
    with pytest.raises(UserError, match="device"):
        Learner.load("state", device=device)


def test_devices_of_a_machine_are_known_by_name_and_number(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert available() == ["cpu", "cuda:0", "cuda:1", "mps"]
    for name in ("cpu", "cuda", "cuda:0", "cuda:1", "mps", torch.device("cuda", 1)):
        assert resolve_device(name) == torch.device(name)
    with pytest.raises(UserError, match="no device 'cuda:2': choose among cpu, cuda:0,"):
        resolve_device("cuda:2")
    with pytest.raises(UserError, match="unknown device 'None'"):
        resolve_device(None)


def test_the_device_that_is_there_is_taken(call, place):
    assert call(*BIRDS, *QUICK, "--device", "cpu")[0] == 0
    code, out, _ = call("predict", "state", "birds/crow", "--device", "cpu", "--json")
    assert (code, len(json.loads(out))) == (0, 10)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_precision_is_kept_in_the_state_and_holds_for_good(call, place, precision):
    assert call(*BIRDS, *QUICK, "--precision", precision)[0] == 0
    assert Learner.load("state").precision == precision
    assert json.loads(call("info", "state", "--json")[1])["settings"]["precision"] == precision
    assert f"seed 1, {precision}" in call("info", "state")[1]
    photos(place / "fish", "cod", "eel", seed=2)
    fish = ["learn", "state", "--task", "fish", "--images", "fish"]
    other = {"bfloat16": "float16", "float16": "bfloat16"}[precision]
    message = f"'state' was created with {precision}: leave out --precision, or give another folder"
    refused(call(*fish, "--precision", other), message)
    assert call(*fish, "--precision", precision)[0] == 0
    assert Learner.load("state").net.precision == getattr(torch, precision)


def test_a_state_of_full_precision_takes_no_other(call, place):
    assert call(*BIRDS, *QUICK)[0] == 0
    assert call("info", "state")[1].rstrip().endswith("seed 1")
    refused(call(*BIRDS, "--precision", "bfloat16"), "was created with full precision: leave out")
    refused(call("learn", "new", *BIRDS[2:], "--precision", "half"), "unknown precision 'half'")
    assert not (place / "new").exists()


@pytest.mark.parametrize(("first", "later"), [("float32", "bfloat16"), ("bfloat16", "float32")])
def test_the_setting_of_training_holds_for_good_too(call, place, first, later):
    assert call(*BIRDS, *QUICK, "--set", f"precision={first}")[0] == 0
    photos(place / "fish", "cod", "eel", seed=2)
    before = {path: path.read_bytes() for path in (place / "state").rglob("*") if path.is_file()}
    for words in (["learn", "state", "--task", "fish", "--images", "fish"], BIRDS):
        message = f"precision '{later}' differs from that of the first task, which holds for all"
        refused(call(*words, "--set", f"precision={later}"), message)
    assert {path: path.read_bytes() for path in before} == before
    assert call("learn", "state", "--task", "fish", "--images", "fish")[0] == 0
    assert call("predict", "state", "fish/cod")[0] == 0


def test_a_task_cut_short_resumes_with_the_same_precision_only(call, stopped, place):
    words = [*BIRDS, *QUICK, "--set", "batch_size=4", "--precision"]
    stopped(2, *words, "float16")
    code, _, err = call(*words, "bfloat16")
    assert (code, err.count("\n")) == (2, 1)
    assert "task 'birds' was cut short with another precision" in err
    assert call(*words, "float16")[0] == 0
    assert Learner.load("state").precision == "float16"


@pytest.mark.parametrize("method", ["pgn", "stl"])
def test_a_network_that_the_method_makes_has_the_precision_too(call, place, method):
    assert call(*BIRDS, *QUICK[:4], "-m", method, "--precision", "bfloat16")[0] == 0
    learner, seen = Learner.load("state"), []
    first = next(m for m in learner.net.trunk.modules() if isinstance(m, torch.nn.Linear))
    first.register_forward_hook(lambda _module, _args, out: seen.append(out.dtype))
    learner.predict(["birds/crow/00.png"])
    assert seen == [torch.bfloat16]
