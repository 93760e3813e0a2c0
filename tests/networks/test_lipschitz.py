"""Bounds on how far outputs move hold, and are exact where layers leave no choice."""

import copy

import pytest
import torch
from torch import nn

from classgrad.networks.efficientnet_lite import Block, ConvNorm
from classgrad.networks.lipschitz import CannotFollow, Movements, passed_on, spectral_norm
from classgrad.networks.mlp import MLP
from oracles.models import built


def changed(trunk, seed, size):
    """Return a copy of a trunk with other weights."""
    other = copy.deepcopy(trunk)
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in other.modules():
            learns = isinstance(layer, nn.Linear | nn.Conv2d) and getattr(layer, "groups", 1) == 1
            if learns:
                noise = torch.randn(layer.weight.shape, generator=rng, dtype=torch.float64)
                layer.weight += size * noise * layer.weight.std()
    return other


def own_movements(old, new, x):
    """Return what the change of each layer did to its outputs for its old inputs, by channel."""
    own, inputs = {}, {}
    for name, layer in old.named_modules():
        layer.register_forward_hook(lambda _, args, out, name=name: inputs.update({name: args[0]}))
    old(x)
    for name, layer in new.named_modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            moved = layer(inputs[name]) - old.get_submodule(name)(inputs[name])
            rows = moved.transpose(0, 1).flatten(1).norm(dim=1)
            parent = new.get_submodule(name.rpartition(".")[0])
            if isinstance(parent, ConvNorm):
                rows = rows * parent.norm.scale_and_shift()[0].abs()
            if rows.any():
                own[layer] = rows.detach()
    return own


def random_norms(trunk):
    for layer in trunk.modules():
        if isinstance(layer, ConvNorm):
            rng = torch.Generator().manual_seed(len(layer.norm.weight))
            layer.norm.weight.copy_(torch.randn(layer.norm.weight.shape, generator=rng) / 2)
    return trunk


TRUNKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(), nn.Linear(9, 4), nn.Tanh()), (6,)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(2, 6, 3, padding=1),
            nn.ReLU6(),
            nn.MaxPool2d(3, 2),
            nn.Conv2d(6, 5, 2, stride=2, bias=False),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
        (2, 11, 11),
    ),
    "blocks": (
        lambda: random_norms(
            nn.Sequential(
                ConvNorm(3, 4, 3, 2),
                nn.ReLU6(),
                Block(4, 4, 3, 1, 1),
                Block(4, 6, 5, 2, 3),
                Block(6, 6, 3, 1, 3),
                nn.AdaptiveAvgPool2d(1),
                nn.Flatten(),
            )
        ),
        (3, 12, 12),
    ),
}


@pytest.mark.parametrize("size", [0.001, 0.1, 1])
@pytest.mark.parametrize("name", TRUNKS)
def test_outputs_never_move_farther_than_the_bound(name, size):
    make, shape = TRUNKS[name]
    old = built(make).double().eval()
    for seed in range(4):
        x = torch.randn(5, *shape, generator=torch.Generator().manual_seed(seed)).double()
        new = changed(old, seed, size)
        bound = Movements(new, x[:1]).of_outputs(own_movements(copy.deepcopy(old), new, x))
        with torch.no_grad():
            moved = float((new(x) - old(x)).norm())
        assert 0 < moved <= bound


def test_what_has_not_moved_moves_nothing_also_through_layers_that_cannot_be_followed():
    trunk = built(lambda: nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3))).float()
    bounds = Movements(trunk, torch.zeros(1, 4))
    assert bounds.of_outputs({}) == 0
    own = {trunk[1]: torch.tensor([3.0, 4.0, 0.0])}
    assert bounds.of_outputs(own) == pytest.approx(5)
    trunk.append(nn.Softmax(1))
    with pytest.raises(CannotFollow, match=r"2 \(Softmax\)"):
        Movements(trunk, torch.zeros(1, 4)).of_outputs(own)
    dilated = built(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 1, 3, dilation=2))
    ).float()
    with pytest.raises(CannotFollow, match="1"):
        Movements(dilated, torch.zeros(1, 1, 8, 8)).of_outputs({dilated[0]: torch.ones(2)})


