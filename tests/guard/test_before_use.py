"""With `project_every`, nobody sees weights with updates that are still to be projected."""

import copy
import io
import pickle
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from classgrad.guard.attach import Guard, attach
from guard.loops import everything, small, task, train
from oracles.models import built, in_turn, normal

LIMIT = 1e-5  # of a move, in float32
OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adam with decay": lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
}
LAYERS = ("0", "3", "4")


class Learnt:
    """A guarded model between two projections, and how far what is seen of it leaks."""

    def __init__(self, project_every: int, optimizer: str = "adamw", steps: int = 6) -> None:
        self.model = small()
        self.optimizer = OPTIMISERS[optimizer](self.model.parameters())
        self.guard = attach(self.model, everything(), self.optimizer, project_every=project_every)
        train(self.model, self.optimizer, 0)
        self.guard.end_task([task(0)])
        self.bases = {n: s.basis for n, s in self.guard.method.subspaces.items()}
        self.before = {n: self.live()[f"{n}.weight"].double().clone() for n in LAYERS}
        self.answers = self.model(task(0)[0]).detach()
        train(self.model, self.optimizer, 1, steps)

    def live(self) -> dict[str, Tensor]:
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def leak(self, weights: Mapping[str, Tensor]) -> float:
        """Return the largest share of a layer's move along protected directions."""
        moves = {
            n: weights[f"{n}.weight"].detach().double() - self.before[n]
            for n in LAYERS
            if f"{n}.weight" in weights
        }
        assert moves
        assert min(move.norm() for move in moves.values()) > 1e-3
        return max(float((m @ self.bases[n]).norm() / m.norm()) for n, m in moves.items())


def weights_in(buffer: bytes) -> dict[str, Tensor]:
    return dict(torch.load(io.BytesIO(buffer), weights_only=True))


def written(state: Mapping[str, Tensor]) -> bytes:
    buffer = io.BytesIO()
    torch.save(dict(state), buffer)
    return buffer.getvalue()


def compiled(model: nn.Module) -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.compile(model, backend="aot_eager")


def prefixed(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in state.items()}


# What is seen, as weights.
SEEN: dict[str, Callable[[Learnt], Mapping[str, Tensor]]] = {
    "state dict": lambda one: one.model.state_dict(),
    "state dict of a layer": lambda one: {
        f"3.{name}": value for name, value in one.model[3].state_dict().items()
    },
    "state dict of a compiled model": lambda one: prefixed(
        compiled(one.model).state_dict(), "_orig_mod."
    ),
    "state dict of a wrapped model": lambda one: prefixed(
        nn.DataParallel(one.model).state_dict(), "module."
    ),
    "file": lambda one: weights_in(written(one.model.state_dict())),
    "copy": lambda one: dict(copy.deepcopy(one.model).named_parameters()),
    "copy of a layer": lambda one: {"4.weight": copy.deepcopy(one.model[4]).weight},
    "pickle": lambda one: dict(pickle.loads(pickle.dumps(one.model)).named_parameters()),
}
# What may be done with the weights as they are afterwards.
DONE: dict[str, Callable[[Learnt, Path], object]] = {
    "project": lambda one, _: one.guard.project(),
    "end_task": lambda one, _: one.guard.end_task([task(1)]),
    "save": lambda one, folder: one.guard.save(folder / "guard"),
    "state of the guard": lambda one, _: one.guard.state_dict(),
    "report": lambda one, _: one.guard.report(),
    "detach": lambda one, _: one.guard.detach(),
    "load_state_dict": lambda one, _: one.model.load_state_dict({}, strict=False),
}


def evaluated(model: nn.Module, x: Tensor) -> Tensor:
    return model.eval()(x)


