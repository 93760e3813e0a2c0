"""Recurrent layers are protected by their inputs and their hidden states, step by step."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.layers import sites, tap
from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.methods import GPM
from classgrad.methods.penalty.sensitivity import per_sample_sums
from guard.loops import Moves
from oracles.models import built, in_turn, normal

KINDS: dict[str, Callable[..., nn.RNNBase]] = {
    "tanh": nn.RNN,
    "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
    "lstm": nn.LSTM,
    "gru": nn.GRU,
}
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.3),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
FEATURES, HIDDEN = 10, 12
# PyTorch says once that another implementation is used.
PROJECTED_WARNING = "ignore:LSTM with projections is not supported with oneDNN:UserWarning"


def next_state(
    kind: str, x: Tensor, h: Tensor, c: Tensor, weights: dict[str, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return h_t and c_t, from the equations of PyTorch's documentation."""
    by_input = x @ weights["ih"].T + weights["bias_ih"]
    by_state = h @ weights["hh"].T + weights["bias_hh"]
    if kind == "tanh":
        return (by_input + by_state).tanh(), c
    if kind == "relu":
        return (by_input + by_state).relu(), c
    if kind == "lstm":
        i, f, g, o = (by_input + by_state).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        return (h @ weights["hr"].T if "hr" in weights else h), c
    (r, z, n), (hr, hz, hn) = by_input.chunk(3, 1), by_state.chunk(3, 1)
    r, z = (r + hr).sigmoid(), (z + hz).sigmoid()
    n = (n + r * hn).tanh()
    return (1 - z) * n + z * h, c


def multiplied(
    kind: str, layer: nn.RNNBase, x: Tensor, first: Tensor, memory: Tensor
) -> dict[str, Tensor]:
    """Return what each matrix multiplies, (n x steps x d); x has samples first."""
    found = {}
    index = 0
    for number in range(layer.num_layers):
        outputs = []
        for end in ["", "_reverse"][: 1 + layer.bidirectional]:
            label = f"l{number}{end}"
            weights = {
                name.removeprefix("weight_").removesuffix(f"_{label}"): value
                for name, value in layer.named_parameters()
                if name.endswith(f"_{label}")
            }
            h, c = first[index], memory[index]
            index += 1
            order = range(x.shape[1])
            states, after = {}, {}
            for t in reversed(order) if end else order:
                states[t] = h
                h, c = next_state(kind, x[:, t], h, c, weights)
                after[t] = h
            found[f"[ih_{label}]"] = x
            found[f"[hh_{label}]"] = torch.stack([states[t] for t in order], 1)
            outputs.append(torch.stack([after[t] for t in order], 1))
        x = torch.cat(outputs, 2)
    return found


@pytest.mark.filterwarnings(PROJECTED_WARNING)
@settings(deadline=None, max_examples=40)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    layers=st.integers(1, 3),
    samples=st.integers(1, 3),
    steps=st.integers(1, 4),
    bidirectional=st.booleans(),
    batch_first=st.booleans(),
    given_states=st.booleans(),
    projected=st.booleans(),
    seed=st.integers(0, 99),
)
def test_what_is_recorded_is_what_the_matrices_multiply(
    kind: str,
    layers: int,
    samples: int,
    steps: int,
    bidirectional: bool,
    batch_first: bool,
    given_states: bool,
    projected: bool,
    seed: int,
) -> None:
    options = {"proj_size": 2} if projected and kind == "lstm" else {}
    layer = built(
        lambda: KINDS[kind](
            5, 3, layers, bidirectional=bidirectional, batch_first=batch_first, **options
        ),
        seed,
    )
    x = normal(samples, steps, 5, seed=seed)
    both = layers * (1 + bidirectional)
    first = normal(both, samples, options.get("proj_size", 3), seed=1) * given_states
    memory = normal(both, samples, 3, seed=2) * given_states
    states = (first, memory) if kind == "lstm" else first
    found = sites(nn.Sequential(layer))
    with tap(found.values()) as seen:
        arguments = {"hx": states} if given_states else {}
        layer(input=x if batch_first else x.transpose(0, 1), **arguments)
    expected = multiplied(kind, layer, x, first, memory)
    assert [name.removeprefix("0") for name in found] == list(expected)
    for name, site in found.items():
        (recorded,) = seen[site.source]
        assert torch.allclose(recorded, expected[name.removeprefix("0")], atol=1e-12), name


