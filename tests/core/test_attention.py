"""nn.MultiheadAttention is protected like any other layer: alone, in a transformer, in a ViT."""

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.attention import AttentionKind
from classgrad.core.layers import sites, tap
from classgrad.core.projector import Projector
from classgrad.core.subspace import Subspace
from classgrad.errors import UserError
from classgrad.guard.attach import Guard, attach
from classgrad.methods import CGP, GPM, Projected
from classgrad.methods.penalty.sensitivity import per_sample_sums
from oracles.models import built, in_turn, normal
from oracles.projection import random_basis, without

METHODS: dict[str, Callable[[], Projected]] = {
    "cgp": lambda: CGP(epsilon=1.0, eta=1.0, correct_only=False),
    "gpm": lambda: GPM(epsilon=1.0),
}
OPTIMISERS: dict[str, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
PARTS = ["[query]", "[key]", "[value]", ".out_proj"]


@st.composite
def calls(draw: st.DrawFn) -> tuple[nn.MultiheadAttention, tuple[Tensor, ...], dict[str, Any]]:
    """Return a layer, queries, keys and values for it, and other arguments of a call."""
    heads, samples, length, others = draw(st.tuples(*[st.integers(1, 3)] * 4))
    width = 2 * heads
    itself, batched = draw(st.booleans()), draw(st.booleans())
    kdim, vdim = (width, width) if itself else draw(st.tuples(*[st.sampled_from([width, 5])] * 2))
    others = length if itself else others
    options = draw(
        st.fixed_dictionaries(
            {
                name: st.booleans()
                for name in ("batch_first", "bias", "add_bias_kv", "add_zero_attn")
            }
        )
    )
    layer = built(
        lambda: nn.MultiheadAttention(width, heads, kdim=kdim, vdim=vdim, **options),
        draw(st.integers(0, 99)),
    )
    layer.train(draw(st.booleans()))
    for number, parameter in enumerate(layer.parameters()):
        if parameter.dim() == 1:  # biases are zero at first
            parameter.data = normal(len(parameter), seed=number)

    def tensor(size: int, dim: int, seed: int) -> Tensor:
        shape = [samples, size] if layer.batch_first else [size, samples]
        return normal(*(shape if batched else [size]), dim, seed=seed)

    query = tensor(length, width, 1)
    inputs = (query,) * 3 if itself else (query, tensor(others, kdim, 2), tensor(others, vdim, 3))
    arguments: dict[str, Any] = {
        "need_weights": draw(st.booleans()),
        "average_attn_weights": draw(st.booleans()),
    }
    kind = draw(st.sampled_from(["bool", "float"]))
    if draw(st.booleans()):
        deep = draw(st.booleans())
        many = heads * (samples if batched else 1)
        arguments["attn_mask"] = mask(kind, *([many] if deep else []), length, others)
    if draw(st.booleans()):
        arguments["key_padding_mask"] = mask(kind, *([samples] if batched else []), others)
    return layer, inputs, arguments


def mask(kind: str, *shape: int) -> Tensor:
    """Return a mask that leaves the first key to everyone."""
    numbers = normal(*shape, seed=4)
    if kind == "float":
        return numbers
    hidden = numbers > 0
    hidden[..., 0] = False
    return hidden


@settings(deadline=None, max_examples=150)
@given(call=calls(), gradients=st.booleans())
def test_watching_a_layer_changes_nothing_that_comes_out(
    call: tuple[nn.MultiheadAttention, tuple[Tensor, ...], dict[str, Any]], gradients: bool
) -> None:
    layer, inputs, arguments = call
    with torch.set_grad_enabled(gradients):
        output, weights = layer(*inputs, **arguments)
        with AttentionKind().record_inputs(layer, lambda _number, _x: None):
            again, weights_again = layer(*inputs, **arguments)
    assert torch.allclose(again, output, rtol=0, atol=1e-13)
    assert (weights is None) == (weights_again is None) == (not arguments["need_weights"])
    assert weights is None or torch.allclose(weights_again, weights, rtol=0, atol=1e-13)
    assert "forward" not in vars(layer)
    if gradients:
        for a, b in zip(
            torch.autograd.grad(output.sin().sum(), list(layer.parameters())),
            torch.autograd.grad(again.sin().sum(), list(layer.parameters())),
            strict=True,
        ):
            assert torch.allclose(a, b, rtol=0, atol=1e-12)


def attended(rows: dict[str, Tensor], layer: nn.MultiheadAttention) -> Tensor:
    """Attention from its equations: one head after another, one sample after another."""
    result = sites(nn.ModuleDict({"look": layer}))
    width, biases = layer.head_dim, layer.in_proj_bias.chunk(3)
    query, key, value = (
        rows[part] @ result[f"look{part}"].matrix(result[f"look{part}"].weight).T + bias
        for part, bias in zip(PARTS, biases, strict=False)
    )
    heads = []
    for head in range(layer.num_heads):
        own = slice(head * width, (head + 1) * width)
        scores = query[:, own] @ key[:, own].T / math.sqrt(width)
        heads.append(scores.softmax(1) @ value[:, own])
    return torch.cat(heads, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("dims", [(6, 6), (5, 6), (6, 3), (4, 5)])
def test_every_matrix_of_an_attention_layer_is_seen_with_its_inputs(
    dims: tuple[int, int], batch_first: bool
) -> None:
    kdim, vdim = dims
    layer = built(lambda: nn.MultiheadAttention(6, 2, kdim=kdim, vdim=vdim, batch_first=True))
    layer.in_proj_bias.data, layer.out_proj.bias.data = normal(18), normal(6)
    result = sites(nn.ModuleDict({"look": layer}))
    assert list(result) == [f"look{part}" for part in PARTS]
    assert [site.dimension for site in result.values()] == [6, kdim, vdim, 6]
    given = normal(2, 3, 6), normal(2, 4, kdim, seed=1), normal(2, 4, vdim, seed=2)
    layer.batch_first = batch_first
    with torch.no_grad(), tap(result.values()) as seen:
        output, _ = layer(*(x if batch_first else x.transpose(0, 1) for x in given))
    output = output if batch_first else output.transpose(0, 1)
    for sample in range(2):
        rows = {
            part: result[f"look{part}"].rows(seen[result[f"look{part}"].source][0][sample])
            for part in PARTS
        }
        for part, x in zip(PARTS, given, strict=False):
            assert torch.equal(rows[part], x[sample])
        assert torch.allclose(rows[".out_proj"], attended(rows, layer), atol=1e-12)
        site = result["look.out_proj"]
        product = rows[".out_proj"] @ site.matrix(site.weight).T + layer.out_proj.bias
        assert torch.allclose(product, output[sample], atol=1e-12)


class Attending(nn.Module):
    """Looks at its tokens, or at others, and answers for each sample."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(8, 2, **{"batch_first": True, **options})
        self.head = nn.Linear(40, 4)

    def forward(self, x: Tensor) -> Tensor:
        query = x if self.look.batch_first else x.transpose(0, 1)
        key = query[..., : self.look.kdim]
        seen, _ = self.look(query, query if self.look.kdim == 8 else key, query)
        return self.head((seen if self.look.batch_first else seen.transpose(0, 1)).flatten(1))


@pytest.mark.parametrize("options", [{}, {"kdim": 6}, {"add_bias_kv": True}], ids=str)
def test_the_gradients_of_all_four_matrices_are_projected(options: dict[str, Any]) -> None:
    model = built(lambda: Attending(**options))
    plain = copy.deepcopy(model)
    projector = Projector(model)
    bases = {
        name: random_basis(site.dimension, 3, seed)
        for seed, (name, site) in enumerate(projector.sites.items())
    }
    projector.protect({name: Subspace(basis) for name, basis in bases.items()})
    projector.install()
    x = normal(3, 5, 8)
    for each in (model, plain):
        each(x).sin().sum().backward()
    projector.before_step(torch.optim.SGD(model.parameters(), lr=0.1))
    assert len(bases) == 5
    for (name, site), other in zip(projector.sites.items(), sites(plain).values(), strict=True):
        gradient = other.matrix(other.weight.grad)
        assert torch.allclose(site.matrix(site.weight.grad), without(gradient, bases[name]))
        assert not torch.allclose(site.matrix(site.weight.grad), gradient)


class Patches(nn.Module):
    """A small vision transformer: patches by a convolution, a class token, places, blocks."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, stride=4)
        self.token = nn.Parameter(0.1 * torch.randn(1, 1, 16))
        self.places = nn.Parameter(0.1 * torch.randn(1, 5, 16))
        self.looks = nn.ModuleList(
            [nn.MultiheadAttention(16, 2, dropout, batch_first=True) for _ in range(2)]
        )
        self.mixers = nn.ModuleList(
            [nn.Sequential(nn.Linear(16, 24), nn.GELU(), nn.Linear(24, 16)) for _ in range(2)]
        )
        self.norms = nn.ModuleList([nn.LayerNorm(16) for _ in range(4)])
        self.head = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        for number, (look, mixer) in enumerate(zip(self.looks, self.mixers, strict=True)):
            normed = self.norms[2 * number](tokens)
            tokens = tokens + look(normed, normed, normed, need_weights=False)[0]
            tokens = tokens + mixer(self.norms[2 * number + 1](tokens))
        return self.head(tokens[:, 0])


def vision(dropout: float = 0.0) -> Patches:
    """Return a vision transformer with its loose parameters frozen."""
    model = built(lambda: Patches(dropout))
    model.token.requires_grad_(False)
    model.places.requires_grad_(False)
    return model


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard | None, data: Any
) -> None:
    """Train on a batch, under a guard if there is one."""
    x, y = data
    for _ in range(8):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), y)
        if guard is None:
            loss.backward()
            optimizer.step()
            continue
        with guard.step(optimizer):
            loss.backward()
            optimizer.step()


