"""Steps stay out of protected subspaces, for every layer, loss and optimiser."""

import copy
import gc
import pickle
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from classgrad.core.layers import sites
from classgrad.core.projector import Projection, Projector
from classgrad.core.subspace import Subspace
from oracles.models import built, in_turn, normal
from oracles.projection import leak, random_basis, without

Loss = Callable[[nn.Module], Tensor]
EXACT = {torch.float64: 1e-10, torch.float32: 1e-5}


def guarded(
    model: nn.Module, share: float = 0.4, seed: int = 0, *, freeze: bool = False
) -> tuple[Projector, dict[str, Tensor]]:
    """Protect a random subspace of every layer, of this share of its dimension."""
    projector = Projector(model)
    bases = {
        name: random_basis(site.dimension, max(1, round(share * site.dimension)), seed + number)
        for number, (name, site) in enumerate(projector.sites.items())
    }
    frozen = projector.non_matrix_parameters(model.modules()) if freeze else []
    projector.protect({name: Subspace(basis) for name, basis in bases.items()}, frozen)
    projector.install()
    return projector, bases


def plain_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: site.matrix(site.weight).detach().clone() for name, site in sites(model).items()}


def leaks(model: nn.Module, before: dict[str, Tensor], bases: dict[str, Tensor]) -> list[float]:
    return [leak(after - before[name], bases[name]) for name, after in weights(model).items()]


def through_rows(output: Tensor) -> bool:
    """Tell whether a layer, the only one, takes its gradient through projected rows."""
    result, waiting = set(), [output.grad_fn]
    while waiting:
        step = waiting.pop()
        result.add(type(step).__name__)
        waiting += [before for before, _ in step.next_functions if before is not None]
    return "ProjectedRowsBackward" in result


def assert_gradients_are_projected(
    model: nn.Module, loss: Loss, share: float, dtype: torch.dtype = torch.float64
) -> None:
    """Compare every gradient with g - g S Sᵀ of the same model without a guard."""
    model.to(dtype)
    plain = copy.deepcopy(model)
    projector, bases = guarded(model, share)
    assert loss(model).item() == pytest.approx(loss(plain).item(), rel=1e-6)
    loss(plain).backward()
    loss(model).backward()
    projector.before_step(plain_sgd(model))
    for (name, site), other in zip(sites(model).items(), sites(plain).values(), strict=True):
        gradient = other.matrix(other.weight.grad)
        expected = without(gradient, bases[name])
        result = site.matrix(site.weight.grad)
        assert result.dtype == dtype
        size = gradient.norm().item()
        assert size > 0
        limit = 1e-12 if dtype == torch.float64 else 1e-5
        assert (result.double() - expected).norm().item() < limit * size
    # Everything else has the gradient it would have had.
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        if mine.dim() == 1:
            assert torch.allclose(mine.grad, other.grad, rtol=1e-5)


SHARES = [0.2, 0.5, 0.8, 1.0]


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(
    ("shape", "by_rows"),
    [((3, 10), True), ((40, 10), False), ((2, 3, 10), True), ((9, 5, 10), False)],
)
@pytest.mark.parametrize("bias", [True, False])
def test_the_gradient_of_a_linear_layer_is_projected(
    shape: tuple[int, ...], by_rows: bool, bias: bool, share: float, dtype: torch.dtype
) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(10, 12, bias=bias)))
    x = normal(*shape).to(dtype)
    assert_gradients_are_projected(model, lambda m: m(x).sin().sum(), share, dtype)
    assert through_rows(model(x)) == by_rows


@settings(deadline=None, max_examples=40)
@given(
    rows=st.integers(1, 12),
    inputs=st.integers(1, 9),
    outputs=st.integers(1, 9),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_gradient_of_a_linear_layer_is_projected_for_any_shape(
    rows: int, inputs: int, outputs: int, share: float, seed: int
) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(inputs, outputs)), seed)
    x = normal(rows, inputs, seed=seed)
    assert_gradients_are_projected(model, lambda m: m(x).sin().sum(), share)


