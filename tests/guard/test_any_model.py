"""Whatever a model is built of, with all energy protected it answers stored inputs as before."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.methods import CGP, GPM, Projected
from classgrad.networks import TaskBatchNorm
from oracles.models import built, in_turn, normal

METHODS: dict[str, Callable[[], Projected]] = {
    "cgp": lambda: CGP(epsilon=1.0, eta=1.0, correct_only=False),
    "gpm": lambda: GPM(epsilon=1.0),
}
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
}
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
RECURRENT = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}
CHANNELS = 8
SIZES = {1: 4, 2: 3, 3: 2}  # few places, so that layers keep some room
EPS = 0.1  # a norm divides what it gets by this root at least, so that it magnifies no rounding


class Residual(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


class Twice(nn.Module):
    """One layer with weights, used for its own output."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self.body(x).tanh())


class Attend(nn.Module):
    """Places of an image look at each other."""

    def __init__(self, heads: int, batch_first: bool, masked: bool) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(CHANNELS, heads, batch_first=batch_first)
        self.masked = masked

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        tokens = tokens if self.look.batch_first else tokens.transpose(0, 1)
        places = x[0, 0].numel()
        mask = torch.ones(places, places, dtype=torch.bool).triu(1) if self.masked else None
        seen, _ = self.look(tokens, tokens, tokens, attn_mask=mask)
        seen = seen if self.look.batch_first else seen.transpose(0, 1)
        return seen.transpose(1, 2).reshape(x.shape)


class Remember(nn.Module):
    """Places of an image are read one after another, from both ends."""

    def __init__(self, kind: str, layers: int, batch_first: bool) -> None:
        super().__init__()
        self.memory = RECURRENT[kind](
            CHANNELS, CHANNELS // 2, layers, batch_first=batch_first, bidirectional=True
        )

    def forward(self, x: Tensor) -> Tensor:
        places = x.flatten(2).transpose(1, 2)
        places = places if self.memory.batch_first else places.transpose(0, 1)
        seen, _ = self.memory(places)
        seen = seen if self.memory.batch_first else seen.transpose(0, 1)
        return seen.transpose(1, 2).reshape(x.shape)


class ByChannel(nn.Module):
    """LayerNorm, or a Linear layer, over the channels of an image."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.movedim(1, -1)).movedim(-1, 1)


def convolution(draw: st.DrawFn, axes: int) -> nn.Module:
    """Return a convolution of any geometry that fits any image."""
    each = st.tuples(*[st.integers(1, 2)] * axes)
    return CONVOLUTIONS[axes](
        CHANNELS,
        CHANNELS,
        draw(each),
        stride=draw(each),
        padding=draw(each),
        dilation=draw(each),
        groups=draw(st.sampled_from([1, 2, CHANNELS])),
        bias=draw(st.booleans()),
        padding_mode=draw(st.sampled_from(["zeros", "replicate"])),
    )


def keeping(draw: st.DrawFn, axes: int) -> nn.Module:
    """Return a layer with weights that keeps the shape of an image."""
    kind = draw(st.sampled_from(["convolution", "linear", "attention", "transposed", "recurrent"]))
    if kind == "linear":
        return ByChannel(nn.Linear(CHANNELS, CHANNELS, bias=draw(st.booleans())))
    if kind == "attention":
        heads = draw(st.sampled_from([1, 2]))
        return Attend(heads, draw(st.booleans()), draw(st.booleans()))
    if kind == "recurrent":
        memory = draw(st.sampled_from(sorted(RECURRENT)))
        return Remember(memory, draw(st.integers(1, 2)), draw(st.booleans()))
    groups = draw(st.sampled_from([1, 2, CHANNELS]))
    if kind == "transposed":
        return TRANSPOSED[axes](CHANNELS, CHANNELS, 3, padding=1, groups=groups)
    return CONVOLUTIONS[axes](CHANNELS, CHANNELS, 3, padding="same", groups=groups)


def block(draw: st.DrawFn, axes: int) -> nn.Module:
    """Return some layers with weights, perhaps a norm, perhaps an activation."""
    kind = draw(st.sampled_from(["residual", "twice", "any"]))
    if kind == "any":
        body = convolution(draw, axes)
    else:
        body = {"residual": Residual, "twice": Twice}[kind](keeping(draw, axes))
    norm = draw(st.sampled_from(["none", "layer", "group", "batch", "task"]))
    norms: dict[str, Callable[[], nn.Module]] = {
        "none": nn.Identity,
        "layer": lambda: ByChannel(nn.LayerNorm(CHANNELS, EPS)),
        "group": lambda: nn.GroupNorm(2, CHANNELS, EPS),
        "batch": lambda: (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[axes - 1](
            CHANNELS, EPS, track_running_stats=False
        ),
        "task": lambda: TaskBatchNorm(CHANNELS, eps=EPS),
    }
    act = draw(st.sampled_from([nn.Identity(), nn.Tanh(), nn.ReLU(), nn.ReLU(inplace=True)]))
    return nn.Sequential(body, norms[norm](), act)


@st.composite
def models(draw: st.DrawFn) -> tuple[Callable[[], nn.Module], tuple[int, ...]]:
    """Return a function that builds one model again and again, and the shape of its inputs."""
    axes, seed = draw(st.integers(1, 3)), draw(st.integers(0, 2**32 - 1))
    shape = (CHANNELS, *[SIZES[axes]] * axes)
    model = built(
        lambda: nn.Sequential(
            *[block(draw, axes) for _ in range(draw(st.integers(1, 3)))], nn.Flatten()
        ),
        seed,
    )
    with torch.no_grad():
        width = model(normal(2, *shape)).shape[1]
    model.append(built(lambda: nn.Linear(width, 4), seed))
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def make() -> nn.Module:
        model.load_state_dict(state)
        return model

    return make, shape


def shift(
    model: nn.Module, old: Tensor, new: Tensor, method: str | None, name: str
) -> tuple[float, float]:
    """Learn a second task; return how far the answers to the first one moved, and the others."""
    guard = attach(model, METHODS[method]()) if method else None
    if guard:
        guard.end_task([(old, in_turn(len(old), 2))])
    with torch.no_grad():
        before = model.eval()(old), model(new)
    optimizer = OPTIMISERS[name](model.train().parameters())
    for _ in range(3):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(new), 2 + in_turn(len(new), 2))
        if guard:
            with guard.step(optimizer):
                loss.backward()
                optimizer.step()
        else:
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        after = model.eval()(old), model(new)
    if guard:
        guard.detach()
    first, others = (
        (a - b).norm().item() / a.norm().item() for a, b in zip(before, after, strict=True)
    )
    return first, others


# The same cases every time: in float32 a rare model rounds to just above the limit.
@settings(deadline=None, max_examples=40, derandomize=True)
@given(
    model=models(),
    method=st.sampled_from(sorted(METHODS)),
    name=st.sampled_from(sorted(OPTIMISERS)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    count=st.integers(1, 3),
)
def test_a_model_of_any_layers_keeps_its_outputs_for_stored_inputs(
    model: tuple[Callable[[], nn.Module], tuple[int, ...]],
    method: str,
    name: str,
    dtype: torch.dtype,
    count: int,
) -> None:
    make, shape = model
    old, new = normal(count, *shape, seed=1).to(dtype), normal(3, *shape, seed=2).to(dtype)
    limit = 1e-4 if dtype == torch.float32 else 1e-6
    assert shift(make().to(dtype), old, new, method, name)[0] < limit
    assert min(shift(make().to(dtype), old, new, None, name)) > 10 * limit


class Bypassed(nn.Module):
    """Uses a layer without calling it."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first, self.second, self.spare = (nn.Linear(3, 3) for _ in range(3))
        self.norm = nn.LayerNorm(3)
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.way == "function":
            return functional.linear(x, self.second.weight)
        if self.way == "forward":
            return self.second.forward(x)
        if self.way == "both":
            return functional.linear(self.second(x), self.second.weight.T)
        if self.way == "norm":
            return self.second(functional.layer_norm(x, (3,), self.norm.weight))
        return self.second(x)


