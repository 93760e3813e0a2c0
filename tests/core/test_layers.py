"""Rows that a weight matrix multiplies, for every geometry of a layer."""

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import prune

from classgrad.core import layers
from classgrad.core.layers import (
    LayerKind,
    Matrix,
    by_layer,
    register_layer,
    register_norm,
    sites,
    tap,
)
from classgrad.core.projector import Projector
from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.methods import CGP, GPM, Projected
from oracles.models import built, in_turn, normal

CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}


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
@given(geometry=geometries(), seed=st.integers(0, 2**32 - 1), min_channels=st.sampled_from([1, 32]))
def test_rows_times_the_weight_are_the_output_of_any_convolution(
    geometry: tuple[int, dict[str, Any], tuple[int, ...]], seed: int, min_channels: int
) -> None:
    axes, arguments, shape = geometry
    layer = built(lambda: CONVOLUTIONS[axes](**arguments), seed)
    x = normal(*shape, seed=seed)
    bias = 0 if layer.bias is None else layer.bias
    expected = channels_last(layer(x)) - bias
    result = sites(nn.Sequential(layer))
    assert len(result) == arguments["groups"]
    with tap(result.values()) as seen:
        layer(x)
    outputs = []
    for site in result.values():
        rows = site.rows(seen[layer, 0][0])
        assert rows.shape == (len(expected), site.dimension)
        with pytest.MonkeyPatch.context() as patch:  # products along one axis, and along both
            patch.setattr("classgrad.core.layers.MIN_CHANNELS", min_channels)
            gram = site.gram(seen[layer, 0][0])
        assert torch.allclose(gram, rows.T @ rows, atol=1e-12)
        outputs.append(rows @ site.matrix(layer.weight).T)
    assert torch.allclose(torch.cat(outputs, 1), expected, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(
    axes=st.integers(1, 3),
    sizes=st.tuples(*[st.integers(1, 3)] * 7),
    bias=st.booleans(),
    seed=st.integers(0, 99),
)
def test_rows_times_the_weight_are_spread_over_the_output_of_a_transposed_convolution(
    axes: int, sizes: tuple[int, ...], bias: bool, seed: int
) -> None:
    groups, narrow, wide, kernel, stride, dilation, samples = sizes
    layer = built(
        lambda: TRANSPOSED[axes](
            groups * narrow,
            groups * wide,
            kernel,
            stride=stride,
            dilation=dilation,
            groups=groups,
            bias=bias,
        ),
        seed,
    )
    x = normal(samples, groups * narrow, *range(2, 2 + axes), seed=seed)
    result = sites(nn.Sequential(layer))
    with tap(result.values()) as seen:
        actual = layer(x)
    expected = torch.zeros_like(actual)
    for group, site in enumerate(result.values()):
        (recorded,) = seen[site.source]
        spread = site.rows(recorded) @ site.matrix(layer.weight).T
        assert spread.shape[1] == wide * kernel**axes
        spread = spread.view(samples, *x.shape[2:], wide, *[kernel] * axes)
        out = expected[:, group * wide : (group + 1) * wide]
        for place in itertools.product(*map(range, x.shape[2:])):
            for tap_ in itertools.product(*[range(kernel)] * axes):
                to = [p * stride + k * dilation for p, k in zip(place, tap_, strict=True)]
                out[(..., *to)] += spread[(slice(None), *place, slice(None), *tap_)]
    if bias:
        expected += layer.bias.view(-1, *[1] * axes)
    assert torch.allclose(actual, expected, atol=1e-12)


def test_a_transposed_matrix_is_written_where_it_was_read() -> None:
    layer = built(lambda: nn.ConvTranspose2d(4, 6, 3, groups=2))
    first, second = sites(nn.Sequential(layer)).values()
    assert (second.name, second.dimension, second.start, second.stop) == ("0[1]", 2, 2, 4)
    new = normal(*second.matrix(layer.weight).shape)
    before = first.matrix(layer.weight).clone()
    second.write(layer.weight.detach(), new)
    assert torch.equal(second.matrix(layer.weight), new)
    assert torch.equal(first.matrix(layer.weight), before)
    assert torch.equal(layer.weight[2:].flatten(1).T, new)


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
    result = sites(model)
    assert [(s.name, s.dimension, s.start, s.stop) for s in result.values()] == [
        ("0[0]", 18, 0, 3),
        ("0[1]", 18, 3, 6),
        ("2", 6, 0, 2),
    ]
    assert all(name == site.name for name, site in result.items())
    assert result["0[1]"].weight is model[0].weight
    assert torch.equal(result["0[1]"].matrix(model[0].weight), model[0].weight[3:].flatten(1))
    x = normal(2, 4, 5, 5)
    assert torch.equal(result["0[1]"].matrix_input(x), x[:, 2:])


def test_frozen_layers_are_left_out() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(3, 3), nn.Conv1d(3, 3, 1), nn.Linear(3, 2)))
    model[1].weight.requires_grad_(False)
    assert list(sites(model)) == ["0", "2"]
    model.requires_grad_(False)
    assert sites(model) == {}