CONVOLUTIONS = {
    "Conv1d": (lambda: nn.Conv1d(3, 4, 3, stride=2, padding=1), (2, 3, 9)),
    "Conv1d dilated": (lambda: nn.Conv1d(3, 4, 3, dilation=2, bias=False), (2, 3, 9)),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3), (2, 3, 6, 6)),
    "Conv2d uneven": (
        lambda: nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2)),
        (2, 3, 6, 7),
    ),
    "Conv2d in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2), (2, 4, 6, 6)),
    "Conv2d by channel": (lambda: nn.Conv2d(3, 6, 3, groups=3, bias=False), (2, 3, 6, 6)),
    "Conv2d same": (lambda: nn.Conv2d(3, 4, 3, padding="same"), (2, 3, 6, 6)),
    "Conv2d reflect": (
        lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"),
        (2, 3, 6, 6),
    ),
    "Conv2d circular": (
        lambda: nn.Conv2d(3, 4, 3, padding="same", padding_mode="circular"),
        (2, 3, 6, 6),
    ),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2, stride=(1, 2, 1), padding=1), (2, 2, 4, 4, 4)),
    "Conv3d in groups": (lambda: nn.Conv3d(2, 4, 2, groups=2), (2, 2, 4, 4, 4)),
}


@pytest.mark.parametrize("share", SHARES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", CONVOLUTIONS)
def test_the_gradient_of_a_convolution_is_projected(
    kind: str, dtype: torch.dtype, share: float
) -> None:
    make, shape = CONVOLUTIONS[kind]
    x = normal(*shape).to(dtype)
    model = built(lambda: nn.Sequential(make()))
    assert_gradients_are_projected(model, lambda m: m(x).sin().sum(), share, dtype)


@pytest.mark.parametrize(
    ("kind", "memory"),
    [
        ("Conv2d", torch.channels_last),
        ("Conv2d in groups", torch.channels_last),
        ("Conv3d", torch.channels_last_3d),
    ],
)
def test_weights_with_their_channels_last_are_projected_too(
    kind: str, memory: torch.memory_format
) -> None:
    make, shape = CONVOLUTIONS[kind]
    x = normal(*shape).to(memory_format=memory)
    model = built(lambda: nn.Sequential(make())).to(memory_format=memory)
    assert not model[0].weight.is_contiguous()
    assert_gradients_are_projected(model, lambda m: m(x).sin().sum(), 0.4)
    projector, bases = guarded(model)
    before = weights(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        with projector.step(optimizer):
            model(x).sin().sum().backward()
            optimizer.step()
    assert max(leaks(model, before, bases)) < 1e-10


@pytest.mark.parametrize(("rows", "width"), [(3, 3), (12, 12), (30, 20)])
def test_the_subspace_is_removed_once_and_where_that_is_cheaper(
    rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the rows of the input if they are fewer than the outputs, else from the gradient."""
    freed = []
    remove = Projection.project

    def spy(projection: Projection, matrix: Tensor) -> Tensor:
        freed.append(len(matrix))
        return remove(projection, matrix)

    monkeypatch.setattr(Projection, "project", spy)
    model = built(lambda: nn.Sequential(nn.Linear(8, 20)))
    projector, _ = guarded(model)
    model(normal(rows, 8)).sin().sum().backward()
    projector.before_step(plain_sgd(model))
    assert freed == [width]


@pytest.mark.parametrize("sizes", [(2, 3), (2, 30), (30, 2), (30, 40)])
@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_layer_called_several_times_in_one_loss_is_projected(
    sizes: tuple[int, int], share: float
) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(8, 8)))
    first, second = normal(sizes[0], 8, seed=1), normal(sizes[1], 8, seed=2)
    assert_gradients_are_projected(
        model, lambda m: m(m(first)).sin().sum() + m(second).cos().sum(), share
    )


@pytest.mark.parametrize("rows", [3, 30])
@pytest.mark.parametrize("weight", [10.0, 1e-2, 1e-4, 1e-6, 1e-8])
def test_a_term_of_the_loss_on_the_weights_does_not_leak(rows: int, weight: float) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 40)))
    x, y = normal(rows, 8), in_turn(rows, 5)

    def loss(m: nn.Module) -> Tensor:
        penalty = sum(p.square().sum() for p in m.parameters())
        return functional.cross_entropy(m(x), y) + weight * penalty

    assert_gradients_are_projected(copy.deepcopy(model), loss, 0.4)
    projector, bases = guarded(model)
    before, optimizer = weights(model), plain_sgd(model)
    for _ in range(5):
        optimizer.zero_grad()
        with projector.step(optimizer):
            loss(model).backward()
            optimizer.step()
    assert max(leaks(model, before, bases)) < 1e-10


def test_a_gradient_of_a_gradient_does_not_leak() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(8, 12), nn.Tanh(), nn.Linear(12, 12)))
    x = normal(3, 8)

    def loss(m: nn.Module) -> Tensor:
        at = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(m(at).sin().sum(), at, create_graph=True)
        return slope.square().sum()

    projector, bases = guarded(model)
    before, optimizer = weights(model), plain_sgd(model)
    with projector.step(optimizer):
        loss(model).backward()
        optimizer.step()
    assert max(leaks(model, before, bases)) < 1e-10


@pytest.mark.parametrize("rows", [3, 30])
def test_accumulated_gradients_are_projected_as_one(rows: int) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(8, 12)))
    plain = copy.deepcopy(model)
    projector, bases = guarded(model)
    for part in range(3):
        x = normal(rows, 8, seed=part)
        for each in (model, plain):
            each(x).sin().sum().backward()
    projector.before_step(plain_sgd(model))
    expected = without(plain[0].weight.grad, bases["0"])
    assert torch.allclose(model[0].weight.grad, expected, atol=1e-12)


def test_inputs_almost_inside_the_subspace_leak_no_more_than_others() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(40, 50))).float()
    projector, bases = guarded(model, 0.4)
    inside = normal(8, 16) @ bases["0"].T
    x = (inside + 1e-4 * normal(8, 40, seed=1)).float()
    before, optimizer = weights(model), torch.optim.SGD(model.parameters(), lr=1e4)
    with projector.step(optimizer):
        model(x).sin().sum().backward()
        optimizer.step()
    assert through_rows(model(x))
    assert max(leaks(model, before, bases)) < 1e-5


@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("rows", [6, 60])
def test_a_step_with_bfloat16_autocast_leaks_little(rows: int, where: str) -> None:
    model = built(lambda: nn.Sequential(nn.Linear(32, 48), nn.Tanh(), nn.Linear(48, 48))).float()
    x, y = normal(rows, 32).float(), in_turn(rows, 5)
    plain = copy.deepcopy(model)
    projector, bases = guarded(model, 0.3)
    before, optimizer = weights(model), plain_sgd(model)
    with projector.step(optimizer), torch.autocast("cpu", torch.bfloat16):
        loss = functional.cross_entropy(model(x), y)
        if where == "inside":
            loss.backward()
            optimizer.step()
        else:
            with torch.autocast("cpu", enabled=False):
                loss.backward()
                optimizer.step()
    functional.cross_entropy(plain(x), y).backward()
    for name, after in weights(model).items():
        expected = -0.1 * without(plain.get_submodule(name).weight.grad, bases[name])
        assert (after - before[name] - expected).norm() < 0.03 * expected.norm()
    assert max(leaks(model, before, bases)) < 1e-5


@pytest.mark.parametrize("shape", [(3, 8), (2, 2, 8), (1, 2, 2, 8)])
@pytest.mark.parametrize("bias", [True, False])
def test_an_operation_in_place_may_follow_a_guarded_layer(
    shape: tuple[int, ...], bias: bool
) -> None:
    model = built(
        lambda: nn.Sequential(nn.Linear(8, 12, bias=bias), nn.ReLU(inplace=True), nn.Linear(12, 12))
    )
    x = normal(*shape)
    assert_gradients_are_projected(model, lambda m: m(x).sin().sum(), 0.4)


def mixed() -> nn.Module:
    """Return a model with a convolution, a norm, Linear layers on both paths, and biases."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3),
        nn.GroupNorm(2, 6),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 20),
        nn.Tanh(),
        nn.Linear(20, 3),
    )


Parameters = Iterable[nn.Parameter]
OPTIMISERS: dict[str, Callable[[Parameters], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "dampened": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.3),
    "weight decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
FREE = {"sgd", "momentum", "nesterov", "dampened"}  # free gradients give free updates


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    context: Callable[[torch.optim.Optimizer], Any] | None,
    steps: int = 5,
    seed: int = 0,
) -> None:
    dtype = next(model.parameters()).dtype
    for number in range(steps):
        x = normal(10, 2, 4, 4, seed=100 * seed + number).to(dtype)
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(x), in_turn(10, 3))
        if context is None:
            loss.backward()
            optimizer.step()
        else:
            with context(optimizer):
                loss.backward()
                optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_no_step_of_an_optimiser_enters_the_subspaces(
    name: str, share: float, dtype: torch.dtype
) -> None:
    model = built(mixed).to(dtype)
    projector, bases = guarded(model, share, freeze=True)
    beside = {n: p.detach().clone() for n, p in model.named_parameters() if p.dim() == 1}
    before, optimizer = weights(model), OPTIMISERS[name](model.parameters())
    train(model, optimizer, projector.step)
    assert max(leaks(model, before, bases)) < EXACT[dtype]
    assert min(float((w - before[n]).norm()) for n, w in weights(model).items()) > 1e-3
    assert len(beside) == 5
    assert all(torch.equal(value, model.get_parameter(n)) for n, value in beside.items())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_an_optimiser_kept_from_before_stays_out_as_well(name: str, dtype: torch.dtype) -> None:
    model = built(mixed).to(dtype)
    optimizer = OPTIMISERS[name](model.parameters())
    train(model, optimizer, None)
    for seed in (1, 2):  # the subspaces of the second round are others than those of the first
        projector, bases = guarded(model, 0.3, seed, freeze=True)
        beside = {n: p.detach().clone() for n, p in model.named_parameters() if p.dim() == 1}
        before = weights(model)
        train(model, optimizer, projector.step, seed=seed)
        assert max(leaks(model, before, bases)) < EXACT[dtype]
        assert all(torch.equal(value, model.get_parameter(n)) for n, value in beside.items())
        projector.remove()


