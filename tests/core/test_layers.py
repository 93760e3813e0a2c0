"""Rows that a weight matrix multiplies, for every geometry of a layer."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from classgrad.core.layers import by_layer, sites, tap
from classgrad.core.projector import Projector
from classgrad.errors import UserError
from oracles.models import built, normal

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


@st.composite
def geometries(draw: st.DrawFn) -> tuple[int, dict[str, Any], tuple[int, ...]]:
    """Return the number of axes, the arguments of a convolution and the shape of an input."""
    axes = draw(st.integers(1, 3))
    each = st.tuples(*[st.integers(1, 3)] * axes)
    kernel, dilation, stride = draw(each), draw(each), draw(each)
    span = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    padding = draw(
        st.one_of(st.tuples(*[st.integers(0, 2)] * axes), st.sampled_from(["same", "valid"]))
    )
    if padding == "same":
        stride = (1,) * axes
    mode = draw(st.sampled_from(["zeros", "reflect", "replicate", "circular"]))
    # Large enough for one position, and for reflection, which needs more than it pads.
    size = tuple(max(s, 3) + draw(st.integers(0, 5)) for s in span)
    groups, narrow, wide = draw(st.tuples(*[st.integers(1, 3)] * 3))
    arguments = {
        "in_channels": groups * narrow,
        "out_channels": groups * wide,
        "kernel_size": kernel,
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "bias": draw(st.booleans()),
        "padding_mode": mode,
    }
    return axes, arguments, (draw(st.integers(1, 3)), groups * narrow, *size)


def channels_last(output: Tensor) -> Tensor:
    """(n, c, *positions) -> (n * positions, c)."""
    return output.movedim(1, -1).flatten(0, -2)


# PyTorch says once that an odd margin costs it a copy.
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")
@settings(deadline=None, max_examples=150)
@given(geometry=geometries(), seed=st.integers(0, 2**32 - 1))
def test_rows_times_the_weight_are_the_output_of_any_convolution(
    geometry: tuple[int, dict[str, Any], tuple[int, ...]], seed: int
) -> None:
    axes, arguments, shape = geometry
    layer = built(lambda: CONVOLUTIONS[axes](**arguments), seed)
    x = normal(*shape, seed=seed)
    bias = 0 if layer.bias is None else layer.bias
    expected = channels_last(layer(x)) - bias
    found = sites(nn.Sequential(layer))
    assert len(found) == arguments["groups"]
    with tap(found.values()) as seen:
        layer(x)
    outputs = []
    for site in found.values():
        rows = site.rows(seen[layer][0])
        assert rows.shape == (len(expected), site.dimension)
        assert torch.allclose(site.gram(seen[layer][0]), rows.T @ rows, atol=1e-12)
        outputs.append(rows @ site.matrix(layer.weight).T)
    assert torch.allclose(torch.cat(outputs, 1), expected, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(shape=st.lists(st.integers(1, 3), min_size=1, max_size=4), bias=st.booleans())
def test_rows_times_the_weight_are_the_output_of_a_linear_layer(
    shape: list[int], bias: bool
) -> None:
    layer = built(lambda: nn.Linear(shape[-1], 4, bias=bias))
    x = normal(*shape)
    (site,) = sites(nn.Sequential(layer)).values()
    expected = (layer(x) - (layer.bias if bias else 0)).reshape(-1, 4)
    assert torch.allclose(site.rows(x) @ site.matrix(layer.weight).T, expected, atol=1e-12)


def test_sites_are_named_by_layer_and_group_and_know_their_shape() -> None:
    model = built(
        lambda: nn.Sequential(nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(6, 2))
    )
    found = sites(model)
    assert [(s.name, s.dimension, s.start, s.stop) for s in found.values()] == [
        ("0[0]", 18, 0, 3),
        ("0[1]", 18, 3, 6),
        ("2", 6, 0, 2),
    ]
    assert all(name == site.name for name, site in found.items())
    assert found["0[1]"].weight is model[0].weight
    assert torch.equal(found["0[1]"].matrix(model[0].weight), model[0].weight[3:].flatten(1))
    x = normal(2, 4, 5, 5)
    assert torch.equal(found["0[1]"].share(x), x[:, 2:])


def test_frozen_layers_are_left_out() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(3, 3), nn.Conv1d(3, 3, 1), nn.Linear(3, 2)))
    model[1].weight.requires_grad_(False)
    assert list(sites(model)) == ["0", "2"]
    model.requires_grad_(False)
    assert sites(model) == {}


def test_inputs_are_recorded_in_the_order_of_the_calls() -> None:
    layer = built(lambda: nn.Linear(3, 3))
    found = sites(nn.Sequential(layer))
    first, second = normal(2, 3, seed=1), normal(4, 3, seed=2)
    with tap(found.values()) as seen:
        layer(first)
        layer(input=second)
        assert torch.equal(torch.cat(seen[layer]), torch.cat([first, second]))
        assert len(seen[layer]) == 2
        seen.clear()
        layer(second)
    assert len(seen[layer]) == 1
    assert not seen[layer][0].requires_grad


def test_a_module_used_twice_is_one_site_with_two_inputs() -> None:
    shared = built(lambda: nn.Linear(3, 3))
    model = nn.Sequential(shared, nn.ReLU(), shared)
    found = sites(model)
    assert list(found) == ["0"]
    x = normal(2, 3)
    with tap(found.values()) as seen:
        model(x)
    assert torch.equal(seen[shared][0], x)
    assert torch.equal(seen[shared][1], shared(x).relu())


@pytest.mark.parametrize("where", ["before", "after"])
def test_operations_in_place_do_not_change_what_was_recorded(where: str) -> None:
    layer = built(lambda: nn.Linear(3, 3))
    found = sites(nn.Sequential(layer))
    x = normal(4, 3)
    expected = x.relu() if where == "before" else x.clone()
    with torch.no_grad(), tap(found.values()) as seen:
        if where == "before":
            x.relu_()
        nn.functional.relu_(layer(x))
        x.fill_(7)
    assert torch.equal(seen[layer][0], expected)


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_hooks_are_gone_after_the_block_however_it_ends() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    with tap(sites(model).values()):
        assert hooks_of(model) == 2
    assert hooks_of(model) == 0

    def fail() -> None:
        with tap(sites(model).values()):
            model(normal(2, 5))

    with pytest.raises(RuntimeError):
        fail()
    assert hooks_of(model) == 0


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.coder, self.decoder = nn.Linear(3, 3), nn.Linear(3, 3)
        self.decoder.weight = self.coder.weight


class Loose(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.gain = nn.Linear(3, 3), nn.Parameter(torch.ones(3))


class Halved(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) / 2


class Halving(nn.MultiheadAttention):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output, weights = super().forward(*args, **kwargs)
        return output / 2, weights


def parametrised(layer: nn.Module, name: str) -> nn.Module:
    nn.utils.parametrize.register_parametrization(layer, name, nn.Tanh())
    return layer


def parametrised_attention(name: str) -> nn.Module:
    layer = nn.MultiheadAttention(4, 2)
    parametrised(layer.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2])
    return layer


def replaced_attention() -> nn.Module:
    layer = nn.MultiheadAttention(4, 2)
    layer.forward = lambda query, key, value: (query, None)
    return named(look=layer)


def tied_attention() -> nn.Module:
    layer = nn.MultiheadAttention(4, 2, vdim=3)
    layer.k_proj_weight = layer.q_proj_weight
    return named(look=layer)


def named(**layers: nn.Module) -> nn.Module:
    """Return a model with these layers, and a Linear one beside them."""
    return nn.Sequential(nn.ModuleDict({"plain": nn.Linear(3, 3), **layers}))


REFUSED = {
    "shared weight": (Tied, ["'coder'", "'decoder'"]),
    "attention with a forward of its own": (
        lambda: named(look=Halving(4, 2)),
        ["'0.look'", "Halving", "nn.MultiheadAttention"],
    ),
    "parametrised attention": (
        lambda: named(look=parametrised_attention("in_proj_weight")),
        ["'0.look'", "computed"],
    ),
    "parametrised out-projection": (
        lambda: named(look=parametrised_attention("out_proj.weight")),
        ["'0.look'", "computed"],
    ),
    "attention with another forward": (
        replaced_attention,
        ["'0.look'", "its forward is not that of"],
    ),
    "attention with tied matrices": (
        tied_attention,
        ["'0.look[query]'", "'0.look[key]'", "share one weight"],
    ),
    "transformer with positions first": (
        lambda: named(block=nn.TransformerEncoderLayer(4, 2, 8)),
        ["'0.block'", "TransformerEncoderLayer", "batch_first=True"],
    ),
    "batch norm": (lambda: named(norm=nn.BatchNorm2d(3)), ["'0.norm'", "BatchNorm2d"]),
    "instance norm": (
        lambda: named(norm=nn.InstanceNorm2d(3, track_running_stats=True)),
        ["'0.norm'", "InstanceNorm2d"],
    ),
    "embedding": (lambda: named(words=nn.Embedding(4, 3)), ["'0.words.weight'", "Embedding"]),
    "prelu": (lambda: named(act=nn.PReLU()), ["'0.act.weight'", "PReLU"]),
    "loose parameter": (Loose, ["'gain'", "Loose"]),
    "recurrent": (lambda: named(memory=nn.GRU(3, 3)), ["'0.memory.weight_ih_l0'", "GRU"]),
    "long memory": (lambda: named(memory=nn.LSTM(3, 3)), ["'0.memory.weight_ih_l0'", "LSTM"]),
    "cell": (lambda: named(memory=nn.GRUCell(3, 3)), ["'0.memory.weight_ih'", "GRUCell"]),
    "bilinear": (lambda: named(pair=nn.Bilinear(3, 3, 2)), ["'0.pair.weight'", "Bilinear"]),
    "bag": (lambda: named(words=nn.EmbeddingBag(4, 3)), ["'0.words.weight'", "EmbeddingBag"]),
    "parametrised bias": (
        lambda: named(scaled=parametrised(nn.Linear(3, 3), "bias")),
        ["'0.scaled.parametrizations.bias.original'"],
    ),
    "pruned": (
        lambda: named(thin=prune.identity(nn.Linear(3, 3), "weight")),
        ["'0.thin'", "computed"],
    ),
    "transposed": (
        lambda: named(up=nn.ConvTranspose2d(3, 3, 2)),
        ["'0.up.weight'", "ConvTranspose2d"],
    ),
    "parametrised": (
        lambda: named(scaled=nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))),
        ["'0.scaled", "cannot be protected"],
    ),
    "weight behind a hook": (
        lambda: named(scaled=nn.utils.spectral_norm(nn.Linear(3, 3))),
        ["'0.scaled"],
    ),
    "linear layer with a forward of its own": (
        lambda: named(halved=Halved(3, 3)),
        ["'0.halved'", "Halved"],
    ),
    "nothing to protect": (lambda: nn.Sequential(nn.ReLU()), ["no Linear or convolution"]),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_protected_is_refused_by_name(kind: str) -> None:
    make, words = REFUSED[kind]
    model = built(make)
    with pytest.raises(UserError) as caught:
        Projector(model)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "kind",
    [
        "attention with a forward of its own",
        "bilinear",
        "embedding",
        "loose parameter",
        "parametrised",
        "prelu",
        "recurrent",
        "transformer with positions first",
        "transposed",
    ],
)
def test_what_is_frozen_is_not_refused(kind: str) -> None:
    model = built(REFUSED[kind][0]).requires_grad_(False)
    linear = model.body if kind == "loose parameter" else model[0]["plain"]
    linear.requires_grad_(True)
    assert len(Projector(model).sites) == 1


def test_norms_without_running_statistics_are_welcome() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(4, 4, 1),
            nn.BatchNorm2d(4, track_running_stats=False),
            nn.GroupNorm(2, 4),
            nn.InstanceNorm2d(4, affine=True),
            nn.Flatten(),
            nn.LayerNorm(4),
            nn.RMSNorm(4),
        )

    projector = Projector(built(make))
    assert list(projector.sites) == ["0"]
    assert math.prod(projector.sites["0"].weight.shape) == 16


def test_values_by_layer_go_by_name_before_patterns_and_without_the_trunk() -> None:
    names = ["trunk.conv1[0]", "trunk.conv1[1]", "trunk.fc1", "heads.0"]
    spread = by_layer({"conv*": 1, "*": 2, "fc1": 3, "heads*": 4}, names)
    assert list(spread.values()) == [1, 1, 3, 2]  # the first pattern, in the order given
    spread = by_layer({"conv*": 1, "heads*": 4, "trunk.*": 2}, names)
    assert list(spread.values()) == [1, 1, 2, 4]
    assert by_layer({"fc1": 3, "heads*": 4}, ["fc1"]) == {"fc1": 3}  # no head is shared
    with pytest.raises(UserError, match="'fc2' fits no layer"):
        by_layer({"fc2": 1, "*": 2}, names)
    with pytest.raises(UserError, match=r"'fc\*' fits no layer"):
        by_layer({"*": 2, "fc*": 1}, names)
