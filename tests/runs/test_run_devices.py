"""A run on a device learns what it learns on the CPU, and resumes on either."""

import pytest
import torch
from torch.distributed import HashStore

import classgrad
from classgrad import distributed
from classgrad.checkpoints import CheckpointManager
from classgrad.errors import Stopped, UserError
from classgrad.methods import METHODS
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from learner.stored_states import SMALL
from pretend import Pretend, pretend_device
from streams import blobs

QUICK = {"epochs": 1, "batch_size": 9, "learning_rate": 0.1, "width": 8}


def planned(name, stream):
    return make_plan(stream, METHODS[name](**SMALL.get(name, {})), network="mlp", values=QUICK)


def same(record, other):
    for name in ("accuracy_matrix", "accuracy_matrix_task_free_prototypes"):
        result, expected = (torch.tensor(getattr(one, name)[-1]) for one in (record, other))
        torch.testing.assert_close(result, expected)
    assert [layer.ranks for layer in record.layers] == [layer.ranks for layer in other.layers]
    assert (record.data, record.memory_bytes) == (other.data, other.memory_bytes)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("place", ["cuda:0", "mps:0"])
def test_every_method_runs_on_a_device_as_on_the_cpu(name, place, monkeypatch):
    stream = blobs(2, 2, (1, 4, 4), 12)
    expected = Run(planned(name, stream), stream).execute()
    with pretend_device(monkeypatch, place) as device:
        run = Run(planned(name, stream), stream, device=device)
        record = run.execute()
        assert all(isinstance(value, Pretend) for value in run.net.state_dict().values())
    same(record, expected)
    assert (record.device, expected.device) == (place, "cpu")


def test_labels_are_drawn_for_what_is_on_a_device(monkeypatch):
    stream = blobs(2, 2, (1, 4, 4), 12)
    values = {**QUICK, "fisher": "sampled"}
    plan = make_plan(stream, "ewc", network="mlp", values=values)
    expected = Run(plan, stream).execute()
    with pretend_device(monkeypatch) as device:
        same(Run(plan, stream, device=device).execute(), expected)


@pytest.mark.parametrize("name", ["cgp", "er", "hat", "icarl", "ogd", "pgn"])
@pytest.mark.parametrize("first_on_cpu", [False, True])
def test_a_run_cut_short_resumes_on_another_device(name, first_on_cpu, monkeypatch, tmp_path):
    stream = blobs(3, 2, (1, 4, 4), 12)
    expected = Run(planned(name, stream), stream).execute()

    def stop_in_task_1(at):
        if at.task == 1 and at.step == 2:
            checkpoints.stop_signal = 15

    with pretend_device(monkeypatch) as device:
        places = ["cpu", device] if first_on_cpu else [device, "cpu"]
        checkpoints = CheckpointManager(tmp_path)
        one = Run(planned(name, stream), stream, tmp_path, checkpoints, device=places[0])
        with pytest.raises(Stopped):
            one.resume(stop_in_task_1)
        steps = []
        other = Run(planned(name, stream), stream, tmp_path, device=places[1])
        record = other.resume(lambda at: steps.append((at.task, at.step)))
    assert steps[0] > (1, 1)
    same(record, expected)
    assert record.device == str(places[1])


def test_the_command_line_runs_on_a_device(call, monkeypatch):
    words = ["run", "permuted-digits", "--set", "epochs=1", "--set", "tasks=2"]
    words += ["--set", "train_per_class=10", "--json"]
    expected = classgrad.RunRecord.model_validate_json(call(*words, "--out", "here")[1])
    with pretend_device(monkeypatch) as device:
        code, out, _ = call(*words, "--out", "there", "--device", str(device))
    assert code == 0
    same(classgrad.RunRecord.model_validate_json(out), expected)


def test_a_device_that_is_not_there_is_refused_before_anything_is_written(call, tmp_path):
    for words in (["run"], ["sweep", "-b", "split-digits"], ["reproduce", "directions"]):
        code, out, err = call(*words, "--device", "cuda:7")
        assert (code, out) == (2, "")
        assert err == ("classgrad: this machine has no device 'cuda:7': choose among cpu\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("gpu", [False, True])
def test_what_is_on_gpus_goes_by_nccl(there, gpu, monkeypatch):
    asked = []

    def init(ways, **given):
        asked.append(ways)
        raise ValueError("enough")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.distributed, "rendezvous", lambda url: iter([(HashStore(), 0, 2)]))
    monkeypatch.setattr(torch.distributed, "init_process_group", init)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="enough; start all of them with torchrun"):
        distributed.join(gpu=gpu)
    assert asked == ["cpu:gloo,cuda:nccl" if there and gpu else "gloo"]
