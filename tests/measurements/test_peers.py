"""The measurement beside other libraries: our side of it, and what is made of the times."""

import io
import json
import runpy
import sys
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from benchmarks.peers import __main__ as command
from benchmarks.peers import ours, workload
from classgrad import networks
from oracles.models import built

ROOT = Path(__file__).parents[2]


def test_the_peers_network_is_ours():
    plain = built(workload.alexnet5).float()
    net = networks.build("alexnet5", (3, 32, 32), dropout=False)
    net.add_task(workload.CLASSES)
    weights = {name: p for name, p in plain.named_parameters() if not name.startswith("bn")}
    own = dict(net.trunk.named_parameters())
    assert sum(p.numel() for p in weights.values()) == 6_499_328
    for name, weight in weights.items():
        weight.data.copy_(own[name])
    for name, module in plain.named_modules():
        if name.startswith("drop"):
            module.p = 0.0
    x = workload.normalised(workload.random_tasks()[0][0][:16])
    with torch.no_grad():
        expected, made = plain.train()(x), net.train().embed(x, 0)
    assert expected.abs().max() > 1
    assert (made - expected).abs().max() < 1e-3


def test_images_are_normalised_alike_on_both_sides():
    first, _ = ours.stream()
    images = first.train.unit_images(slice(0, 8), torch.float32)
    expected = workload.normalised(first.train.images[:8])
    assert (first.transform(images) - expected).abs().max() < 1e-5
    assert abs(float(expected.mean())) < 0.2
    assert 0.8 < float(expected.std()) < 1.2


@pytest.fixture
def few_images(monkeypatch):
    """Two tasks of one step each."""
    monkeypatch.setattr(workload, "IMAGES", (64, 64))


@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("finetune", 0),
        ("er", 64),  # from the memory
        ("agem", 64),
        ("gem", 64),
        ("ewc", 128),  # F of each task
        ("lwf", 64),  # the network as it was before the task
        ("si", 0),
        # Bases of each task, and checks that hooks see every layer and every use of its weight.
        ("gpm", 256),
    ],
)
def test_our_side_sees_as_many_images_as_the_peers(few_images, monkeypatch, method, more):
    seen, build = [], networks.build

    def watched(*args, **kwargs):
        net = build(*args, **kwargs)
        net.trunk.conv1.register_forward_hook(lambda layer, x, out: seen.append(len(out)))
        return net

    monkeypatch.setattr(networks, "build", watched)
    assert 0 < ours.measure(method)["seconds"] < 60
    assert sum(seen) == 2 * 64 + more


def test_every_goal_is_for_a_method_we_measure():
    named = [method for goals in command.GOALS.values() for method in goals]
    assert sorted(named) == sorted(ours.SETTINGS)


def test_a_worker_answers_line_by_line(monkeypatch):
    answers = io.StringIO()
    monkeypatch.setattr(sys, "stdin", io.StringIO("er\ngem\n"))
    monkeypatch.setattr(sys, "stdout", answers)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)

    def measure(method):
        print("not an answer")
        return {"seconds": len(method)}

    workload.serve({"torch": "1"}, measure)
    lines = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert lines == [{"torch": "1"}, {"seconds": 2}, {"seconds": 3}]


FAKE = """
import json, os, sys
assert os.environ["OMP_NUM_THREADS"] == "1"
print(json.dumps({"torch": "1"}), flush=True)
times = iter(sys.argv[1].split(","))
for line in sys.stdin:
    with open(sys.argv[2], "a") as order:
        order.write(sys.argv[1] + " " + line)
    print(json.dumps({"seconds": float(next(times))}), flush=True)
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """Make a worker that answers with given times and writes down when it was asked."""
    (tmp_path / "fakeworker.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    made = []

    def make(name, times):
        words = ("fakeworker", times, str(tmp_path / "order"))
        made.append(command.Worker(name, sys.executable, *words))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def test_workers_take_turns_and_the_best_time_of_each_counts(fake, tmp_path):
    workers = {"classgrad": fake("classgrad", "9,8,10"), "Avalanche": fake("Avalanche", "30,16,20")}
    assert workers["Avalanche"].versions == {"torch": "1"}
    seconds = command.alternate("er", workers, 3)
    assert (tmp_path / "order").read_text() == "9,8,10 er\n30,16,20 er\n" * 3
    row = command.compare("er", "Avalanche", 1.8, seconds)
    assert (row.ours.value, row.reference.value) == (2000 / 8, 2000 / 16)
    assert (row.figure, row.ours.repeats) == (2, 3)
    assert row.details["seconds"] == {"classgrad": [9, 8, 10], "Avalanche": [30, 16, 20]}
    render = runpy.run_path(str(ROOT / "docs" / "fill_tables.py"))["peers"]
    head, _, line = render({"measurements": {"peers": [row.as_dict()]}}).splitlines()
    assert head == "| what | ours | peer | ratio | required | reached |"
    assert line == "| er: ours / Avalanche's | 250 images/s | 125 images/s | 2 | >= 1.8 | yes |"


def test_a_worker_that_ends_is_named(fake):
    worker = fake("Avalanche", "1")
    worker.seconds("er")
    with pytest.raises(command.UserError, match="the worker of Avalanche ended"):
        worker.seconds("er")


def test_an_environment_that_is_missing_is_named(tmp_path):
    ended = CliRunner().invoke(command.app, ["--python", str(tmp_path / "none")])
    assert isinstance(ended.exception, command.UserError)
    assert "make peers" in str(ended.exception)


def test_the_figures_in_the_file_are_of_the_times_beside_them():
    recorded = json.loads((ROOT / "benchmarks" / "peers.json").read_text())
    rows = recorded["measurements"]["peers"]
    assert {row["method"] for row in rows} == set(ours.SETTINGS)
    assert recorded["machine"]["threads"] == 1
    for row in rows:
        best = {name: min(times) for name, times in row["seconds"].items()}
        assert len(row["seconds"][row["peer"]]) == row["ours"]["repeats"] >= 3
        assert row["figure"] == pytest.approx(best[row["peer"]] / best["classgrad"])
