"""Gradients as one vector, there and back."""

import pytest
import torch
from torch import nn

from classgrad.methods.flat import add_, gather, gram, inner, write
from oracles.models import built, normal


def parameters():
    model = built(lambda: nn.ModuleList([nn.Conv2d(2, 3, 2, bias=False), nn.Linear(3, 2)]))
    weight = model[0].weight
    weight.data = weight.data.contiguous(memory_format=torch.channels_last)
    return list(model.parameters())


def test_gradients_come_back_as_they_were_written():
    result, vector = parameters(), normal(24 + 6 + 2)
    write(result, vector)
    assert torch.equal(gather(result, [p.grad for p in result]), vector)
    assert torch.equal(result[0].grad.reshape(-1), vector[:24])
    assert result[0].grad.is_contiguous(memory_format=torch.channels_last)


def test_what_has_no_gradient_is_zero_and_stays_without_unless_it_gets_one():
    result = parameters()
    result[1].grad = torch.ones_like(result[1])
    vector = gather(result, [p.grad for p in result])
    assert vector.tolist() == [0.0] * 24 + [1.0] * 6 + [0.0] * 2
    vector[24:] = torch.tensor([0.0] * 6 + [0.0, 5.0])
    write(result, vector)
    assert result[0].grad is None
    assert result[1].grad.count_nonzero() == 0  # it had one
    assert result[2].grad.tolist() == [0.0, 5.0]


def test_inner_products_are_exact_for_tiny_and_long_float32_vectors():
    rows = normal(3, 200_000).float()
    lists = [[row[:150_000].view(3, -1), row[150_000:]] for row in rows]
    exact = rows.double() @ rows.double().T
    assert torch.allclose(gram(lists), exact, rtol=1e-12, atol=1e-9)
    assert torch.allclose(inner(lists[:2], lists[2]), exact[:2, 2], rtol=1e-12, atol=1e-9)
    tiny = [torch.full((4,), 1e-30)]
    assert abs(float(gram([tiny])) / 4e-60 - 1) < 1e-6


def test_inner_products_do_not_depend_on_the_memory_format():
    left, right = normal(2, 3, 4, 5), normal(2, 3, 4, 5, seed=1)
    other = right.contiguous(memory_format=torch.channels_last)
    assert torch.equal(gram([[left], [right]]), gram([[left], [other]]))


def test_rows_are_added_with_their_factors():
    vector, rows = (
        [normal(2, 3), normal(4, seed=1)],
        [[normal(2, 3, seed=2), normal(4, seed=3)]] * 3,
    )
    expected = [a + (0.5 - 2.0) * b for a, b in zip(vector, rows[0], strict=True)]
    add_(vector, rows, torch.tensor([0.5, 0.0, -2.0]))
    for result, value in zip(vector, expected, strict=True):
        assert torch.allclose(result, value, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("size", [1e-42, 1e-30, 1e30, 1e38])
def test_tiny_and_huge_float32_rows_are_added_without_loss(size):
    vector = [torch.tensor([1.0, 1.0])]
    row = torch.tensor([-size, size])
    add_(vector, [[row]], 2 / row.double().abs().max()[None])
    assert vector[0].tolist() == pytest.approx([-1.0, 3.0], rel=1e-6)
