"""Gradients as one vector, there and back."""

import torch
from torch import nn

from classgrad.methods.flat import gather, products, write
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


def test_products_are_exact_for_tiny_and_long_float32_rows():
    rows = normal(3, 600_000).float()
    exact = rows.double() @ rows.double().T
    assert torch.allclose(products(rows, rows[:2]), exact[:, :2], rtol=1e-12, atol=1e-9)
    tiny = torch.full((1, 4), 1e-30)
    assert abs(float(products(tiny, tiny)) / 4e-60 - 1) < 1e-6