def shift(
    model: nn.Module, old: Tensor, new: Tensor, method: str | None, optimiser: str = "sgd"
) -> float:
    """Learn two tasks; return how far the answers to the first moved in the second."""
    guard = attach(model, METHODS[method]()) if method else None
    optimizer = OPTIMISERS[optimiser](p for p in model.parameters() if p.requires_grad)
    learn(model, optimizer, guard, (old, in_turn(len(old), 2)))
    if guard:
        guard.end_task([(old, in_turn(len(old), 2))])
    model.eval()
    answers = model(old).detach()
    model.train()
    learn(model, optimizer, guard, (new, 2 + in_turn(len(new), 2)))
    model.eval()
    return (model(old) - answers).norm().item() / answers.norm().item()


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("method", METHODS)
def test_a_vision_transformer_keeps_its_outputs_for_the_first_task(
    method: str, optimiser: str
) -> None:
    old, new = normal(2, 1, 8, 8, seed=1), normal(4, 1, 8, 8, seed=2)
    model = vision()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert shift(model, old, new, method, optimiser) < 1e-6
    moved = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
    assert {"looks.0.in_proj_weight", "looks.1.out_proj.weight", "head.weight"} <= {*moved}
    assert shift(vision(), old, new, None, optimiser) > 0.01


