"""Soft projections are applied once, whatever a gradient is made of."""

import copy

import pytest
import torch
from torch import nn

from classgrad.core.projector import Projector, ScaledProjection, SequentialProjection
from classgrad.core.subspace import Subspace
from classgrad.networks.network import preserved_rng

FEW, MANY = 4, 20  # rows, below and above the outputs of the layer
INPUTS, OUTPUTS = 6, 9


def normal(*shape, seed):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def orthonormal(columns, seed):
    return torch.linalg.qr(normal(INPUTS, columns, seed=seed)).Q


def scaled(rank):
    importance = torch.linspace(0.1, 1, rank, dtype=torch.float64)
    return lambda like: ScaledProjection(Subspace(orthonormal(rank, 1)), like, importance)


def sequential(*ranks):
    bases = [orthonormal(rank, seed) for seed, rank in enumerate(ranks)]
    return lambda like: SequentialProjection(bases, like)


def output(model, rows, seed):
    return model(normal(rows, INPUTS, seed=seed)).sin().sum()


# The backward passes of one step.
PASSES = {
    "few rows": [lambda m: output(m, FEW, 1)],
    "many rows": [lambda m: output(m, MANY, 1)],
    "two calls": [lambda m: output(m, FEW, 1) + output(m, FEW, 2)],
    "few and many": [lambda m: output(m, FEW, 1) + output(m, MANY, 2)],
    "a penalty": [lambda m: output(m, FEW, 1) + m[0].weight.square().sum()],
    "all of them": [lambda m: output(m, FEW, 1) + output(m, MANY, 2) + m[0].weight.square().sum()],
    "a penalty alone": [lambda m: m[0].weight.square().sum()],
    "three passes": [
        lambda m: output(m, FEW, 1),
        lambda m: output(m, MANY, 2),
        lambda m: output(m, FEW, 3) + m[0].weight.square().sum(),
    ],
}
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
}


def built():
    with preserved_rng():
        model = nn.Sequential(nn.Linear(INPUTS, OUTPUTS, bias=False)).double()
    with torch.no_grad():
        model[0].weight.copy_(normal(OUTPUTS, INPUTS, seed=7))
    return model


@pytest.mark.parametrize("early", [0, 1], ids=["", "first pass before the step"])
@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize(
    "projection",
    [scaled(2), scaled(5), sequential(1, 2), sequential(2, 3)],
    ids=["thin", "wide", "two", "two wide"],
)
def test_a_step_is_scaled_once(projection, name, optimiser, early):
    model, passes = built(), PASSES[name]
    reference = copy.deepcopy(model)
    weight, plain = model[0].weight, reference[0].weight
    projector = Projector(model)
    projector.set_projections({"0": projection(weight)})
    projector.install()
    project = projection(weight).project
    optimizer = OPTIMISERS[optimiser](model.parameters())
    other = OPTIMISERS[optimiser](reference.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        for one in passes[:early]:
            one(model).backward()
        with projector.step(optimizer):
            for one in passes[early:]:
                one(model).backward()
            optimizer.step()
        other.zero_grad()
        before = plain.detach().clone()
        for one in passes:
            one(reference).backward()
        follows = optimiser in ("sgd", "momentum")
        if follows:
            plain.grad = project(plain.grad)
        other.step()
        if not follows:
            with torch.no_grad():
                plain.copy_(before + project(plain - before))
        torch.testing.assert_close(weight, plain, rtol=1e-12, atol=1e-12)


def test_zeros_from_before_are_no_reason_to_scale_twice():
    model, reference = built(), built()
    projector = Projector(model)
    projector.set_projections({"0": scaled(3)(model[0].weight)})
    projector.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(3):
        optimizer.zero_grad(set_to_none=False)
        with projector.step(optimizer):
            output(model, FEW, seed).backward()
            optimizer.step()
        reference.zero_grad()
        output(reference, FEW, seed).backward()
        with torch.no_grad():
            step = scaled(3)(model[0].weight).project(reference[0].weight.grad)
            reference[0].weight.sub_(0.1 * step)
    torch.testing.assert_close(model[0].weight, reference[0].weight, rtol=1e-12, atol=1e-12)


def test_in_a_step_only_rows_are_multiplied(monkeypatch):
    model, shapes = built(), []
    projection = scaled(3)(model[0].weight)
    project = projection.project
    monkeypatch.setattr(projection, "project", lambda m: shapes.append(m.shape) or project(m))
    projector = Projector(model)
    projector.set_projections({"0": projection})
    projector.install()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with projector.step(optimizer):
        output(model, FEW, 1).backward()
        optimizer.step()
    assert shapes == [(FEW, INPUTS)]


def test_outside_of_a_step_gradients_are_as_they_would_be():
    model, reference = built(), built()
    projector = Projector(model)
    projector.set_projections({"0": scaled(3)(model[0].weight)})
    projector.install()
    for one in (model, reference):
        (output(one, FEW, 1) + output(one, MANY, 2)).backward()
    torch.testing.assert_close(model[0].weight.grad, reference[0].weight.grad)
    projector.remove()
    assert not model[0].weight._backward_hooks