@pytest.mark.parametrize(
    ("way", "name"),
    [("function", "second.weight"), ("forward", "second.weight"), ("both", "second.weight")],
)
def test_a_parameter_used_without_a_call_of_its_layer_is_refused_by_name(
    way: str, name: str
) -> None:
    model = built(lambda: Bypassed(way))
    data = [(normal(4, 3), in_turn(4, 2))]
    guard = attach(model, GPM())
    with pytest.raises(UserError, match=f"parameter '{name}' is used without a call"):
        guard.end_task(data)
    guard.detach()
    model.second.requires_grad_(False)
    attach(model, GPM()).end_task(data)


class BesideAttention(nn.Module):
    """Calls an attention layer, and uses the weight of its out-projection once more."""

    def __init__(self) -> None:
        super().__init__()
        self.look = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(self.look(x, x, x)[0], self.look.out_proj.weight)[:, 0]


def test_a_matrix_inside_a_called_layer_that_is_used_again_is_refused_and_put_back() -> None:
    model = built(BesideAttention)
    weight = model.look.out_proj.weight
    guard = attach(model, GPM())
    with pytest.raises(UserError, match=r"parameter 'look\.out_proj\.weight' is used without"):
        guard.end_task([(normal(4, 3, 4), in_turn(4, 2))])
    assert model.look.out_proj.weight is weight


def test_a_scale_used_without_a_call_of_its_layer_is_frozen() -> None:
    model = built(lambda: Bypassed("norm"))
    guard = attach(model, GPM())
    guard.end_task([(normal(4, 3), in_turn(4, 2))])
    assert "norm.weight" in guard.method.frozen
    assert "norm.bias" not in guard.method.frozen


def test_a_layer_that_is_not_used_is_not_refused() -> None:
    guard = attach(built(lambda: Bypassed("call")), GPM(epsilon=1.0))
    guard.end_task([(normal(2, 3), in_turn(2, 2))])
    assert [(layer.name, layer.rank) for layer in guard.layer_ranks()] == [
        ("first", 2),
        ("second", 2),
        ("spare", 0),
    ]


def test_in_inference_mode_where_such_a_use_is_not_seen_a_task_cannot_end() -> None:
    guard = attach(built(lambda: Bypassed("function")), GPM())
    with torch.inference_mode(), pytest.raises(UserError, match="call end_task outside"):
        guard.end_task([(normal(4, 3), in_turn(4, 2))])
    assert not any(layer.rank for layer in guard.layer_ranks())


def test_a_layer_that_is_called_as_a_group_of_a_convolution_is_refused() -> None:
    def make() -> nn.Module:
        return nn.ModuleDict({"mix": nn.Conv1d(4, 4, 1, groups=2), "mix[0]": nn.Linear(4, 4)})

    with pytest.raises(UserError, match=r"two weight matrices have the name 'mix\[0\]'"):
        attach(built(make), GPM())
