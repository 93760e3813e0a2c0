"""Projection in a training loop of one's own."""

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import classgrad
from classgrad.errors import UserError
from classgrad.guard.attach import Guard, attach
from classgrad.methods import CGP, GPM, SGP, Finetune, Multitask, Projected
from classgrad.networks import TaskBatchNorm
from guard.untouched import BeforeGuarded
from oracles.models import built, in_turn, normal

EVERYTHING: dict[str, Callable[[], Projected]] = {
    "cgp": lambda: CGP(epsilon=1.0, eta=1.0, correct_only=False),
    "gpm": lambda: GPM(epsilon=1.0),
}
OPTIMISERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


def perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(30, 40),
        nn.LayerNorm(40),
        nn.ReLU(),
        nn.Linear(40, 40),
        nn.ReLU(),
        nn.Linear(40, 6),
    )


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (2, 15)),
        nn.Conv1d(2, 12, 5, stride=5),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, 40, bias=False),
        nn.Tanh(),
        nn.Linear(40, 6),
    )


class Heads(nn.Module):
    """A body for all tasks and a head for each."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(30, 40)
        self.heads = nn.ModuleList([nn.Linear(40, 2), nn.Linear(40, 2)])

    def forward(self, x: Tensor, number: int) -> Tensor:
        return self.heads[number](self.body(x).relu())


def task(number: int, count: int = 8) -> tuple[Tensor, Tensor]:
    """Two new classes of a few samples, in float32."""
    centres = normal(2, 30, seed=10 + number)
    y = in_turn(count, 2)
    x = centres[y] + 0.3 * normal(count, 30, seed=20 + number)
    return x.float(), y + 2 * number


def learn(
    model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard | None, number: int
) -> float:
    """Train on a task, with five lines of a guard if there is one; return the loss at the end."""
    x, y = task(number)
    for _ in range(40):
        loss = functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        if guard is None:
            loss.backward()
            optimizer.step()
        else:
            with guard.step(optimizer):
                loss.backward()
                optimizer.step()
    if guard is not None:
        guard.end_task([(x, y)])
    return loss.item()


@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("make", [perceptron, convolutional])
@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("method", EVERYTHING)
def test_a_second_task_is_learnt_and_the_outputs_for_the_first_stay(
    method: str, name: str, make: Callable[[], nn.Module], kept: bool
) -> None:
    model = built(make).float()
    guard = attach(model, EVERYTHING[method]())
    optimizer = OPTIMISERS[name](model.parameters())
    assert learn(model, optimizer, guard, 0) < 0.2
    old, new = task(0)[0], task(1)[0]
    answers, others = model(old).detach(), model(new).detach()
    if not kept:
        optimizer = OPTIMISERS[name](model.parameters())
    assert learn(model, optimizer, guard, 1) < 0.5
    moved = (model(new) - others).abs().max().item()
    assert moved > 0.5
    assert (model(old) - answers).abs().max().item() < 2e-5 * moved


@pytest.mark.parametrize("make", [perceptron, convolutional])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_without_the_guard_the_outputs_move(name: str, make: Callable[[], nn.Module]) -> None:
    model = built(make).float()
    optimizer = OPTIMISERS[name](model.parameters())
    learn(model, optimizer, None, 0)
    answers = model(task(0)[0]).detach()
    learn(model, optimizer, None, 1)
    assert (model(task(0)[0]) - answers).abs().max().item() > 0.3


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32 - 1),
    depth=st.integers(1, 3),
    name=st.sampled_from(sorted(OPTIMISERS)),
    method=st.sampled_from(sorted(EVERYTHING)),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_a_linear_net_keeps_its_outputs_for_stored_inputs(
    seed: int, depth: int, name: str, method: str, dtype: torch.dtype
) -> None:
    model = built(
        lambda: nn.Sequential(*[nn.Linear(10, 10, bias=False) for _ in range(depth)]), seed
    ).to(dtype)
    old, new = normal(4, 10, seed=seed).to(dtype), normal(6, 10, seed=seed + 1).to(dtype)
    guard = attach(model, EVERYTHING[method]())
    guard.end_task([(old, in_turn(4, 2))])
    before = [layer.weight.detach().clone() for layer in model]
    answers = model(old).detach()
    optimizer = OPTIMISERS[name](model.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        with guard.step(optimizer):
            functional.cross_entropy(model(new), in_turn(6, 3)).backward()
            optimizer.step()
    step = max((layer.weight - w).norm().item() for layer, w in zip(model, before, strict=True))
    assert step > 1e-3
    limit = 1e-5 if dtype == torch.float32 else 1e-12
    assert (model(old) - answers).norm().item() < limit * step * old.norm().item()


def test_before_the_first_task_ends_steps_are_those_without_a_guard() -> None:
    model, other = built(perceptron), built(perceptron)
    guard = attach(model, CGP())
    for each, own in ((model, guard), (other, None)):
        optimizer = torch.optim.Adam(each.parameters(), lr=0.01)
        x = task(0)[0].double()
        for _ in range(3):
            optimizer.zero_grad()
            with own.step(optimizer) if own else torch.enable_grad():
                each(x).sin().sum().backward()
                optimizer.step()
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )


def test_the_method_given_stays_a_description() -> None:
    method = CGP(epsilon=0.9)
    first, second = attach(built(perceptron), method), attach(built(perceptron), method)
    first.end_task([(normal(4, 30), in_turn(4, 2))])
    assert method.layer_ranks() == []
    assert (
        sum(layer.rank for layer in second.layer_ranks())
        == 0
        < sum(layer.rank for layer in first.layer_ranks())
    )
    assert method == CGP(epsilon=0.9)


def test_the_rank_of_every_layer_is_reported() -> None:
    guard = attach(built(perceptron), EVERYTHING["cgp"]())
    guard.end_task([(normal(5, 30), in_turn(5, 2))])
    assert [(r.name, r.dimension, r.rank) for r in guard.layer_ranks()] == [
        ("0", 30, 5),
        ("3", 40, 5),
        ("5", 40, 5),
    ]


def test_a_data_loader_is_iterated_as_often_as_needed() -> None:
    x, y = normal(10, 30), in_turn(10, 2)
    rng = torch.Generator().manual_seed(0)
    loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, generator=rng)
    guard = attach(built(perceptron), CGP(epsilon=1.0, eta=1.0))
    guard.end_task(loader, classes=[0, 1])
    assert guard.layer_ranks()[0].rank > 0


def test_forward_may_be_given_for_a_model_that_needs_more_than_inputs() -> None:
    model = built(Heads)
    guard = attach(model, EVERYTHING["cgp"]())
    x = normal(6, 30)
    answers = model(x, 0).detach()
    guard.end_task([(x, in_turn(6, 2))], forward=lambda x: model(x, 0))
    assert [layer.rank for layer in guard.layer_ranks()] == [6, 6, 0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before = model.heads[1].bias.detach().clone()
    for _ in range(3):
        optimizer.zero_grad()
        with guard.step(optimizer):
            functional.cross_entropy(model(normal(8, 30, seed=1), 1), in_turn(8, 2)).backward()
            optimizer.step()
    assert torch.allclose(model(x, 0), answers, rtol=0, atol=1e-10)
    assert not torch.equal(model.heads[1].bias, before)  # the second head was not in use


def test_what_an_earlier_task_froze_stays_frozen_after_later_ones() -> None:
    model = built(Heads)
    guard = attach(model, EVERYTHING["gpm"]())
    for number in range(2):
        x = normal(4, 30, seed=number)
        guard.end_task([(x, in_turn(4, 2))], forward=lambda x, own=number: model(x, own))
    before = [
        model.get_parameter(f"{name}.bias").clone() for name in ("body", "heads.0", "heads.1")
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guard.step(optimizer):
        x = normal(4, 30, seed=2)
        (model(x, 0) + model(x, 1)).sin().sum().backward()
        optimizer.step()
    after = [model.get_parameter(f"{name}.bias") for name in ("body", "heads.0", "heads.1")]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_loader_that_can_be_iterated_only_once_is_refused() -> None:
    guard = attach(built(perceptron), CGP())
    before = BeforeGuarded(guard)
    with pytest.raises(UserError, match="only once"):
        guard.end_task((normal(4, 30), in_turn(4, 2)) for _ in range(2))
    assert before.changed() == []


class Stream(IterableDataset):
    """Samples that can be read once, whoever asks for them."""

    def __init__(self, data: tuple[Tensor, Tensor]) -> None:
        self.left = list(zip(*data, strict=True))

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        while self.left:
            yield self.left.pop(0)


def test_a_stream_that_is_at_its_end_the_second_time_is_refused() -> None:
    """Without its samples, a class of which none is classified correctly would be left out."""
    x, y = normal(8, 30), in_turn(8, 2)
    model = built(perceptron)
    with torch.no_grad():
        model[5].bias[5] = 100  # no sample is classified correctly
    guard = attach(model, CGP())
    before = BeforeGuarded(guard)
    rng = torch.Generator()
    with pytest.raises(UserError, match="the samples of class 0 were not there when"):
        guard.end_task(DataLoader(Stream((x, y)), batch_size=4, generator=rng))
    with pytest.raises(UserError, match="int is no loader"):
        guard.end_task(3)  # type: ignore[arg-type]
    assert before.changed() == []
    guard.end_task(DataLoader(TensorDataset(x, y), batch_size=4, generator=rng))
    assert {held.label for held in guard.held()} == {0, 1}


@pytest.mark.parametrize("method", [Finetune(), Multitask()], ids=lambda m: m.name)
def test_a_method_that_does_not_project_is_refused_by_name(method: Finetune | Multitask) -> None:
    with pytest.raises(UserError, match=type(method).__name__):
        attach(built(perceptron), method)


def test_a_missing_class_is_refused_and_what_was_protected_stays_so() -> None:
    model = built(perceptron)
    guard = attach(model, EVERYTHING["cgp"]())
    x = normal(5, 30)
    guard.end_task([(x, in_turn(5, 2))], classes=[0, 1])
    before, answers = BeforeGuarded(guard), model(x).detach()
    with pytest.raises(UserError, match="class 2 "):
        guard.end_task([(normal(5, 30, seed=1), in_turn(5, 2))], classes=[0, 1, 2])
    with pytest.raises(UserError, match="no sample"):
        guard.end_task([])
    assert before.changed() == []
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with guard.step(optimizer):
        functional.cross_entropy(model(normal(5, 30, seed=2)), in_turn(5, 2)).backward()
        optimizer.step()
    assert torch.allclose(model(x), answers, rtol=0, atol=1e-10)


def test_a_detached_model_is_as_it_was() -> None:
    model = built(perceptron)
    guard = attach(model, EVERYTHING["cgp"]())
    guard.end_task([(normal(5, 30), in_turn(5, 2))])
    assert any("forward" in vars(module) for module in model.modules())
    guard.detach()
    assert not any("forward" in vars(module) for module in model.modules())
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(normal(5, 30)).sin().sum().backward()
    optimizer.step()
    assert not any(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("name", classgrad.__all__)
def test_a_public_name_means_the_same_every_time(name: str) -> None:
    first = getattr(classgrad, name)
    assert getattr(classgrad, name) is first


def test_the_functions_are_not_hidden_by_modules_of_their_names() -> None:
    for module in pkgutil.iter_modules(classgrad.__path__):
        if module.name not in ("__main__", "cli"):
            import_module(f"classgrad.{module.name}")
    assert classgrad.attach is attach
    assert callable(classgrad.run)


def test_a_model_has_one_guard_at_a_time() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    data = [(normal(9, 4), in_turn(9, 3))]
    first = attach(model, GPM())
    for _ in range(2):
        before = BeforeGuarded(first)
        with pytest.raises(UserError, match="has a guard already"):
            attach(model, GPM())
        assert before.changed() == []
        first.end_task(data)
    first.detach()
    second = attach(model, GPM())
    second.end_task(data)
    second.detach()
    assert not any("forward" in vars(module) for module in model.modules())


def test_after_detaching_nothing_is_projected() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 3, bias=False)))
    x = normal(9, 4)
    guard = attach(model, GPM(energy=1.0))
    guard.end_task([(x, in_turn(9, 3))])
    guard.detach()
    before = model(x).detach()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with guard.step(optimizer):
        model(x).square().sum().backward()
        optimizer.step()
    assert not torch.allclose(model(x), before)


def test_a_layer_unfrozen_after_attaching_is_refused_by_name() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    model[1].requires_grad_(False)
    guard = attach(model, GPM())
    model[1].requires_grad_(True)
    with pytest.raises(UserError, match="layer '1' was added, removed, replaced, frozen"):
        guard.end_task([(normal(9, 4), in_turn(9, 3))])


def test_a_layer_without_size_is_refused_by_name() -> None:
    model = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(UserError, match=r"layer '0' \(LazyLinear\) has no size yet"):
        attach(model, GPM())


def test_stored_statistics_of_an_old_task_stay() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 8), TaskBatchNorm(8, "stored"), nn.ReLU()))
    x = normal(12, 4)
    model.train()
    model(x)
    guard = attach(model, GPM())
    guard.end_task([(x, in_turn(12, 3))])
    guard.use_task(0)
    model.eval()
    before = model(x).detach()
    guard.use_task(1)
    model.train()
    model(5 + normal(12, 4, seed=3))
    model.eval()
    assert not torch.allclose(model(x), before)
    guard.use_task(0)
    assert torch.equal(model(x), before)


class Positions(nn.Module):
    """A table that is added, in a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.position_bias_table = nn.Parameter(torch.ones(3, 4))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.position_bias_table.mean(0)