def test_momentum_from_before_the_subspace_grew_stays_out_of_what_it_gained() -> None:
    model = built(mixed)
    projector, bases = guarded(model, 0.2)
    optimizer = OPTIMISERS["momentum"](model.parameters())
    train(model, optimizer, projector.step)
    grown = {
        name: Subspace(basis).extended(random_basis(len(basis), max(1, len(basis) // 5), 50))
        for name, basis in bases.items()
    }
    projector.protect(grown)
    projector.install()
    before = weights(model)
    train(model, optimizer, projector.step)
    assert max(leaks(model, before, {n: s.basis for n, s in grown.items()})) < 1e-10


def test_momentum_loaded_from_an_earlier_state_stays_out_as_well() -> None:
    model = built(mixed)
    optimizer = OPTIMISERS["momentum"](model.parameters())
    train(model, optimizer, None)
    earlier = copy.deepcopy(optimizer.state_dict())
    projector, bases = guarded(model, 0.3)
    optimizer = OPTIMISERS["momentum"](model.parameters())
    train(model, optimizer, projector.step, steps=1)
    optimizer.load_state_dict(earlier)
    before = weights(model)
    train(model, optimizer, projector.step)
    assert max(leaks(model, before, bases)) < 1e-10


def test_momentum_loaded_into_an_optimiser_of_this_task_needs_no_projection_of_updates() -> None:
    model = built(mixed)
    projector, _ = guarded(model, 0.3)
    optimizer = OPTIMISERS["momentum"](model.parameters())
    train(model, optimizer, projector.step)
    again = OPTIMISERS["momentum"](model.parameters())
    again.load_state_dict(optimizer.state_dict())
    assert updates_projected(projector, again, fresh=False)
    assert not updates_projected(projector, again, fresh=True)
    assert updates_projected(projector, OPTIMISERS["adam"](model.parameters()), fresh=True)


def updates_projected(
    projector: Projector, optimizer: torch.optim.Optimizer, *, fresh: bool = False
) -> bool:
    """Tell whether a projector projects what an optimiser does, beside its gradients."""
    stepped = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    weight = next(site.weight for site in projector.sites.values() if site.weight in stepped)
    projector.before_step(optimizer, fresh=fresh)
    with torch.no_grad():
        weight += 1  # far into the subspace
    moved = weight.detach().clone()
    projector.after_step()
    with torch.no_grad():
        projected = not torch.equal(weight, moved)
        weight -= 1
    return projected


def test_optimisers_of_different_parts_are_trusted_side_by_side() -> None:
    model = built(mixed)
    projector, _ = guarded(model, 0.3)
    parts = [OPTIMISERS["momentum"](model[place].parameters()) for place in (0, 4)]
    for _ in range(2):
        for optimizer in parts:
            assert not updates_projected(projector, optimizer)
            train(model, optimizer, projector.step, steps=1)
    projector.protect({})
    projector, _ = guarded(model, 0.3)
    assert all(updates_projected(projector, optimizer) for optimizer in parts)


def test_an_optimiser_that_another_one_replaces_is_not_kept() -> None:
    model = built(mixed)
    projector, _ = guarded(model, 0.3)
    first = OPTIMISERS["momentum"](model.parameters())
    train(model, first, projector.step, steps=1)
    gone = weakref.ref(first)
    second = OPTIMISERS["momentum"](model.parameters())
    train(model, second, projector.step, steps=1)
    del first
    gc.collect()
    assert gone() is None


@pytest.mark.parametrize("name", OPTIMISERS)
def test_without_a_guard_every_optimiser_leaks(name: str) -> None:
    model = built(mixed)
    projector, bases = guarded(model, 0.3)
    projector.remove()
    before = weights(model)
    train(model, OPTIMISERS[name](model.parameters()), None)
    assert min(leaks(model, before, bases)) > 0.05


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_free_gradients_alone_suffice_for_new_sgd_only(name: str, kept: bool) -> None:
    """Show that the guard of the update is needed, and where it is not."""
    model = built(mixed)
    optimizer = OPTIMISERS[name](model.parameters())
    if kept:
        train(model, optimizer, None)
    projector, bases = guarded(model, 0.3)
    before = weights(model)
    for number in range(5):
        optimizer.zero_grad()
        x = normal(10, 2, 4, 4, seed=number)
        functional.cross_entropy(model(x), in_turn(10, 3)).backward()
        projector.before_step(optimizer)
        optimizer.step()
    free = name == "sgd" or (name in FREE and not kept)
    assert (max(leaks(model, before, bases)) < 1e-10) == free
    if not free:
        assert min(leaks(model, before, bases)) > 1e-3


def test_a_full_layer_does_not_move_and_an_empty_one_moves_freely() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(6, 8, bias=False), nn.Linear(8, 8, bias=False)))
    plain, before = copy.deepcopy(model), model[0].weight.detach().clone()
    projector = Projector(model)
    projector.protect({"0": Subspace(random_basis(6, 6)), "1": Subspace.empty(8)})
    projector.install()
    x = normal(4, 6)
    for each in (model, plain):
        optimizer = plain_sgd(each)
        with projector.step(optimizer) if each is model else torch.enable_grad():
            each(x).sin().sum().backward()
            optimizer.step()
    assert torch.allclose(model[0].weight, before, rtol=0, atol=1e-14)
    assert torch.equal(model[1].weight, plain[1].weight)


def test_layers_out_of_the_loss_and_other_optimisers_are_left_alone() -> None:
    model = built(lambda: nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(4, 6)}))
    projector, bases = guarded(model)
    before = weights(model)
    optimizer = torch.optim.AdamW(model["a"].parameters(), lr=0.1)
    with projector.step(optimizer):
        model["a"](normal(3, 4)).sin().sum().backward()
        optimizer.step()
    assert leak(model["a"].weight - before["a"], bases["a"]) < 1e-10
    assert torch.equal(model["b"].weight, before["b"])