def without_gradients(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        return model(x)


def in_inference_mode(model: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model(x)


def layer_by_layer(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad():
        for layer in model:
            x = layer(x)
    return x


def by_a_compiled_model(model: nn.Module, x: Tensor) -> Tensor:
    return without_gradients(compiled(model), x)


def by_a_wrapped_model(model: nn.Module, x: Tensor) -> Tensor:
    return without_gradients(nn.DataParallel(model), x)


OUTPUTS = [
    evaluated,
    without_gradients,
    in_inference_mode,
    layer_by_layer,
    by_a_compiled_model,
    by_a_wrapped_model,
]


@pytest.fixture(params=[1, 4, 16])
def project_every(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.mark.parametrize("optimizer", OPTIMISERS)
@pytest.mark.parametrize("kind", SEEN)
def test_states_and_copies_do_not_leak(kind: str, optimizer: str, project_every: int) -> None:
    one = Learnt(project_every, optimizer)
    assert (one.leak(one.live()) > 1e-2) == (project_every > 1)  # there is something to project
    assert one.leak(SEEN[kind](one)) < LIMIT


@pytest.mark.parametrize("kind", DONE)
def test_calls_of_the_guard_leave_weights_that_do_not_leak(
    kind: str, project_every: int, tmp_path: Path
) -> None:
    one = Learnt(project_every)
    DONE[kind](one, tmp_path)
    assert one.leak(one.live()) < LIMIT


@pytest.mark.parametrize("outputs", OUTPUTS)
@pytest.mark.parametrize("optimizer", OPTIMISERS)
def test_outputs_for_the_first_task_stay(outputs, optimizer: str, project_every: int) -> None:
    one = Learnt(project_every, optimizer)
    x = task(0)[0]
    if project_every > 1:  # what a training step sees
        assert not torch.allclose(one.model(x), one.answers, atol=1e-2)
    assert torch.allclose(outputs(one.model, x), one.answers, atol=1e-5)
    one.model.train()
    train(one.model, one.optimizer, 1, 3)
    assert (one.leak(one.live()) > 1e-3) == (project_every > 1)  # and training goes on as before
    one.guard.project()
    assert one.leak(one.live()) < LIMIT


def test_a_window_is_as_long_as_asked_for() -> None:
    leaks = []
    for steps in range(4, 13):
        one = Learnt(4, steps=steps)
        leaks.append(one.leak(one.live()) > 1e-3)
    assert leaks == [False, True, True, True, False, True, True, True, False]


def test_a_model_can_be_evaluated_between_a_forward_pass_and_its_backward() -> None:
    one = Learnt(16)
    x, y = task(1)
    loss = nn.functional.cross_entropy(one.model(x), y)
    without_gradients(one.model, x)
    one.optimizer.zero_grad()
    loss.backward()
    one.optimizer.step()
    one.guard.project()
    assert one.leak(one.live()) < LIMIT


def test_under_autocast_weights_are_projected_in_their_own_precision() -> None:
    one = Learnt(16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        without_gradients(one.model, task(0)[0])
    assert one.leak(one.live()) < LIMIT


def test_a_copy_is_a_model_of_its_own() -> None:
    one = Learnt(16)
    train(one.model, one.optimizer, 1, 2)
    other = copy.deepcopy(one.model)
    train(one.model, one.optimizer, 1, 2)
    live = one.live()["3.weight"].clone()
    other.eval()(task(0)[0])
    copy.deepcopy(other).state_dict()
    assert torch.equal(live, one.live()["3.weight"])
    assert "__reduce_ex__" not in vars(other[3])


def test_detaching_leaves_nothing_behind() -> None:
    plain = small()
    one = Learnt(16)
    one.guard.detach()
    for layer, other in zip(one.model.modules(), plain.modules(), strict=True):
        assert vars(layer).keys() == vars(other).keys()
        assert not layer._forward_pre_hooks
        assert not layer._state_dict_pre_hooks
        assert not layer._load_state_dict_pre_hooks


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_an_encoder_that_leaves_padding_out() -> None:
    """In evaluation it makes nested tensors, which layers see as hooks of the guard are there."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 1)

        def forward(self, x: Tensor) -> Tensor:
            padding = torch.arange(4).expand(len(x), 4) > 2
            return self.encoder(x, src_key_padding_mask=padding)[:, 0]

    model = built(Model)
    guard = attach(model, everything(), project_every=16)
    x = normal(3, 4, 8)
    guard.end_task([(x, in_turn(3, 3))])
    expected = model.train()(x).detach()
    assert torch.allclose(without_gradients(model.eval(), x), expected, atol=1e-9)


def test_layers_whose_parts_are_used_without_being_called() -> None:
    """Attention reads the weight of its out_proj itself, and in evaluation calls no layer."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv1d(4, 8, 2, groups=2)
            self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
            self.rnn = nn.GRU(8, 6, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.rnn(self.block(self.conv(x).transpose(1, 2)))[0].mean(1)

    def attached() -> tuple[Model, torch.optim.Optimizer, Guard]:
        model = built(Model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        return model, optimizer, attach(model, everything(), optimizer, project_every=16)

    model, optimizer, guard = attached()
    x, y = normal(3, 4, 4), in_turn(3, 3)
    guard.end_task([(x, y)])
    answers = model(x).detach()
    for look in (lambda: model.eval()(x), lambda: without_gradients(model, x)):
        model.train()
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(normal(3, 4, 4, seed=1)), y).backward()
            optimizer.step()
        assert not torch.allclose(model(x), answers, atol=1e-4)
        assert torch.allclose(look(), answers, atol=1e-9)
