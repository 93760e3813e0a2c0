"""Bases of GPM against plain singular value decompositions."""

import numpy as np
import pytest
import torch
from torch import nn

from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.methods import GPM
from oracles.bases import LayerMemory, as_batch, held, linear_layer, projector, random_case
from oracles.models import built, in_turn, normal


def gpm_basis(tasks: list[list[np.ndarray]], **values: object) -> np.ndarray:
    """Basis that GPM holds for a bias-free linear layer whose inputs are the given columns."""
    guard = attach(linear_layer(len(tasks[0][0])), GPM(samples=10_000, **values))
    for classes in tasks:
        guard.end_task([as_batch(classes)])
    return guard.method.subspaces["0"].basis.numpy()


@pytest.mark.parametrize("compat", [False, True])
def test_bases_equal_those_of_a_plain_svd_loop(compat: bool) -> None:
    checked, seed = 0, 0
    while checked < 200:
        case = random_case(seed)
        seed += 1
        oracle = LayerMemory(case.dimension, compat=compat)
        for task, classes in enumerate(case.tasks):
            oracle.pooled_task(classes, case.threshold(task))
        if min(oracle.margins) < 1e-6:
            continue
        checked += 1
        basis = gpm_basis(
            case.tasks, epsilon=case.epsilon, energy_step=case.step, gpm_compat=compat
        )
        assert basis.shape == oracle.basis.shape, seed
        assert np.abs(projector(basis) - projector(oracle.basis)).max() < 1e-9, seed
    assert seed < 300  # few cases hang on rounding


def test_the_first_basis_reaches_the_threshold_and_one_direction_less_does_not() -> None:
    c = np.diag([4.0, 2.0, 1.0, 0.5, 0.1])
    shares = np.cumsum(np.diag(c) ** 2) / np.sum(c**2)
    for rank in range(1, 5):
        enough, short = shares[rank - 1] - 1e-9, shares[rank - 1] + 1e-9
        assert gpm_basis([[c]], epsilon=enough).shape[1] == rank
        assert gpm_basis([[c]], epsilon=short).shape[1] == rank + 1
        assert held(c, gpm_basis([[c]], epsilon=enough)) >= enough
        assert gpm_basis([[c]], epsilon=short, gpm_compat=True).shape[1] == rank


def test_compat_takes_one_direction_less_for_the_first_basis_only() -> None:
    rng = np.random.default_rng(0)
    first, second = rng.standard_normal((12, 5)), rng.standard_normal((12, 5))
    exact = gpm_basis([[first], [second]], epsilon=1.0)
    compat = gpm_basis([[first], [second]], epsilon=1.0, gpm_compat=True)
    assert gpm_basis([[first]], epsilon=1.0).shape[1] == 5
    assert gpm_basis([[first]], epsilon=1.0, gpm_compat=True).shape[1] == 4
    assert (exact.shape[1], compat.shape[1]) == (10, 9)
    assert held(second, compat) > 1 - 1e-12


def test_epsilon_grows_with_every_task_up_to_its_limit() -> None:
    method = GPM(epsilon=0.9, energy_step=0.03, energy_limit=0.95)
    guard = attach(linear_layer(3), method)
    result = []
    for _ in range(4):
        result.append(guard.method.thresholds()["0"])
        guard.end_task([(normal(4, 3), in_turn(4, 1))])
    assert result == pytest.approx([0.9, 0.93, 0.95, 0.95], abs=1e-12)
    assert method.subspaces == {}  # the settings a user passed stay a description


def test_a_start_above_the_limit_is_kept() -> None:
    guard = attach(linear_layer(3), GPM(epsilon=1.0, energy_limit=0.9))
    guard.end_task([(normal(4, 3), in_turn(4, 1))])
    assert guard.method.thresholds() == {"0": 1.0}


def test_energy_and_samples_can_be_given_by_layer() -> None:
    model = built(
        lambda: nn.Sequential(nn.Conv1d(4, 6, 1, groups=2), nn.Flatten(), nn.Linear(6, 6))
    )
    guard = attach(model, GPM(epsilon={"0": 0.9, "*": 1.0}, samples={"2": 3, "*": 1}))
    assert guard.method.thresholds() == {"0[0]": 0.9, "0[1]": 0.9, "2": 1.0}
    guard.end_task([(normal(8, 4, 1), in_turn(8, 1))])
    assert [(r.name, r.rank) for r in guard.layer_ranks()] == [("0[0]", 1), ("0[1]", 1), ("2", 3)]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"epsilon": {"0": 0.9}}, "'1'"),
        ({"samples": {"0": 5, "*": 5, "head": 5}}, "'head'"),
    ],
)
def test_a_setting_by_layer_that_fits_no_layer_is_refused(values: dict, named: str) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)))
    with pytest.raises(UserError, match=named):
        attach(model, GPM(**values))


def test_the_state_holds_the_bases_the_frozen_parameters_and_the_number_of_tasks() -> None:
    guard = attach(built(lambda: nn.Sequential(nn.Linear(5, 3))), GPM(epsilon=0.9))
    guard.end_task([(normal(4, 5), in_turn(4, 1))])
    state = guard.method.state_dict()
    assert (state["frozen"], state["learnt"]) == (["0.bias"], 1)
    assert torch.equal(state["bases"]["0"], guard.method.subspaces["0"].basis)
    assert guard.method.memory_bytes() == state["bases"]["0"].nbytes > 0