@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_state_of_an_optimiser_for_a_part_of_the_model_can_be_saved(name: str) -> None:
    model = built(lambda: nn.ModuleDict({"a": nn.Linear(4, 6), "b": nn.Linear(4, 6)}))
    projector, _ = guarded(model)
    optimizer = OPTIMISERS[name](model["a"].parameters())
    with projector.step(optimizer):
        model["a"](normal(3, 4)).sin().sum().backward()
        optimizer.step()
    assert set(optimizer.state_dict()["state"]) <= {0, 1}


@pytest.mark.parametrize("scheduled", [False, True])
@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("name", ["sgd", "momentum", "adam", "lbfgs"])
def test_a_step_with_a_closure_stays_out_of_the_subspaces(
    name: str, by_name: bool, scheduled: bool
) -> None:
    model = built(mixed)
    projector, bases = guarded(model, 0.3, freeze=True)
    beside = {n: p.detach().clone() for n, p in model.named_parameters() if p.dim() == 1}
    make = {**OPTIMISERS, "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3)}[name]
    before, optimizer = weights(model), make(model.parameters())
    if scheduled:  # a scheduler wraps `step`
        torch.optim.lr_scheduler.ConstantLR(optimizer)
    losses = []

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(normal(10, 2, 4, 4)), in_turn(10, 3))
        loss.backward()
        losses.append(loss.item())
        return loss

    for _ in range(3):
        with projector.step(optimizer):
            result = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
        assert result.item() in losses
    assert losses[-1] < losses[0]
    assert max(leaks(model, before, bases)) < 1e-10
    assert all(torch.equal(value, model.get_parameter(n)) for n, value in beside.items())


