"""The picture of what classes forget shows what the records have."""

import pytest

from benchmarks import forgetting
from classgrad import run
from streams import blobs

VALUES = {"epochs": 6, "batch_size": 12, "learning_rate": 0.3, "width": 24, "energy": 0.1}


def test_a_dot_is_a_class_of_a_task_after_which_others_were_learnt():
    record = run(blobs(), "gpm", values=VALUES)
    found = forgetting.points(record)
    [layer] = [one for one in record.held if one.layer == forgetting.LAYER]
    assert found.held == [100 * share for share in layer.learnt_test[:6]]
    changes = [
        now - then
        for task in record.classes[:2]
        for then, now in zip(task.learnt, task.final, strict=True)
    ]
    assert found.moved == changes
    assert any(changes)


def test_correlation_has_the_sign_of_the_premise():
    points = forgetting.Points([70.0, 80.0, 90.0], [-6.0, -3.0, 0.0])
    assert forgetting.correlation(points) == pytest.approx(1)
