"""Runs with a pretrained trunk: its frozen layers see every image once; all else stays the same."""

import pytest
import torch

from classgrad.checkpoints import CheckpointManager
from classgrad.networks import frozen
from classgrad.networks.frozen import FrozenOutputs
from classgrad.runs.run import Run, run, run_folder
from classgrad.runs.spec import make_plan
from streams import blobs

STREAM = blobs(tasks=2, classes=2, shape=(3, 8, 8), per_class=10)
IMAGES = 2 * 2 * (10 + 4 + 8)
VALUES = {
    "weights": "random",
    "size": 16,
    "epochs": 1,
    "batch_size": 5,
    "learning_rate": 0.5,
    "momentum": 0.5,
    "schedule": "plateau",
}
METHODS = {
    "finetune": {},
    "cgp": {"contrast": 0.5, "samples": 10},
    "lwf": {},
    "er": {"memory": 8},
    "multitask": {},
}
CASES = [
    *[(method, 0) for method in ("er", "multitask")],
    *[(method, 1) for method in ("cgp", "lwf")],
]


class Cut(BaseException):
    """The process ends here."""


def start(method, folder=None, steps=None, **more):
    values = {**VALUES, **METHODS[method], **more}
    plan = make_plan(STREAM, method, network="efficientnet-lite0", values=values)
    return Run(plan, STREAM, folder, CheckpointManager(folder, steps=steps) if folder else None)


def counted(monkeypatch):
    """Count the images that frozen layers see, apart from the one that tells their size."""
    seen, compute = [], FrozenOutputs._compute

    def counting(self, x):
        seen.append(len(x))
        return compute(self, x)

    monkeypatch.setattr(FrozenOutputs, "_compute", counting)
    return lambda: sum(seen) - 1


def without_table(monkeypatch, call):
    with monkeypatch.context() as patch:
        patch.setattr(frozen, "LIMIT", 0)
        return call()


def outcome(running):
    # Losses of validation are of other batches than those of the table: they are rounded otherwise.
    record = running.record.model_dump(exclude={"seconds", "curves"})
    return record, running.net.state_dict(), running.method.state_dict()


def assert_same(one, two, **tolerance):
    """Compare nested values: tensors and numbers within a tolerance, by default bit for bit."""
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, two, **(tolerance or {"atol": 0, "rtol": 0}))
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            assert_same(one[key], two[key], **tolerance)
    elif isinstance(one, list | tuple):
        assert len(one) == len(two)
        for parts in zip(one, two, strict=True):
            assert_same(*parts, **tolerance)
    else:
        assert one == two


@pytest.mark.parametrize(("method", "trainable"), CASES)
def test_a_run_learns_what_it_would_without_the_table(method, trainable, monkeypatch):
    running = start(method, trainable=trainable)
    expected = start(method, trainable=trainable)
    before = expected.net.head_parameters(0)[0].detach().clone()
    without_table(monkeypatch, expected.execute)
    count = counted(monkeypatch)
    running.execute()
    assert count() == IMAGES or method == "cgp"  # its copies are new every time
    one, two = outcome(running), outcome(expected)
    assert one[0] == two[0]
    assert_same(one[1], two[1], atol=1e-4, rtol=1e-4)
    if method != "cgp":  # the signs of its directions are open
        assert_same(one[2], two[2], atol=1e-4, rtol=1e-4)
    assert (expected.net.head_parameters(0)[0] - before).abs().max() > 0.01
    assert running.net.frozen_outputs is None  # its memory is free again


def test_validation_data_are_computed_where_a_schedule_looks_at_them(monkeypatch):
    count = counted(monkeypatch)
    start("finetune", schedule="cosine").execute()
    assert count() == IMAGES - 2 * 2 * 4


@pytest.mark.parametrize(("method", "trainable"), [("er", 0), ("cgp", 1)])
def test_a_run_that_was_cut_short_ends_with_the_same_bits(method, trainable, tmp_path):
    def observer(at):
        if at.task == 1 and at.step == 3:
            raise Cut

    whole = start(method, trainable=trainable)
    whole.execute()
    cut = start(method, tmp_path, 2, trainable=trainable)
    with pytest.raises(Cut):
        cut.resume(observer)
    resumed = start(method, tmp_path, 2, trainable=trainable)
    resumed.resume()
    assert_same(outcome(resumed), outcome(whole))


def test_a_state_that_was_saved_without_the_table_is_resumed_with_it(tmp_path, monkeypatch):
    def observer(at):
        if at.task == 1 and at.step == 3:
            raise Cut

    whole = start("er", trainable=1)
    whole.execute()
    before = start("er", tmp_path, 2, trainable=1)
    with pytest.raises(Cut):
        without_table(monkeypatch, lambda: before.resume(observer))
    count, after = counted(monkeypatch), start("er", tmp_path, 2, trainable=1)
    after.resume()
    assert count() == IMAGES
    assert_same(after.net.state_dict(), whole.net.state_dict(), atol=1e-4, rtol=1e-4)
    assert after.record.accuracy_matrix == whole.record.accuracy_matrix


def test_a_table_that_is_too_large_is_not_made(monkeypatch):
    running, size = start("finetune"), IMAGES * 1280 * 4
    monkeypatch.setattr(frozen, "LIMIT", size)
    assert running.frozen_table().count == IMAGES
    monkeypatch.setattr(frozen, "LIMIT", size - 1)
    assert running.frozen_table() is None


def test_the_table_is_no_part_of_settings_folder_or_record(tmp_path, monkeypatch):
    settings = {
        "network": "efficientnet-lite0",
        "values": VALUES,
        "out": tmp_path,
    }
    made = without_table(monkeypatch, lambda: run(STREAM, "finetune", **settings))
    count = counted(monkeypatch)
    assert run(STREAM, "finetune", **settings).model_dump() == made.model_dump()  # found again
    assert count() == -1
    plan = make_plan(STREAM, "finetune", network="efficientnet-lite0", values=settings["values"])
    assert [run_folder(tmp_path, plan)] == list(tmp_path.iterdir())
