"""What a record has besides accuracies: losses, energy held, stability, where it was made."""

import math

import pytest
import torch

from classgrad import run
from classgrad.runs import commit, stability
from classgrad.runs.record import RunRecord, WithinTask
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from families import FAMILIES
from streams import blobs

STREAM = blobs()
QUICK = {"epochs": 2, "batch_size": 12, "learning_rate": 0.03, "width": 24}
CGP = {**QUICK, "contrast": 0, "eta": 1, "correct_only": False, "samples": 16}


@pytest.fixture(scope="module")
def record():
    return run(STREAM, "cgp", values=CGP)


def test_every_class_is_held_as_promised_where_bases_were_made_of_its_images(record):
    """All 16 images of a class are in its basis, and all are measured."""
    assert [entry.layer for entry in record.held] == [layer.name for layer in record.layers]
    for entry, layer in zip(record.held, record.layers, strict=True):
        for task in range(3):
            promised = 0.97 + 0.003 * task
            shares = entry.learnt_train[3 * task : 3 * task + 3]
            assert len(shares) == 3
            assert all(promised - 1e-4 <= share < 1 for share in shares), layer.name
        unseen = zip(entry.learnt_train, entry.learnt_test, strict=True)
        assert sum(a > b for a, b in unseen) > 6, "unseen images are held less"
        assert min(entry.learnt_test) > 0.9
        # Of the last task nothing has changed since; bases only grow, and features hardly move.
        assert entry.final_train[6:] == entry.learnt_train[6:]
        for then, now in zip(entry.learnt_test, entry.final_test, strict=True):
            assert then - 0.01 < now < 1


def test_held_energy_follows_what_is_projected_and_not_the_union_of_bases():
    """In turn, groups' bases leave a part of all groups but the last."""
    values = {**CGP, "eta": 0.9, "reading": "released"}
    in_turn = Run(make_plan(STREAM, "cgp", values=values), STREAM)
    in_turn.execute()
    site = in_turn.method.projector.sites["fc2"]
    images = STREAM[0].train.unit_images(slice(None))
    product = torch.eye(site.dimension, dtype=torch.float64)
    for basis in in_turn.method.groups["fc2"].bases:
        basis = basis.double()  # stored in float32
        product -= product @ basis @ basis.T
    with torch.no_grad():
        rows = torch.relu(in_turn.net.trunk.fc1(images.flatten(1))).double()
    for label in range(3):
        own = rows[STREAM[0].train.labels == label]
        left = float((own @ product).square().sum() / own.square().sum())
        shares = {entry.layer: entry for entry in in_turn.record.held}["fc2"]
        assert shares.final_train[label] == pytest.approx(1 - left, abs=1e-4)


def test_held_energy_can_be_switched_off_and_methods_without_projection_have_none(record):
    without = run(STREAM, "cgp", values={**CGP, "held_images": 0})
    assert without.held == []
    assert without.accuracy_matrix == record.accuracy_matrix
    assert run(STREAM, "finetune", values=QUICK).held == []


def test_held_energy_takes_so_many_images_of_each_class():
    few = run(STREAM, "gpm", values={**QUICK, "held_images": 1})
    all_of_them = run(STREAM, "gpm", values=QUICK)
    assert len(few.held[0].final_test) == 9
    assert few.held[0].final_test != all_of_them.held[0].final_test


def test_curves_have_the_epochs_that_were_trained_and_falling_losses(record):
    assert [curve.epochs for curve in record.curves] == [2, 2, 2]
    for curve in record.curves:
        assert len(curve.train) == 2
        assert curve.valid == curve.valid_accuracy == curve.rounds == []
        assert 0 < curve.train[1] < curve.train[0] < 1.2  # from ln 3


def test_curves_of_a_schedule_that_stops_early_have_validation():
    values = {**QUICK, "epochs": 9, "learning_rate": 2.0, "schedule": "plateau", "lr_min": 0.9}
    values |= {"patience": 1, "momentum": 0}
    for curve in run(STREAM, "finetune", values=values).curves:
        assert curve.epochs == len(curve.train) == len(curve.valid) == len(curve.valid_accuracy)
        assert curve.epochs <= 9
        assert all(0 <= share <= 100 for share in curve.valid_accuracy)


def test_several_rounds_of_a_task_are_told_apart():
    den = run(STREAM, "den", values=QUICK)
    assert any(len(curve.rounds) > 1 for curve in den.curves)
    for curve in den.curves:
        assert curve.epochs == len(curve.train)
        assert not curve.rounds or sum(curve.rounds) == curve.epochs


def test_a_loss_that_is_none_in_the_record_can_be_saved(record):
    record = record.model_copy(deep=True)
    record.curves[0].train[0] = None
    assert RunRecord.model_validate_json(record.to_json()) == record


@pytest.mark.parametrize("name", FAMILIES)
def test_tests_within_tasks_change_nothing(name):
    """Weights and all figures are the same bits; dropout draws the same numbers."""
    values = {**QUICK, "dropout": 0.2, "batch_norm": True, "norm": "stored", "affine": "task"}
    states = []
    for count in (0, 3):
        plan = make_plan(STREAM, name, values={**values, "stability": count})
        running = Run(plan, STREAM)
        record = running.execute()
        states.append((running.net.state_dict(), record))
    (one, plain), (two, tested) = states
    assert all(torch.equal(one[key], two[key]) for key in one)
    assert plain.accuracy_matrix == tested.accuracy_matrix
    assert plain.within_tasks == []
    joint = tested.average_incremental_accuracy is None
    assert [len(within.steps) for within in tested.within_tasks] == ([] if joint else [0, 4, 4])
    for number, within in enumerate(tested.within_tasks):
        assert within.steps == sorted(set(within.steps))
        assert within.steps[:1] == [0] * (number > 0)
        assert all(len(row) == number for row in within.accuracy)
    if not joint:
        assert tested.lowest_accuracy <= plain.lowest_accuracy


def test_the_lowest_accuracy_counts_from_what_the_tested_images_lose():
    matrix = torch.tensor([[90.0, math.nan], [80.0, 96.0]], dtype=torch.float64)
    within = [WithinTask(), WithinTask(steps=[0, 1, 8], accuracy=[[80.0], [50.0], [75.0]])]
    lowest = stability.lowest(within, matrix)
    assert lowest[1, 0] == 60.0
    assert lowest.isnan().sum() == 3
    assert stability.lowest(within[:1], matrix) is None


def test_the_record_says_where_it_was_made(record, monkeypatch, tmp_path):
    assert record.commits == [commit.package_commit()]
    assert record.threads == torch.get_num_threads()
    parameters = 4 * record.parameters
    assert parameters <= record.network_bytes < parameters + 1000
    # Installed, also within the checkout of another project, it is the version.
    commit.package_commit.cache_clear()
    monkeypatch.setattr(commit, "FILE", commit.FILE.parents[2] / "tests" / "x" / "__init__.py")
    monkeypatch.setattr(commit, "git", lambda *words: str(commit.FILE.parents[2]))
    assert commit.package_commit() == record.versions["classgrad"]
    commit.package_commit.cache_clear()