def test_inputs_are_recorded_in_the_order_of_the_calls() -> None:
    layer = built(lambda: nn.Linear(3, 3))
    result = sites(nn.Sequential(layer))
    first, second = normal(2, 3, seed=1), normal(4, 3, seed=2)
    with tap(result.values()) as seen:
        layer(first)
        layer(input=second)
        assert torch.equal(torch.cat(seen[layer, 0]), torch.cat([first, second]))
        assert len(seen[layer, 0]) == 2
        seen.clear()
        layer(second)
    assert len(seen[layer, 0]) == 1
    assert not seen[layer, 0][0].requires_grad


def test_a_module_used_twice_is_one_site_with_two_inputs() -> None:
    shared = built(lambda: nn.Linear(3, 3))
    model = nn.Sequential(shared, nn.ReLU(), shared)
    result = sites(model)
    assert list(result) == ["0"]
    x = normal(2, 3)
    with tap(result.values()) as seen:
        model(x)
    assert torch.equal(seen[shared, 0][0], x)
    assert torch.equal(seen[shared, 0][1], shared(x).relu())


@pytest.mark.parametrize("where", ["before", "after"])
def test_operations_in_place_do_not_change_what_was_recorded(where: str) -> None:
    layer = built(lambda: nn.Linear(3, 3))
    result = sites(nn.Sequential(layer))
    x = normal(4, 3)
    expected = x.relu() if where == "before" else x.clone()
    with torch.no_grad(), tap(result.values()) as seen:
        if where == "before":
            x.relu_()
        nn.functional.relu_(layer(x))
        x.fill_(7)
    assert torch.equal(seen[layer, 0][0], expected)


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


def replaced_linear() -> nn.Module:
    layer = nn.Linear(3, 3)
    layer.forward = lambda input: nn.functional.linear(input, layer.weight) / 2
    return named(halved=layer)


def tied_attention() -> nn.Module:
    layer = nn.MultiheadAttention(4, 2, vdim=3)
    layer.k_proj_weight = layer.q_proj_weight
    return named(look=layer)


def named(**parts: nn.Module) -> nn.Module:
    """Return a model with these layers, and a Linear one beside them."""
    return nn.Sequential(nn.ModuleDict({"plain": nn.Linear(3, 3), **parts}))


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
    "linear layer with another forward": (
        replaced_linear,
        ["'0.halved'", "its forward is not that of nn.Linear"],
    ),
    "nothing to protect": (
        lambda: nn.Sequential(nn.ReLU()),
        ["no trainable Linear or convolution"],
    ),
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
        "transformer with positions first",
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


def test_values_by_layer_go_by_name_before_patterns() -> None:
    names = ["conv1[0]", "conv1[1]", "fc1", "fc2"]
    values = by_layer({"conv*": 1, "*": 2, "fc1": 3}, names)
    assert list(values.values()) == [1, 1, 3, 2]  # the first pattern, in the order given
    assert by_layer(5, names) == dict.fromkeys(names, 5)
    with pytest.raises(UserError, match="no value for layer 'fc2'"):
        by_layer({"conv1": 1, "fc1": 2}, names)
    with pytest.raises(UserError, match="'fc3' matches no layer"):
        by_layer({"fc3": 1, "*": 2}, names)
    with pytest.raises(UserError, match=r"'fc\*' matches no layer"):
        by_layer({"*": 2, "fc*": 1}, names)


