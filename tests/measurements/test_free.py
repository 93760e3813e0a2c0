"""The study of what bases leave free after one task."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks import free
from classgrad.core.subspace import Subspace
from classgrad.experiments import spec as experiments
from classgrad.methods import CGP
from classgrad.methods.projection.refining import Groups
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from streams import blobs

ROOT = Path(__file__).parents[2]
FOUND = json.loads((ROOT / "results" / "free.json").read_text())


def test_its_bases_are_those_of_the_runs():
    # Of runs with the study's learning rate. Processors that round differently differ a little.
    experiment = experiments.load("natural-order")
    paths = (ROOT / "results" / "natural-order").glob("*/record.json")
    records = experiment.records([RunRecord.load(path) for path in paths], "fast")
    found = {line["label"]: line["layers"] for line in FOUND["lines"]}
    compared = 0
    for label, of_line in records.items():
        for record in of_line:
            same_weights = record.training["learning_rate"] == FOUND["learning_rate"]
            layers = found.get(label.removesuffix(", lower rate"))
            if layers is None or not same_weights or record.seed != FOUND["seed"]:
                continue
            first = {layer.name: layer.ranks[0] for layer in record.layers}
            ranks = {layer["name"]: layer["rank"] for layer in layers}
            assert ranks == pytest.approx(first, rel=0.05, abs=2)
            assert record.accuracy_matrix[0][0] == pytest.approx(FOUND["accuracy"], abs=2)
            compared += 1
    assert compared >= 3


def test_energy_is_that_of_the_inputs_of_each_layer():
    stream = blobs(tasks=1, classes=2, shape=(1, 4, 4), per_class=50)
    net = Run(make_plan(stream, "finetune", network="mlp", values={"width": 8}), stream).net
    task, split = stream[0], stream[0].train
    inputs = {}
    layers = {name: m for name, m in net.trunk.named_modules() if isinstance(m, torch.nn.Linear)}
    hooks = [
        layer.register_forward_pre_hook(lambda _, args, name=name: inputs.update({name: args[0]}))
        for name, layer in layers.items()
    ]
    net.eval()(task.transform(split.unit_images(slice(None))), task.id)
    for hook in hooks:
        hook.remove()
    result = free.grams(net, task, split)
    assert set(result) == set(inputs)
    for name, x in inputs.items():
        torch.testing.assert_close(result[name], (x.T @ x).double(), rtol=1e-4, atol=1e-4)


def test_a_share_is_what_projection_leaves():
    rng = torch.Generator().manual_seed(0)
    x = torch.rand(40, 9, generator=rng, dtype=torch.float64)
    basis = torch.linalg.qr(torch.rand(9, 4, generator=rng, dtype=torch.float64))[0]
    other = torch.linalg.qr(torch.rand(9, 2, generator=rng, dtype=torch.float64))[0]
    method = CGP(reading="released")
    method.subspaces["a"] = Subspace(basis)
    method.groups["a"] = groups = Groups()
    groups.bases = [basis, other]
    rest = x - x @ basis @ basis.T
    rest = rest - rest @ other @ other.T
    share = free.free_share(free.remover(method, "a"), x.T @ x)
    assert share == pytest.approx(float(rest.square().sum() / x.square().sum()))


def test_the_study_writes_every_line(tmp_path, monkeypatch):
    stream = blobs(tasks=2, classes=2, shape=(3, 32, 32), per_class=6)
    monkeypatch.setattr(free, "OUT", tmp_path / "free.json")
    monkeypatch.setattr(free, "load_stream", lambda plan, data_dir: stream)
    experiment = experiments.load("directions")
    lines = [line for line in experiment.lines if line.label in ("GPM", "CGP + BR, released")]
    few = experiment.model_copy(update={"lines": lines})
    pooled = {"reading": "pooled"}
    more = {"pooled": pooled, "the same": pooled}
    monkeypatch.setattr(free, "MORE", more)
    monkeypatch.setattr(free.experiments, "load", lambda name: few)
    ended = CliRunner().invoke(free.app, [])
    assert ended.exit_code == 0, ended.output
    result = json.loads((tmp_path / "free.json").read_text())
    assert result["command"].startswith("python -m benchmarks.free")
    assert result["seed"] == 1
    labels = [line["label"] for line in result["lines"]]
    assert labels == ["GPM", "CGP + BR, released", "pooled"]
    measured = [json.dumps(line["layers"]) for line in result["lines"]]
    assert len(set(measured)) == len(measured)  # lines with the same bases are one
    for line in result["lines"]:
        for layer in line["layers"]:
            assert 0 < layer["rank"] <= layer["dimension"]
            assert 0 <= round(layer["own"], 9) <= 1
            assert 0 <= round(layer["next"], 9) <= 1
