"""Runs whose trunk multiplies in bfloat16."""

import pytest
import torch

from classgrad import devices
from classgrad.checkpoints import CheckpointManager
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from streams import blobs

PICTURES = blobs(tasks=2, classes=3, shape=(3, 16, 16), per_class=12)
QUICK = {"epochs": 3, "batch_size": 9, "learning_rate": 0.05, "momentum": 0.8}
CPU = torch.device("cpu")


def started(method, folder=None, **values):
    plan = make_plan(PICTURES, method, network="lenet5", values={**QUICK, **values})
    return Run(plan, PICTURES, folder, CheckpointManager(folder, steps=2) if folder else None)


@pytest.mark.parametrize("method", ["gpm", "cgp"])
def test_steps_stay_out_of_the_bases_as_in_float32(method):
    """Weights, updates, bases and projection keep their precision."""
    moved = {}
    for precision in ("float32", "bfloat16"):
        running = started(method, precision=precision)
        running.learn(0)
        layers = dict(running.net.trunk.named_modules())
        bases = {name: s.basis.clone() for name, s in running.method.subspaces.items()}
        before = {name: layers[name].weight.detach().clone() for name in bases}
        running.learn(1)
        for name, basis in bases.items():
            weight = layers[name].weight.detach()
            assert weight.dtype == torch.float32
            assert basis.dtype == torch.float64
            step = (weight - before[name]).flatten(1).double()
            assert float(step.norm()) > 1e-3
            share = (step @ basis).norm() / step.norm()
            moved[precision] = max(moved.get(precision, 0.0), float(share))
    assert moved["float32"] < 1e-5
    assert moved["bfloat16"] < 1e-5


@pytest.mark.parametrize("method", ["ewc", "mas", "imm"])
def test_sensitivities_with_statistics_of_the_batch(method):
    stream = blobs(tasks=2, classes=3, shape=(3, 32, 32), per_class=6)
    values = {**QUICK, "epochs": 1, "precision": "bfloat16", "norm": "batch"}
    plan = make_plan(stream, method, network="alexnet5", values=values)
    assert Run(plan, stream).execute().precision == "bfloat16"


def test_it_is_recorded_and_used(tmp_path):
    running = started("finetune", tmp_path, precision="bfloat16")
    seen = []
    running.net.trunk.conv2.register_forward_hook(lambda _m, _a, out: seen.append(out.dtype))
    assert running.resume().precision == "bfloat16"
    assert set(seen) == {torch.bfloat16}
    assert RunRecord.load(tmp_path).training["precision"] == "bfloat16"
    assert started("finetune").execute().precision == "float32"


def test_what_auto_was_when_it_began_holds_to_the_end(tmp_path, monkeypatch):
    """A run that resumes on a processor without bfloat16 ends with the same bits."""
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda device: True)
    alone = started("gpm", precision="auto")
    expected = alone.execute()
    assert expected.precision == "bfloat16"
    cut = started("gpm", tmp_path, precision="auto")

    def stop(at):
        if (at.task, at.step) == (1, 5):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cut.resume(stop)
    monkeypatch.setattr(devices, "multiplies_bfloat16", lambda device: False)
    assert started("gpm", precision="auto").record.precision == "float32"
    again = started("gpm", tmp_path, precision="auto")
    record = again.resume()
    assert record.precision == "bfloat16"
    assert record.accuracy_matrix == expected.accuracy_matrix
    for name, value in alone.net.state_dict().items():
        assert torch.equal(value, again.net.state_dict()[name]), name


@pytest.mark.parametrize(
    ("machine", "has", "expected"),
    [
        ("x86_64", {"_is_avx512_bf16_supported"}, "bfloat16"),
        ("AMD64", {"_is_amx_tile_supported"}, "bfloat16"),
        ("x86_64", {"_is_avx512_supported"}, "float32"),
        ("x86_64", set(), "float32"),
    ],
)
def test_auto_asks_the_processor(machine, has, expected, monkeypatch):
    monkeypatch.setattr(devices.platform, "machine", lambda: machine)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported", "_is_avx512_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in has)
    assert devices.resolve_precision("auto", CPU) == expected
    assert devices.resolve_precision("float32", CPU) == "float32"


def test_auto_on_other_devices(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)
    assert devices.resolve_precision("auto", torch.device("cuda:1")) == "bfloat16"
    assert devices.resolve_precision("auto", torch.device("mps")) == "float32"


@pytest.mark.parametrize(("has", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_auto_on_arm(has, expected, monkeypatch):
    monkeypatch.setattr(devices.platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: has)
    assert devices.resolve_precision("auto", CPU) == expected