def test_a_beginning_of_names_can_be_implied_and_keys_can_be_optional() -> None:
    names = ["a.conv1", "a.fc1", "b.fc1"]
    values = by_layer(
        {"conv1": 1, "fc1": 2, "b*": 3, "c*": 4}, names, implied="a.", optional=("c",)
    )
    assert list(values.values()) == [1, 2, 3]
    values = by_layer({"a.conv1": 1, "*": 2}, names, implied="a.")
    assert list(values.values()) == [1, 2, 2]
    with pytest.raises(UserError, match=r"'c\*' matches no layer"):
        by_layer({"*": 2, "c*": 4}, names, implied="a.")


class Columns(nn.Module):
    """A layer with two weights, one for each half of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Parameter(torch.randn(3, 4)) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, input: Tensor) -> Tensor:
        first, second = input.chunk(2, dim=1)
        return (first @ self.left.T).sin() + second @ self.right.T + self.bias


class ColumnsKind(LayerKind[Columns]):
    def matrices(self, layer: Columns) -> list[Matrix]:
        return [Matrix("[left]", "left", 0, 3), Matrix("[right]", "right", 0, 3)]

    def matrix_input(self, layer: Columns, number: int, x: Tensor) -> Tensor:
        return x.chunk(2, dim=1)[number]


@pytest.fixture
def columns_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("classgrad.core.layers._LAYERS", dict(layers._LAYERS))
    register_layer(Columns, ColumnsKind())


def columns() -> nn.Module:
    return nn.Sequential(Columns(), nn.Tanh(), nn.Linear(3, 4))


@pytest.mark.usefixtures("columns_known")
@pytest.mark.parametrize(
    "method", [GPM(energy=1.0), CGP(energy=1.0, eta=1, correct_only=False)], ids=repr
)
def test_a_kind_of_layer_that_is_registered_keeps_its_outputs_for_old_inputs(
    method: Projected,
) -> None:
    model = built(columns)
    guard = attach(model, method)
    assert [layer.name for layer in guard.layer_ranks()] == ["0[left]", "0[right]", "2"]
    old, new = normal(2, 8), normal(6, 8, seed=1)
    guard.end_task([(old, in_turn(2, 2))])
    answers, before = model(old).detach(), model[0].left.detach().clone()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        with guard.step(optimizer):
            nn.functional.cross_entropy(model(new), in_turn(6, 4)).backward()
            optimizer.step()
    assert (model(old) - answers).norm() < 1e-10 * answers.norm()
    assert (model[0].left - before).norm() > 1e-3


def test_a_kind_of_layer_that_is_not_registered_is_refused() -> None:
    with pytest.raises(UserError, match=r"'0\.left' of a Columns cannot be protected"):
        Projector(built(columns))


@pytest.mark.usefixtures("columns_known")
def test_a_subclass_goes_by_its_nearest_base_and_with_its_forward_only() -> None:
    class More(Columns):
        pass

    class Other(Columns):
        def forward(self, input: Tensor) -> Tensor:
            return -super().forward(input)

    assert list(sites(built(More))) == ["[left]", "[right]"]
    with pytest.raises(UserError, match=r"is not that of Columns; .*register_layer"):
        sites(built(Other))


def test_a_norm_of_another_class_is_welcome_once_it_is_registered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    model = built(lambda: named(norm=Scale()))
    with pytest.raises(UserError, match=r"'0\.norm\.scale' of a Scale"):
        Projector(model)
    monkeypatch.setattr("classgrad.core.layers._NORMS", list(layers._NORMS))
    register_norm(Scale)
    projector = Projector(model)
    assert projector.non_matrix_parameters(model.modules()) == ["0.plain.bias", "0.norm.scale"]