@pytest.mark.parametrize("name", ["token", "places"])
def test_loose_parameters_of_a_vision_transformer_are_frozen_by_the_first_task(name: str) -> None:
    model = vision()
    model.get_parameter(name).requires_grad_(True)
    guard = attach(model, CGP(correct_only=False))
    assert name not in guard.method.frozen
    guard.end_task([(normal(4, 1, 8, 8), in_turn(4, 2))])
    assert name in guard.method.frozen


def test_loose_parameters_can_be_learnt_with_the_first_task_before_the_guard() -> None:
    old, new = normal(2, 1, 8, 8, seed=1), normal(4, 1, 8, 8, seed=2)
    model = built(Patches)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    start = model.token.detach().clone()
    learn(model, optimizer, None, (old, in_turn(2, 2)))
    assert not torch.equal(model.token, start)
    model.token.requires_grad_(False)
    model.places.requires_grad_(False)
    guard = attach(model, CGP(epsilon=1.0, eta=1.0, correct_only=False))
    guard.end_task([(old, in_turn(2, 2))])
    answers = model(old).detach()
    learn(model, optimizer, guard, (new, 2 + in_turn(4, 2)))
    assert (model(old) - answers).norm() < 1e-6 * answers.norm()


OPTIONS: list[dict[str, Any]] = [
    {},
    {"batch_first": False},
    {"bias": False},
    {"kdim": 6},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_any_attention_layer_keeps_its_outputs_for_the_first_task(options: dict[str, Any]) -> None:
    old, new = normal(1, 5, 8, seed=1), normal(5, 5, 8, seed=2)
    model = built(lambda: Attending(**options))
    assert shift(model, old, new, "gpm", "adamw") < 1e-6
    assert shift(built(lambda: Attending(**options)), old, new, None, "adamw") > 0.01


def test_non_matrix_parameters_stay_and_the_matrices_move() -> None:
    model = built(lambda: Attending(add_bias_kv=True))
    guard = attach(model, GPM(epsilon=0.9))
    guard.end_task([(normal(2, 5, 8), in_turn(2, 2))])
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    learn(model, optimizer, guard, (normal(4, 5, 8, seed=1), in_turn(4, 4)))
    kept = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
    beside = {"look.in_proj_bias", "look.bias_k", "look.bias_v", "look.out_proj.bias", "head.bias"}
    assert kept == beside


def test_the_bias_of_a_frozen_out_projection_stays() -> None:
    model = built(Attending)
    model.look.requires_grad_(False)
    model.look.out_proj.bias.requires_grad_(True)
    guard = attach(model, GPM())
    assert list(guard.method.projector.sites) == ["head"]
    guard.end_task([(normal(2, 5, 8), in_turn(2, 2))])
    before = model.look.out_proj.bias.detach().clone()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    learn(model, optimizer, guard, (normal(4, 5, 8, seed=1), in_turn(4, 4)))
    assert torch.equal(model.look.out_proj.bias, before)


def test_frozen_matrices_are_left_out_and_the_others_still_seen() -> None:
    model = built(Attending)
    model.look.in_proj_weight.requires_grad_(False)
    guard = attach(model, GPM(epsilon=1.0))
    guard.end_task([(normal(1, 5, 8), in_turn(1, 1))])
    assert [(layer.name, layer.rank) for layer in guard.layer_ranks()] == [
        ("look.out_proj", 5),
        ("head", 1),
    ]


def test_settings_by_name_hold_for_the_parts_of_an_attention_layer() -> None:
    guard = attach(built(Attending), GPM(energy={"look": 1.0, "look.out_proj": 0.5, "head": 0.7}))
    assert list(guard.method.thresholds().values()) == [1.0, 1.0, 1.0, 0.5, 0.7]


class Encoding(nn.Module):
    """A transformer of PyTorch's; the last token of every sample counts for nothing."""

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        ignored = torch.zeros(x.shape[:2], dtype=torch.bool)
        ignored[:, -1] = True
        return self.head(self.encoder(x, src_key_padding_mask=ignored)[:, 0])


def test_the_fused_path_of_a_transformer_hides_nothing() -> None:
    model = built(Encoding).eval()
    old, new = normal(1, 3, 8, seed=1), normal(5, 3, 8, seed=2)
    calls: list[nn.Module] = []
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.Linear, "forward", lambda layer, x: calls.append(layer) or x @ x.mT)
        model.encoder(old)
    assert not calls  # without a guard the fused path is taken, and calls no Linear layer
    assert shift(built(Encoding), old, new, "gpm", "adamw") < 1e-6
    assert shift(built(Encoding), old, new, None, "adamw") > 0.01
    guard = attach(model, GPM(epsilon=1.0))
    guard.end_task([(old, in_turn(1, 1))])
    assert all(layer.rank > 0 for layer in guard.layer_ranks())
    assert len(guard.layer_ranks()) == 13


@pytest.mark.parametrize("enabled", [True, False])
def test_the_fused_path_is_as_it_was_afterwards(enabled: bool) -> None:
    before = torch.backends.mha.get_fastpath_enabled()
    model = built(Attending)

    def fail() -> None:
        with tap(sites(model).values()):
            assert not torch.backends.mha.get_fastpath_enabled()
            model(normal(1, 2, 3))

    torch.backends.mha.set_fastpath_enabled(enabled)
    try:
        with pytest.raises(AssertionError, match="embedding dimension"):
            fail()
        assert "forward" not in vars(model.look)
        assert torch.backends.mha.get_fastpath_enabled() == enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@pytest.mark.parametrize("frozen", [[], ["look.in_proj_weight", "look.in_proj_bias"], ["look.out"]])
def test_gradients_per_sample_of_an_attention_layer_are_refused_by_name(frozen: list[str]) -> None:
    model = built(Attending)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not any(name.startswith(start) for start in frozen))
    with pytest.raises(UserError, match="layer 'look"):
        per_sample_sums(model, lambda: model(normal(2, 5, 8)).sum(1), torch.square)
