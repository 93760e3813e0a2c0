"""Multitask is the upper bound that its name says."""

import pytest

from classgrad import run
from classgrad.errors import UserError
from classgrad.methods import Multitask
from streams import blobs

QUICK = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05, "width": 16, "warmup": 0}


def test_it_trains_for_a_multiple_of_the_epochs_of_a_task():
    seen = []
    run(blobs(), "multitask", values={**QUICK, "epoch_factor": 4}, observer=seen.append)
    per_epoch = 3 * 3  # three tasks of 48 samples
    assert len(seen) == seen[-1].step == seen[-1].steps == 4 * 2 * per_epoch
    assert seen[-1].rate < 0.01 * 0.05  # one schedule over all of it
    assert seen[len(seen) // 2].rate == pytest.approx(0.05 / 2, rel=0.05)


def test_it_is_no_worse_than_finetuning_is_on_each_task_when_that_is_learnt():
    values = {"epochs": 4, "tasks": 3}
    rows = run("permuted-digits", "finetune", seed=101, values=values).accuracy_matrix
    learnt = [row[number] for number, row in enumerate(rows)]
    joint = run("permuted-digits", "multitask", seed=101, values=values)
    assert joint.average_accuracy >= sum(learnt) / len(learnt)


def test_bad_settings_are_refused_in_one_line():
    with pytest.raises(UserError, match="epoch_factor") as caught:
        Multitask(epoch_factor=0)
    assert "\n" not in str(caught.value)
