"""How the matrix P of OWM learns rows."""

import numpy as np
import pytest
import torch
from torch import nn

from classgrad.core.layers import sites
from classgrad.methods.projection.shrinking import Shrinking, mean_rows, shrunk
from oracles.models import built, normal
from oracles.shrinking import closed, learnt, rows_of


@pytest.mark.parametrize("count", [1, 5, 12, 40])
@pytest.mark.parametrize("alpha", [1.0, 1e-5])
def test_a_block_of_rows_equals_one_update_after_another_and_the_closed_form(count, alpha):
    start, rows = normal(7, 12, seed=1), normal(count, 12, seed=2)
    p = shrunk(torch.eye(12, dtype=torch.float64), start, 0.1)
    found = shrunk(p, rows, alpha).numpy()
    in_turn = learnt(learnt(np.eye(12), start.numpy(), 0.1), rows.numpy(), alpha)
    both = np.vstack([start.numpy(), rows.numpy()])
    assert np.abs(found - in_turn).max() < 1e-11
    assert np.abs(found - closed(both, np.array([0.1] * 7 + [alpha] * count))).max() < 1e-9
    assert np.abs(found - p.numpy()).max() > 1e-2


def test_rows_with_different_damping_weigh_by_it():
    rows, alphas = normal(6, 9), np.array([1.0, 0.5, 0.1, 0.03, 0.01, 0.001])
    p = torch.eye(9, dtype=torch.float64)
    for row, alpha in zip(rows, alphas, strict=True):
        p = shrunk(p, row[None], float(alpha))
    assert np.abs(p.numpy() - closed(rows.numpy(), alphas)).max() < 1e-12


def test_p_stays_symmetric_and_between_zero_and_one():
    p = torch.eye(20, dtype=torch.float64)
    for seed in range(60):
        p = shrunk(p, 30 * normal(1 + seed % 30, 20, seed=seed), 1e-6)
        assert torch.equal(p, p.T)
    values = torch.linalg.eigvalsh(p)
    assert values.min() > -1e-14
    assert values.max() <= 1 + 1e-14


def test_no_learnt_row_keeps_more_than_half_the_root_of_its_damping():
    """||r P|| <= √α / 2, and nearly so for a row as long as √α."""
    alpha = 1e-4
    rows = normal(5, 8) * torch.tensor([10.0, 1.0, 0.1, 0.01, 0.001], dtype=torch.float64)[:, None]
    p = shrunk(torch.eye(8, dtype=torch.float64), rows, alpha)
    assert (rows @ p).norm(dim=1).max() <= alpha**0.5 / 2
    lone = nn.functional.normalize(normal(1, 8, seed=3)) * alpha**0.5
    p = shrunk(torch.eye(8, dtype=torch.float64), lone, alpha)
    assert (lone @ p).norm() == pytest.approx(alpha**0.5 / 2)


@pytest.mark.parametrize("every", [1, 2, 3])
def test_rows_are_the_patches_of_mean_images(every):
    layer = built(lambda: nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=(2, 1), bias=False))
    site = sites(nn.Sequential(layer))["0"]
    x = normal(10, 3, 9, 8)
    found = mean_rows(site, x, 5, every)
    wanted = np.vstack([rows_of(layer, half, every) for half in x.split(5)])
    assert np.abs(found.numpy() - wanted).max() < 1e-14


@pytest.mark.parametrize(
    ("count", "mean_of", "sizes"), [(65, 64, [65]), (9, 4, [5, 4]), (3, 8, [3])]
)
def test_no_mean_is_of_fewer_samples_than_asked_for(count, mean_of, sizes):
    site = sites(nn.Sequential(built(lambda: nn.Linear(4, 2))))["0"]
    x = normal(count, 4)
    wanted = torch.stack([part.mean(0) for part in x.split(sizes)])
    assert torch.allclose(mean_rows(site, x, mean_of, 1), wanted, atol=1e-14, rtol=0)


def test_products_are_in_the_precision_of_the_weights_and_p_is_not():
    layer = built(lambda: nn.Linear(6, 3)).float()
    side = Shrinking(sites(nn.Sequential(layer))["0"])
    side.become(shrunk(side.matrix, normal(3, 6), 1e-3))
    gradient = normal(3, 6, seed=4)
    assert side.matrix.dtype == torch.float64
    assert side.free(gradient.float()).dtype == torch.float32
    assert torch.allclose(side.free(gradient.float()).double(), gradient @ side.matrix, atol=1e-6)
