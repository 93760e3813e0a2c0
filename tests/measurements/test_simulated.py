"""What the scaling study times: layers that are guarded, classes that fill them, batches."""

import pytest
import torch

from benchmarks import batches, learner
from benchmarks.learner import flops
from benchmarks.simulated import (
    BATCH,
    LayerStep,
    measure_classes,
    measure_width,
    reflected_basis,
    simulated_class,
    sizes,
    subspaces_after,
)
from benchmarks.timing import Bench
from classgrad.core.projector import PROBED_ROWS
from classgrad.core.subspace import Subspace
from oracles.projection import leak


def test_reflected_columns_are_orthonormal_and_dense():
    basis = reflected_basis(40, 20)
    assert (basis.T @ basis - torch.eye(20)).abs().max() < 1e-12
    assert (basis.abs() > 1e-9).double().mean() > 0.95


@pytest.mark.parametrize("rank", [10, 80])
def test_the_layer_that_is_timed_keeps_out_of_its_basis(rank):
    subspace = Subspace(reflected_basis(96, rank))
    for step, kept in ((LayerStep(96, subspace), True), (LayerStep(96), False)):
        step()
        leaks = leak(step.layer.weight.grad, subspace.basis)
        assert leaks < 1e-5 if kept else leaks > 1e-2


def test_the_step_that_is_timed_has_all_that_a_method_does():
    step = LayerStep(96, Subspace(reflected_basis(96, 10)))
    step.optimizer.param_groups[0].update(lr=0.5, weight_decay=1.0)
    before = step.layer.weight.detach().clone()
    step()  # decay moves weights inside the basis, unless the update is projected as well
    assert leak(step.layer.weight - before, step.subspaces["0"].basis) < 1e-5


@pytest.mark.parametrize("rank", [10, 80])
def test_the_projection_of_a_step_has_the_operations_that_are_stated(rank):
    subspace = Subspace(reflected_basis(96, rank))
    extra = flops(LayerStep(96, subspace)) - flops(LayerStep(96))
    stated = sizes(subspace)
    assert stated["projection_flops"] == 4 * BATCH * 96 * min(rank, 96 - rank)
    leaks = 4 * PROBED_ROWS * 96  # two products of some rows of the gradient with a vector
    assert extra == stated["projection_flops"] + leaks
    assert stated["basis_bytes"] == 4 * 96 * rank
    assert stated["side_bytes"] == 4 * 96 * min(rank, 96 - rank)


def test_later_classes_add_fewer_directions_and_are_held():
    result = subspaces_after((1, 5, 10), 64)
    ranks = [result[count].rank for count in (1, 5, 10)]
    assert 0 < ranks[0] < ranks[1] < ranks[2] < 64
    assert ranks[2] - ranks[1] < ranks[1] - ranks[0]
    last = simulated_class(9, 64).double()
    assert (last @ result[10].basis).square().sum() >= 0.97 * last.square().sum()
    assert (last @ result[5].basis).square().sum() < 0.97 * last.square().sum()


def test_classes_are_measured_one_row_for_each_number():
    rows = measure_classes(Bench(quick=True), counts=(2, 10), dimension=64)
    assert [row["classes"] for row in rows] == [2, 10]
    assert rows[0]["rank"] < rows[1]["rank"]
    assert rows[1]["reference_flops"] == 10 * 2 * 64**3
    assert rows[0]["reference_seconds"] is None
    assert rows[1]["reference_seconds"] > 0
    for row in rows:
        assert min(row["step_seconds"], row["add_seconds"], row["protect_seconds"]) > 0


def test_a_width_is_measured_at_an_eighth_and_at_half_of_it():
    rows = measure_width(Bench(quick=True), 64)
    assert [row["rank"] for row in rows] == [8, 32]
    assert all(row["add_seconds"] > 0 and row["gram_seconds"] > 0 for row in rows)


def test_batches_of_every_size_go_through_the_network(monkeypatch):
    few = {"conv1": 48, "conv2": 576, "conv3": 512, "fc1": 1024, "fc2": 2048}
    monkeypatch.setattr(
        learner, "ranks_after", lambda tasks: {name: (d, 5) for name, d in few.items()}
    )
    rows = batches.measure_batches(Bench(quick=True), sizes=(4, 8))
    assert [row["batch"] for row in rows] == [4, 8]
    for row in rows:
        assert row["step_images_per_second"] == row["batch"] / row["step_seconds"]