def hooks_of(optimizer: torch.optim.Optimizer) -> int:
    return len(optimizer._optimizer_step_pre_hooks) + len(optimizer._optimizer_step_post_hooks)


def patched(model: nn.Module) -> list[str]:
    return [name for name, module in model.named_modules() if "forward" in vars(module)]


def test_hooks_and_patches_are_gone_when_they_should_be() -> None:
    model = built(mixed)
    projector, _ = guarded(model)
    optimizer = plain_sgd(model)
    assert patched(model) == ["4", "6"]
    with projector.step(optimizer):
        assert hooks_of(optimizer) == 2
    assert hooks_of(optimizer) == 0

    def fail() -> None:
        with projector.step(optimizer):
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert hooks_of(optimizer) == 0
    projector.remove()
    assert patched(model) == []
    projector.remove()
    projector.install()
    projector.install()
    assert patched(model) == ["4", "6"]
    projector.protect({})
    assert patched(model) == []


def test_a_step_that_fails_half_way_has_no_effect_on_later_ones() -> None:
    class Failing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            raise ArithmeticError

    model = built(lambda: nn.Sequential(nn.Linear(4, 6)))
    projector, _ = guarded(model)

    def step(optimizer: torch.optim.Optimizer) -> None:
        with projector.step(optimizer):
            model(normal(3, 4)).sin().sum().backward()
            optimizer.step()

    with pytest.raises(ArithmeticError):
        step(Failing(model.parameters(), lr=0.1))
    restored = normal(6, 4, seed=9)  # a checkpoint, say
    with torch.no_grad():
        model[0].weight.copy_(restored)
    step(torch.optim.SGD(model.parameters(), lr=0.0))
    assert torch.equal(model[0].weight, restored)