def test_the_bound_is_exact_for_one_direction_through_linear_layers():
    trunk = built(lambda: nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)))
    trunk = trunk.double()
    _, s, vh = torch.linalg.svd(trunk[1].weight.detach())
    old = copy.deepcopy(trunk)
    x = torch.eye(4)[:1].double()
    with torch.no_grad():
        trunk[0].weight += 0.3 * torch.outer(vh[0], x[0])  # along what the second amplifies most
    bound = Movements(trunk, x).of_outputs({trunk[0]: 0.3 * vh[0].abs()})
    assert float((trunk(x) - old(x)).detach().norm()) == pytest.approx(bound)
    assert bound == pytest.approx(0.3 * float(s[0]))


def test_the_norm_of_a_depthwise_convolution_is_that_of_its_matrix_or_more():
    conv = built(lambda: nn.Conv2d(3, 3, 5, padding=2, groups=3, bias=False)).double()
    for size, exact in [(4, True), (9, False)]:
        bounds = Movements(nn.Sequential(conv), torch.zeros(1, 3, size, size).double())
        images = torch.eye(3 * size**2).double().reshape(-1, 3, size, size)
        matrix = conv(images).detach().flatten(1)
        true = float(torch.linalg.matrix_norm(matrix, 2))
        norm = bounds._norm(conv)
        assert norm == pytest.approx(true) if exact else true < norm < 4 * true


def test_norms_of_matrices():
    rng = torch.Generator().manual_seed(3)
    for shape in [(5, 3), (3, 7)]:
        matrix = torch.randn(shape, generator=rng).double()
        assert spectral_norm(matrix) == pytest.approx(float(torch.linalg.matrix_norm(matrix, 2)))
    second = torch.randn(4, 6, generator=rng).double()
    own = torch.rand(6, generator=rng).double()
    bound = passed_on(second, own, torch.ones(6).double())
    signs = torch.randn(500, 6, generator=rng).sign().double()
    assert float((signs * own @ second.T).norm(dim=1).max()) <= bound


class Residual(nn.Sequential):
    """Adds its inputs to its outputs."""

    def forward(self, x):
        return x + super().forward(x)


class Doubled(nn.Linear):
    """Doubles its outputs."""

    def forward(self, x):
        return 2 * super().forward(x)


class Tripled(nn.Conv2d):
    """Triples its outputs, without a forward of its own."""

    def _conv_forward(self, x, weight, bias):
        return 3 * super()._conv_forward(x, weight, bias)


class Named(nn.Linear):
    """Computes what a Linear layer does."""


def test_subclasses_that_compute_something_else_are_not_followed():
    for name, make, shape in [
        ("Residual", lambda: Residual(nn.Linear(4, 4)), (4,)),
        ("Doubled", lambda: Doubled(4, 4), (4,)),
        ("Tripled", lambda: Tripled(4, 4, 1), (4, 2, 2)),
    ]:
        trunk = built(lambda make=make: nn.Sequential(make(), nn.Flatten())).float()
        learning = next(m for m in trunk.modules() if isinstance(m, nn.Linear | nn.Conv2d))
        with pytest.raises(CannotFollow, match=rf"0 \({name}\)"):
            Movements(trunk, torch.zeros(1, *shape)).of_outputs({learning: torch.ones(4)})
    trunk = built(lambda: nn.Sequential(Named(4, 4))).float()
    assert Movements(trunk, torch.zeros(1, 4)).of_outputs({trunk[0]: torch.ones(4)}) == 2
    trunk[0].forward = lambda x: 2 * x
    with pytest.raises(CannotFollow, match="Named"):
        Movements(trunk, torch.zeros(1, 4)).of_outputs({trunk[0]: torch.ones(4)})


def test_trunks_of_the_table_are_followed():
    trunk = built(lambda: MLP((6,), MLP.Options(width=8))).float()
    first = next(module for module in trunk.modules() if isinstance(module, nn.Linear))
    assert Movements(trunk, torch.zeros(1, 6)).of_outputs({first: torch.ones(8)}) > 0
