import json

import pytest
import torch

from classgrad import CGP, GPM, files, run
from classgrad.checkpoints import Store
from classgrad.errors import UserError
from classgrad.report.page import page
from classgrad.report.terminal import comparison, figures
from classgrad.runs import record as records
from classgrad.runs.record import RunRecord
from classgrad.runs.run import Run
from classgrad.tasks import Split, Task, TaskStream
from classgrad.training.loop import SampleNotFinite
from streams import blobs

QUICK = {"epochs": 3, "batch_size": 12, "learning_rate": 0.03}


@pytest.fixture(scope="module")
def default_runs():
    """The embedded default, as `make run` has it, but for the epochs."""
    names = ("finetune", "gpm", "cgp")
    return {name: run(method=name, seed=1, values={"epochs": 4}) for name in names}


@pytest.mark.slow
def test_forgetting_is_plain_on_the_embedded_default_and_projection_prevents_it(default_runs):
    assert -40 <= default_runs["finetune"].backward_transfer <= -10
    for name in ("gpm", "cgp"):
        assert -2 <= default_runs[name].backward_transfer <= 2
    gain = default_runs["cgp"].average_accuracy - default_runs["finetune"].average_accuracy
    assert 10 <= gain <= 30


@pytest.mark.slow
def test_room_shrinks_with_every_task(default_runs):
    for layer in default_runs["cgp"].layers:
        assert len(layer.ranks) == 5
        assert layer.ranks == sorted(layer.ranks)
        assert layer.ranks[-1] <= layer.dimension


def test_memory_bytes_counts_bases_and_prototypes():
    stream = blobs(tasks=2)
    running = Run(_plan(stream, CGP(contrast=0)), stream)
    record = running.execute()
    bases = sum(4 * layer.dimension * layer.ranks[-1] for layer in record.layers)
    prototypes = sum(4 * layer.dimension * 6 for layer in record.layers)  # six classes
    assert record.memory_bytes == bases + prototypes


def _plan(stream, method):
    from classgrad.runs.spec import make_plan

    return make_plan(stream, method, values=QUICK)


def test_record_is_written_after_every_task(tmp_path):
    stream = blobs(tasks=3)
    seen = []

    def watch(at):
        files = list(tmp_path.glob("*/record.json"))
        seen.append(json.loads(files[0].read_text()) if files else None)

    record = run(stream, "gpm", values=QUICK, out=tmp_path, observer=watch)
    lengths = [len(data["accuracy_matrix"]) if data else 0 for data in seen]
    assert sorted(set(lengths)) == [0, 1, 2]
    assert lengths == sorted(lengths)
    assert not any(data["complete"] for data in seen if data)
    (path,) = tmp_path.glob("*/record.json")
    assert RunRecord.load(path) == record


def test_a_number_that_is_none_in_a_later_task_keeps_the_earlier_ones(tmp_path):
    good = blobs(tasks=2)
    images = good[1].train.images.float().div(255)
    images[0] = torch.nan
    bad = Task(1, "bad", good[1].class_names, Split(images, good[1].train.labels), good[1].valid)
    stream = TaskStream("spoilt", [good[0], bad], [good.test(0), good.test(1)])
    with pytest.raises(SampleNotFinite, match=r"task 2 \('bad'\), epoch 1, step \d"):
        run(stream, "gpm", values=QUICK, out=tmp_path)
    (path,) = tmp_path.glob("*/record.json")
    record = RunRecord.load(path)
    assert not record.complete
    assert len(record.accuracy_matrix) == 1
    assert record.accuracy_matrix[0][0] > 50


def test_folder_that_cannot_be_written_is_one_clear_line(tmp_path):
    stream = blobs(tasks=1)
    taken = tmp_path / _plan(stream, GPM()).folder_name()
    taken.write_text("in the way")
    with pytest.raises(UserError, match="cannot lock"):
        run(stream, GPM(), values=QUICK, out=tmp_path)
    assert taken.read_text() == "in the way"


def test_the_record_is_on_disk_before_the_state_is_removed(tmp_path, monkeypatch):
    order, write_text, clear = [], records.write_text, Store.clear

    def write(path, text):
        write_text(path, text)
        order.append(RunRecord.load(path).complete)

    monkeypatch.setattr(records, "write_text", write)
    monkeypatch.setattr(Store, "clear", lambda self: (order.append("cleared"), clear(self)))
    run(blobs(tasks=2), "finetune", values=QUICK, out=tmp_path)
    assert order == [False, True, "cleared"]


def test_the_folder_of_a_run_is_made_to_stay(tmp_path, monkeypatch):
    synced, sync = [], files.sync_folder
    monkeypatch.setattr(files, "sync_folder", lambda folder: (synced.append(folder), sync(folder)))
    run(blobs(tasks=1), "finetune", values=QUICK, out=tmp_path / "new" / "runs")
    assert synced[:3] == [tmp_path, tmp_path / "new", tmp_path / "new" / "runs"]