def test_a_copy_of_a_guarded_model_is_a_model_of_its_own() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(4, 6)))
    guarded(model)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    assert not other(normal(3, 4)).any()
    assert model(normal(3, 4)).all()
    assert pickle.loads(pickle.dumps(model))(normal(3, 4)).all()


def test_a_guarded_model_can_change_its_precision() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(8, 12))).float()
    projector, bases = guarded(model)
    model.double()
    before, optimizer = weights(model), plain_sgd(model)
    with projector.step(optimizer):
        model(normal(3, 8)).sin().sum().backward()
        optimizer.step()
    assert max(leaks(model, before, bases)) < 1e-6


def test_a_guarded_model_predicts_the_same_with_and_without_gradients() -> None:
    model = built(mixed)
    x = normal(5, 2, 4, 4)
    expected = model(x)
    guarded(model)
    assert torch.allclose(model(x), expected, rtol=0, atol=1e-14)
    with torch.no_grad():
        assert torch.allclose(model(x), expected, rtol=0, atol=1e-14)


def test_non_matrix_parameters_are_named_for_the_layers_in_use() -> None:
    model = built(mixed)
    projector = Projector(model)
    assert projector.non_matrix_parameters(model.modules()) == [
        "0.bias",
        "1.weight",
        "1.bias",
        "4.bias",
        "6.bias",
    ]
    assert projector.non_matrix_parameters([model[4]]) == ["4.bias"]
    assert Projector(model[4]).non_matrix_parameters([model[4]]) == ["bias"]