def test_a_table_of_biases_is_learnt_with_the_first_task_and_frozen() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 4), Positions(), nn.Linear(4, 3)))
    guard = attach(model, GPM())
    guard.end_task([(normal(9, 4), in_turn(9, 3))])
    assert "1.position_bias_table" in guard.method.frozen


class Wrapper(torch.optim.Optimizer):
    """An optimiser that only passes steps on, as accelerate's does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_the_optimiser_inside_a_wrapper_is_watched() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, GPM(epsilon=1.0), Wrapper(optimizer))
    x = normal(2, 4)
    guard.end_task([(x, in_turn(2, 2))])
    before = model(x).detach()
    model(normal(5, 4, seed=1)).square().sum().backward()
    optimizer.step()
    assert torch.allclose(model(x), before)


@pytest.mark.parametrize("method", [GPM, CGP, SGP])
def test_a_channel_that_drowns_the_rest_is_set_apart(method: type[Projected]) -> None:
    x = normal(9, 4)
    x[:, 1] += 1000
    ranks = []
    for uncounted in (0, 1):
        guard = attach(built(lambda: nn.Linear(4, 3)), method(epsilon=0.99, uncounted=uncounted))
        guard.end_task([(x, in_turn(9, 1))])
        ranks.append(guard.layer_ranks()[0].rank)
    assert ranks[0] == 1
    assert ranks[1] > 2