def test_killed_at_its_very_end_a_run_leaves_no_state_for_good(tmp_path, monkeypatch):
    stream = blobs(tasks=2)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "clear", lambda self: None)
        first = run(stream, "finetune", values=QUICK, out=tmp_path)
    assert list(tmp_path.glob("*/checkpoints/0*"))
    assert run(stream, "finetune", values=QUICK, out=tmp_path) == first
    assert not list(tmp_path.glob("*/checkpoints"))


def test_a_finished_run_of_other_data_is_not_taken_for_this_one(tmp_path):
    run(blobs(seed=0), "finetune", values=QUICK, out=tmp_path)
    with pytest.raises(UserError, match=r"holds another run: data \w{32} there, \w{32} here"):
        run(blobs(seed=1), "finetune", values=QUICK, out=tmp_path)


def test_shared_head_measures_forward_transfer():
    record = run(blobs(tasks=3), "finetune", values={**QUICK, "heads": "shared"})
    assert record.forward_transfer is not None
    assert run(blobs(tasks=3), "finetune", values=QUICK).forward_transfer is None


def test_shared_head_is_protected_like_any_layer():
    record = run(blobs(tasks=2), GPM(), values={**QUICK, "heads": "shared"})
    assert [layer.name for layer in record.layers] == ["trunk.fc1", "trunk.fc2", "heads.0"]


def test_projection_keeps_old_answers_where_finetune_does_not():
    stream = blobs(tasks=2)
    moved = {}
    for method in ("finetune", GPM(energy=1.0, samples=1000)):
        running = Run(_plan(stream, method), stream)
        running.learn(0)
        x = stream[0].train.unit_images(slice(None))
        before = running.net(x, 0).detach()
        running.learn(1)
        after = running.net(x, 0).detach()
        moved[running.method.name] = float((after - before).norm() / before.norm())
    assert moved["gpm"] < 1e-4
    assert moved["finetune"] > 1e-2


def test_classes_are_reported_one_by_one():
    record = run(blobs(tasks=2), "finetune", values=QUICK)
    first = record.classes[0]
    assert first.classes == ["0.0", "0.1", "0.2"]
    assert sum(first.final) / 3 == pytest.approx(record.accuracy_matrix[-1][0])
    assert sum(first.learnt) / 3 == pytest.approx(record.accuracy_matrix[0][0])
    assert first.forgetting == [a - b for a, b in zip(first.learnt, first.final, strict=True)]


def test_accuracy_without_task_identity_can_wait_for_the_end():
    full = run(blobs(tasks=3), "gpm", values=QUICK)
    late = run(blobs(tasks=3), "gpm", values={**QUICK, "task_free": "end"})
    assert late.accuracy_matrix == full.accuracy_matrix
    assert late.accuracy_matrix_task_free[:2] == [[None] * 3] * 2
    assert late.accuracy_matrix_task_free[-1] == full.accuracy_matrix_task_free[-1]
    assert late.average_accuracy_task_free == full.average_accuracy_task_free
    assert late.task_confusion == full.task_confusion
    assert full.task_confusion.keys() == {"confidence", "prototypes", "statistics"}
    for number, row in enumerate(full.task_confusion["confidence"]):
        assert sum(row) == pytest.approx(100)
        assert row[number] >= full.accuracy_matrix_task_free[-1][number]


def test_accuracy_without_task_identity_can_be_left_out(tmp_path):
    full = run(blobs(tasks=2), "gpm", values=QUICK)
    values = {**QUICK, "task_free": "never"}
    record = run(blobs(tasks=2), "gpm", values=values, out=tmp_path)
    assert record.accuracy_matrix == full.accuracy_matrix
    assert record.average_accuracy == full.average_accuracy
    saved = RunRecord.load(next(tmp_path.glob("*/record.json")))
    assert saved.accuracy_matrix_task_free == saved.accuracy_matrix_task_free_prototypes == []
    assert saved.average_accuracy_task_free is None
    assert saved.average_accuracy_task_free_prototypes is None
    assert full.average_accuracy_task_free_statistics > 50  # six classes: chance is 17
    assert saved.average_accuracy_task_free_statistics is None
    assert saved.task_confusion == {}
    assert figures([saved], [saved])["no task: conf."] == "-"
    assert "no task: stat." not in figures([saved], [saved])
    comparison([saved, full])
    assert "no task" not in page([saved])


def test_multitask_is_evaluated_at_the_end_only():
    record = run(blobs(tasks=3), "multitask", values=QUICK)
    assert record.accuracy_matrix[0] == [None, None, None]
    assert all(value is not None for value in record.accuracy_matrix[-1])
    assert record.backward_transfer is None
    # Prototypes are of the trained network for every task, not only for the last.
    assert min(record.accuracy_matrix_task_free_prototypes[-1]) > 50
    shared = run(blobs(tasks=3), "multitask", values={**QUICK, "heads": "shared"})
    assert shared.forward_transfer is None


def test_one_head_for_all_refuses_a_task_with_more_classes():
    small, large = blobs(tasks=1, classes=2), blobs(tasks=2, classes=3)
    stream = TaskStream("grows", [small[0], large[1]], [small.test(0), large.test(1)])
    with pytest.raises(UserError, match="task 2 has 3 classes but the head shared by all has 2"):
        run(stream, "finetune", values={**QUICK, "heads": "shared"})
