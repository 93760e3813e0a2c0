import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from classgrad.training import metrics

NAN = math.nan
MATRIX = torch.tensor([[90.0, NAN, NAN], [84.0, 80.0, NAN], [87.0, 71.0, 95.0]])


def test_hand_made_matrix():
    assert metrics.average_accuracy(MATRIX) == pytest.approx((87 + 71 + 95) / 3)
    assert metrics.backward_transfer(MATRIX) == pytest.approx(((87 - 90) + (71 - 80)) / 2)
    assert metrics.forgetting(MATRIX) == pytest.approx(((90 - 87) + (80 - 71)) / 2)


def test_forgetting_counts_from_the_best_not_from_the_first():
    improved = torch.tensor([[50.0, NAN, NAN], [70.0, 60.0, NAN], [65.0, 60.0, 90.0]])
    assert metrics.forgetting(improved) == pytest.approx(((70 - 65) + 0) / 2)
    assert metrics.backward_transfer(improved) == pytest.approx((15 + 0) / 2)


def test_one_task_has_no_transfer():
    one = torch.tensor([[80.0]])
    assert metrics.average_accuracy(one) == 80
    assert metrics.backward_transfer(one) is None
    assert metrics.forgetting(one) is None


def test_a_joint_run_has_only_a_last_row():
    joint = torch.tensor([[NAN, NAN], [80.0, 90.0]])
    assert metrics.average_accuracy(joint) == 85
    assert metrics.backward_transfer(joint) is None
    assert metrics.forgetting(joint) is None
    assert metrics.average_accuracy(joint[:1, :1]) is None


def test_forward_transfer_needs_both_sides():
    assert metrics.forward_transfer([40.0], [10.0]) == 30
    assert metrics.forward_transfer([], []) is None
    assert metrics.forward_transfer([40.0], []) is None


@given(st.integers(2, 7), st.randoms(use_true_random=False))
def test_against_double_loops(size, rng):
    matrix = torch.full((size, size), NAN, dtype=torch.float64)
    for i in range(size):
        for j in range(i + 1):
            matrix[i, j] = rng.uniform(0, 100)
    last = [matrix[size - 1, j].item() for j in range(size)]
    assert metrics.average_accuracy(matrix) == pytest.approx(sum(last) / size)
    change = [last[j] - matrix[j, j].item() for j in range(size - 1)]
    assert metrics.backward_transfer(matrix) == pytest.approx(sum(change) / (size - 1))
    lost = [max(matrix[i, j].item() for i in range(j, size - 1)) - last[j] for j in range(size - 1)]
    assert metrics.forgetting(matrix) == pytest.approx(sum(lost) / (size - 1))
