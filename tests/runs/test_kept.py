"""What a run has learnt is kept beside its record, and loaded again."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from classgrad import GPM, Result, load_run, run
from classgrad.checkpoints.errors import BadCheckpoint
from classgrad.errors import UserError
from classgrad.prediction.accuracy import evaluate
from classgrad.runs import kept
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from families import FAMILIES
from streams import blobs

STREAM = blobs()
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "width": 24}


class Cut(BaseException):
    """The process ends here."""


def start(folder, keep, name="gpm", **values):
    plan = make_plan(STREAM, name, values={**QUICK, **values})
    return Run(plan, STREAM, folder, keep=keep)


def accuracies(result):
    tests = [(task, result.stream.test(task.id)) for task in result.stream[: result.tasks]]
    return [evaluate(result.net, task, test).task_known for task, test in tests]


def same(one, two):
    if isinstance(one, torch.Tensor):
        return torch.equal(one, two)
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(same(one[key], two[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(two) and all(map(same, one, two))
    return one == two


@pytest.mark.parametrize("name", FAMILIES)
def test_what_was_kept_after_every_task_predicts_as_it_did_then(name, tmp_path):
    running = start(tmp_path, "task", name)
    record = running.resume()
    every = [3] if running.method.joint else [1, 2, 3]
    assert kept.kept_after(tmp_path) == every
    for number in every:
        loaded = load_run(tmp_path, number, benchmark=STREAM)
        assert loaded.tasks == number
        assert accuracies(loaded) == record.accuracy_matrix[number - 1][:number]
        assert loaded.record == record
    assert same(dict(loaded.net.state_dict()), dict(running.net.state_dict()))
    assert same(loaded.method.state_dict(), running.method.state_dict())


def test_any_program_can_read_weights_heads_and_bases(tmp_path):
    """Also weights that are laid out otherwise in memory have their shape."""
    stream = blobs(tasks=1, shape=(3, 32, 32), per_class=4)
    plan = make_plan(stream, GPM(), network="lenet5", values={"epochs": 1, "batch_size": 4})
    running = Run(plan, stream, tmp_path, keep="last")
    running.resume()
    tensors = load_file(tmp_path / "weights" / "after-task-1.safetensors")
    weight = running.net.trunk.conv2.weight
    assert not weight.is_contiguous()
    assert torch.equal(tensors["net.trunk.conv2.weight"], weight)
    assert torch.equal(tensors["net.heads.0.weight"], running.net.heads[0].weight)
    basis = tensors["method.bases.conv2"].double()
    assert basis.shape == (weight[0].numel(), running.method.subspaces["conv2"].rank)
    assert torch.allclose(basis.T @ basis, torch.eye(basis.shape[1]).double(), atol=1e-5)


def test_nothing_is_kept_unless_it_is_asked_for(tmp_path):
    start(tmp_path, None).resume()
    assert [file.name for file in tmp_path.iterdir() if file.suffix != ".lock"] == ["record.json"]
    with pytest.raises(UserError, match="has kept no weights") as caught:
        load_run(tmp_path, benchmark=STREAM)
    assert caught.value.hint == "keep"
    # A finished run cannot keep them later.
    for keep, number in (("last", 3), ("task", 1)):
        with pytest.raises(UserError, match=f"not kept its weights after task {number}: give ano"):
            start(tmp_path, keep).resume()


def test_python_has_the_objects_themselves(tmp_path):
    values = {"values": QUICK, "seed": 2}
    alone = run(STREAM, "gpm", **values, keep="last")
    assert isinstance(alone, Result)
    assert accuracies(alone) == alone.record.accuracy_matrix[-1]
    assert alone.method.subspaces["fc1"].rank == alone.record.layers[0].ranks[-1]
    out = {"out": tmp_path, "keep": "last"}
    written = run(STREAM, "gpm", **values, **out)
    seen = []
    again = run(STREAM, "gpm", **values, **out, observer=seen.append)
    assert not seen, "finished, so it is loaded"
    for result in (written, again):
        assert same(dict(result.net.state_dict()), dict(alone.net.state_dict()))
        assert same(result.method.state_dict(), alone.method.state_dict())
        assert result.record.accuracy_matrix == alone.record.accuracy_matrix
    (folder,) = tmp_path.iterdir()
    assert kept.kept_after(folder) == [3]
    with pytest.raises(UserError, match="give a folder for results"):
        run(STREAM, "gpm", **values, keep="task")
    with pytest.raises(UserError, match="takes last or task"):
        run(STREAM, "gpm", **values, keep="all")


def test_a_run_that_is_resumed_keeps_the_same(tmp_path):
    def cutting(at):
        if (at.task, at.epoch, at.step) == (1, 1, 5):
            raise Cut

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    start(whole, "task").resume()
    with pytest.raises(Cut):
        start(cut, "task").resume(cutting)
    assert kept.kept_after(cut) == [1]
    shutil.copytree(cut, tmp_path / "without")
    start(cut, "task").resume()
    for number in (1, 2, 3):
        one, two = (kept.file_after(folder, number).read_bytes() for folder in (whole, cut))
        assert one == two
    kept.remove(tmp_path / "without")
    with pytest.raises(UserError, match="not kept its weights after task 1: give"):
        start(tmp_path / "without", "task").resume()
    start(tmp_path / "without", "last").resume()
    assert kept.kept_after(tmp_path / "without") == [3]


def test_weights_are_there_before_the_run_counts_as_done(tmp_path, monkeypatch):
    write = kept.write

    def written(folder, tasks, state):
        write(folder, tasks, state)
        done = json.loads((tmp_path / "record.json").read_text())["accuracy_matrix"]
        assert len(done) == tasks - 1
        raise Cut

    monkeypatch.setattr(kept, "write", written)
    with pytest.raises(Cut):
        start(tmp_path, "last").resume()


def test_a_stream_and_a_network_of_ones_own_are_given_again(tmp_path):
    class Mine(nn.Sequential):
        def __init__(self):
            super().__init__(nn.Flatten(), nn.Linear(64, 9), nn.ReLU())

    values = {"epochs": 1, "batch_size": 12}
    done = run(STREAM, "gpm", network=Mine, values=values, out=tmp_path, keep="last")
    (folder,) = tmp_path.iterdir()
    with pytest.raises(UserError, match="network of its own: give it"):
        load_run(folder, benchmark=STREAM)
    with pytest.raises(UserError, match="stream of its own: give it"):
        load_run(folder, network=Mine)
    with pytest.raises(UserError, match="holds another run: data"):
        load_run(folder, network=Mine, benchmark=blobs(seed=1))
    loaded = load_run(folder, network=Mine, benchmark=STREAM)
    assert accuracies(loaded) == done.record.accuracy_matrix[-1]
    with pytest.raises(UserError, match="after task 3, not after task 2"):
        load_run(folder, 2, network=Mine, benchmark=STREAM)


def test_a_damaged_file_is_refused_in_one_line(tmp_path):
    start(tmp_path, "last").resume()
    file = kept.file_after(tmp_path, 3)
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadCheckpoint, match="holds no weights of a run: its checksum is wrong"):
        load_run(tmp_path, benchmark=STREAM)


def test_the_command_keeps_and_starts_afresh(call, tmp_path):
    words = ("run", "split-digits", "--method", "finetune", "--set", "epochs=1", "--name", "one")
    assert call(*words, "--set", "width=8")[0] == 0
    code, _, error = call(*words, "--set", "width=8", "--keep", "last")
    assert code == 2
    assert "not kept its weights after task 5" in error
    assert "--fresh" in error
    assert call(*words, "--set", "width=8", "--keep", "task", "--fresh")[0] == 0
    folder = tmp_path / "runs" / "one"
    assert kept.kept_after(folder) == [1, 2, 3, 4, 5]
    loaded = load_run(folder)
    assert accuracies(loaded) == loaded.record.accuracy_matrix[-1]
    assert call(*words, "--set", "width=8", "--fresh")[0] == 0
    assert not (folder / "weights").exists()
    assert "takes last or task" in call(*words, "--keep", "all")[2]
    assert "--keep" in call(*words, "--keep", "last", "--out", "file:///nowhere")[2]