class Reader(nn.Module):
    """Reads a sequence and answers after its last step."""

    def __init__(self, kind: str, layers: int, batch_first: bool, **options: int) -> None:
        super().__init__()
        self.memory = KINDS[kind](
            FEATURES, HIDDEN, layers, batch_first=batch_first, bidirectional=True, **options
        )
        self.head = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        outputs, _ = self.memory(x if self.memory.batch_first else x.transpose(0, 1))
        outputs = outputs if self.memory.batch_first else outputs.transpose(0, 1)
        return self.head(outputs.mean(1))


def reader(kind: str, layers: int = 2, batch_first: bool = True, **options: int) -> Reader:
    def make() -> Reader:
        model = Reader(kind, layers, batch_first, **options)
        model(torch.zeros(1, 2, FEATURES))
        return model

    return built(make)


def learn(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> None:
    for _ in range(5):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("batch_first", [True, False])
def test_old_outputs_stay(kind: str, name: str, batch_first: bool, tmp_path: Path) -> None:
    old, new = normal(2, 3, FEATURES, seed=1), normal(6, 3, FEATURES, seed=2)
    moves = {}
    for guarded in (True, False):
        model = reader(kind, batch_first=batch_first)
        optimizer = OPTIMISERS[name](model.parameters())
        learn(model, optimizer, old, in_turn(2, 2))
        if guarded:
            guard = attach(model, GPM(epsilon=1.0), optimizer)
            guard.end_task([(old, in_turn(2, 2))])
            moved = Moves(guard)
        before = model(old).detach()
        learn(model, optimizer, new, 2 + in_turn(6, 2))
        moves[guarded] = float((model(old).detach() - before).norm() / before.norm())
        if guarded:
            assert moved.moved() > 1e-4
            guard.save(tmp_path / "guard.safetensors")
            guard.detach()
            attach(model, tmp_path / "guard.safetensors")
    assert moves[True] < 1e-9
    assert moves[False] > 1e-2


@pytest.mark.filterwarnings(PROJECTED_WARNING)
def test_the_matrix_of_a_projected_state_is_frozen() -> None:
    model = reader("lstm", proj_size=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, GPM(epsilon=1.0), optimizer)
    old = normal(2, 3, FEATURES, seed=1)
    guard.end_task([(old, in_turn(2, 2))])
    assert "memory.weight_hr_l0" in guard.method.frozen
    before = model(old).detach()
    learn(model, optimizer, normal(6, 3, FEATURES, seed=2), 2 + in_turn(6, 2))
    assert torch.allclose(model(old), before, atol=1e-10)


class Packed(nn.Module):
    def __init__(self, packs: bool) -> None:
        super().__init__()
        self.memory, self.packs = nn.GRU(FEATURES, 3), packs

    def forward(self, x: Tensor) -> Tensor:
        if self.packs:
            lengths = torch.full((len(x),), x.shape[1])
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
            return self.memory(x)[1][0]
        return self.memory(x[:, 0])[0]


@pytest.mark.parametrize("packs", [True, False])
def test_sequences_without_a_dimension_for_samples_are_refused(packs: bool) -> None:
    guard = attach(built(lambda: Packed(packs)), GPM())
    with pytest.raises(UserError, match="a GRU saw a packed sequence"):
        guard.end_task([(normal(4, 3, FEATURES), in_turn(4, 2))])


@pytest.mark.parametrize("make", [lambda: nn.GRU(3, 3), lambda: nn.ConvTranspose1d(3, 3, 2)])
def test_methods_that_need_gradients_by_sample_refuse_them(make: Callable[[], nn.Module]) -> None:
    model = built(lambda: nn.Sequential(make()))
    with pytest.raises(UserError, match=r"layer '0' .* cannot be computed"):
        per_sample_sums(model, lambda: model(normal(2, 3, 3)), torch.square)