@pytest.mark.parametrize(("rank", "inside"), [(1, True), (3, True), (4, False), (7, False)])
def test_the_narrower_of_basis_and_complement_is_used(rank: int, inside: bool) -> None:
    basis = random_basis(7, rank)
    projection = Projection(Subspace(basis), normal(1))
    assert projection.basis.shape == (7, min(rank, 7 - rank))
    assert projection.inside == inside
    matrix = normal(5, 7)
    assert torch.allclose(projection.project(matrix), without(matrix, basis), atol=1e-13)
    assert projection.leaks(matrix, matrix)
    outside = without(matrix, basis) if rank < 7 else 0 * matrix
    assert not projection.leaks(outside, outside)


GRADIENT_EDITS: dict[str, Callable[[nn.Parameter], None]] = {
    "added to": lambda w: w.grad.add_(w.detach()),
    "one row": lambda w: w.grad[70].add_(1),
    "replaced": lambda w: setattr(w, "grad", torch.ones_like(w)),
    "unseen by PyTorch": lambda w: w.grad.data.add_(w.data),
}


@pytest.mark.parametrize("kind", [*GRADIENT_EDITS, "nothing"])
def test_a_gradient_from_projected_rows_that_was_edited_is_projected_again(kind: str) -> None:
    """Of an edited gradient all rows are probed; of one that PyTorch saw no edit of, 32."""
    model = built(lambda: nn.Sequential(nn.Linear(20, 100, bias=False)))
    projector, bases = guarded(model)
    optimizer, before = plain_sgd(model), weights(model)
    for _ in range(3):
        optimizer.zero_grad()
        output = model(normal(4, 20))
        assert through_rows(output)
        output.square().sum().backward()
        if kind != "nothing":
            GRADIENT_EDITS[kind](model[0].weight)
        with projector.step(optimizer):
            optimizer.step()
    assert max(leaks(model, before, bases)) < 1e-10


def test_an_unseen_edit_of_one_row_of_a_gradient_is_found_in_turn() -> None:
    model = built(lambda: nn.Sequential(nn.Linear(20, 100, bias=False)))
    projector, bases = guarded(model)
    found = []
    for _ in range(8):
        model.zero_grad()
        model(normal(4, 20)).square().sum().backward()
        gradient = model[0].weight.grad
        gradient.data[70] += 1
        projector.project_gradients()
        found.append(bool((gradient @ bases["0"]).norm() < 1e-10))
    assert found == 2 * [False, False, True, False]  # rows 64 to 95 of 100


@pytest.mark.parametrize("begins", [0, 5])
def test_which_rows_of_a_gradient_are_probed_follows_from_the_number_of_the_step(
    begins: int,
) -> None:
    """Not from how many steps came before: those of a task that is resumed are not repeated."""
    model = built(lambda: nn.Sequential(nn.Linear(20, 100, bias=False)))
    projector, bases = guarded(model)
    optimizer, found = plain_sgd(model), {}
    for number in range(begins, 8):
        optimizer.zero_grad()
        projector.begin_step(optimizer, number=number)
        model(normal(4, 20)).square().sum().backward()
        gradient = model[0].weight.grad
        gradient.data[70] += 1
        projector.before_step(optimizer)
        found[number] = bool((gradient @ bases["0"]).norm() < 1e-10)
    assert found == {number: number in (2, 6) for number in range(begins, 8)}  # rows 64 to 95


def test_a_frozen_parameter_that_does_not_exist_is_a_lookup_error() -> None:
    """What damage of a saved state looks like, so that it is reported as damage."""
    projector = Projector(built(lambda: nn.Sequential(nn.Linear(2, 2))))
    with pytest.raises(LookupError):
        projector.set_projections({}, "0")
