"""Ordinary steps of every kind of training loop are guarded, and none leaks."""

import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.methods import CGP, SGP
from forked import Forked
from guard.loops import Moves, everything, loss_of, second_task_leaks, small, task, train
from oracles.projection import without

OPTIMISERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "sgd fused": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.003),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
LIMIT = 1e-5  # of a move, in float32


@pytest.mark.parametrize("name", OPTIMISERS)
@pytest.mark.parametrize("kept", [True, False])
def test_a_watched_optimiser_does_not_leak(name: str, kept: bool) -> None:
    model = small()
    optimizer = OPTIMISERS[name](model.parameters())
    guard = attach(model, everything(), optimizer)
    train(model, optimizer, 0)

    def learn() -> None:
        current = optimizer if kept else OPTIMISERS[name](model.parameters())
        guard.watch(current)
        train(model, current, 1)

    moved, leak = second_task_leaks(guard, model, learn)
    assert moved > 1e-3
    assert leak < LIMIT


@pytest.mark.parametrize("name", ["sgd", "adamw", "adamw fused"])
def test_without_a_guard_the_same_steps_leak(name: str) -> None:
    model = small()
    guard = attach(model, everything())
    guard.end_task([task(0)])
    moves = Moves(guard)
    guard.detach()
    train(model, OPTIMISERS[name](model.parameters()), 1)
    assert moves.leak() > 0.1


def test_accumulation_clipping_and_a_schedule() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    guard = attach(model, everything(), optimizer)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=10)

    def learn() -> None:
        for _ in range(10):
            optimizer.zero_grad(set_to_none=False)
            for _ in range(3):
                (loss_of(model, 1) / 3).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            schedule.step()

    moved, leak = second_task_leaks(guard, model, learn)
    assert moved > 1e-3
    assert leak < LIMIT


@pytest.mark.parametrize("name", ["lbfgs", "sgd"])
def test_closures(name: str) -> None:
    model = small()
    optimizer = (
        torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=4)
        if name == "lbfgs"
        else torch.optim.SGD(model.parameters(), lr=0.1)
    )
    guard = attach(model, everything(), optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 1)
        loss.backward()
        return loss

    moved, leak = second_task_leaks(
        guard, model, lambda: [*map(optimizer.step, 3 * [closure])] and None
    )
    assert moved > 1e-3
    assert leak < LIMIT


def put_gradients(model: nn.Module) -> None:
    """Compute gradients by `torch.func`, which calls no hook of a weight."""

    def loss(parameters: dict[str, torch.Tensor]) -> torch.Tensor:
        x, y = task(1)
        return functional.cross_entropy(functional_call(model, parameters, x), y)

    gradients = torch.func.grad(loss)({n: p.detach() for n, p in model.named_parameters()})
    for name, parameter in model.named_parameters():
        parameter.grad = gradients[name]


@pytest.mark.parametrize("method", [everything(), SGP(epsilon=1.0)], ids=["gpm", "sgp"])
def test_gradients_of_torch_func(method) -> None:
    models = small(), small()
    ways = (lambda model: loss_of(model, 1).backward(), put_gradients)
    for model, way in zip(models, ways, strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        guard = attach(model, method, optimizer)
        guard.end_task([task(0)])
        for _ in range(3):
            optimizer.zero_grad()
            way(model)
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.allclose(one, other, atol=1e-6)
    assert not torch.allclose(models[1][0].weight, small()[0].weight, atol=1e-4)


@pytest.mark.parametrize("project_every", [1, 4])
def test_lbfgs_with_a_history_from_before_the_task_ended(project_every: int) -> None:
    model = small()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=4)
    guard = attach(model, everything(), optimizer, project_every=project_every)
    number = 0

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, number)
        loss.backward()
        return loss

    optimizer.step(closure)
    number = 1
    biases = [layer.bias.detach().clone() for layer in (model[0], model[1], model[3])]
    moved, leak = second_task_leaks(
        guard, model, lambda: [*map(optimizer.step, 8 * [closure])] and guard.project()
    )
    assert moved > 1e-3
    assert leak < LIMIT
    assert all(map(torch.equal, biases, [model[0].bias, model[1].bias, model[3].bias]))


@pytest.mark.parametrize("name", ["sgd", "adamw", "adamw fused"])
@pytest.mark.parametrize("scaled", [True, False])
def test_mixed_precision(name: str, scaled: bool) -> None:
    model = small()
    optimizer = OPTIMISERS[name](model.parameters())
    guard = attach(model, everything(), optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=1024.0)

    def learn() -> None:
        for _ in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, 1)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()

    moved, leak = second_task_leaks(guard, model, learn)
    assert moved > 1e-3
    assert leak < LIMIT


def test_a_step_that_the_scaler_skips_changes_nothing() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, everything(), optimizer)
    guard.end_task([task(0)])
    before = [p.detach().clone() for p in model.parameters()]
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss_of(model, 1) * torch.inf).backward()
    scaler.step(optimizer)
    scaler.update()
    assert all(map(torch.equal, before, model.parameters()))


@pytest.mark.parametrize("when", ["before", "after"])
def test_compiled_models(when: str) -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about how it works
        given = torch.compile(model, backend="aot_eager") if when == "before" else model
        guard = attach(given, everything(), optimizer)
        used = given if when == "before" else torch.compile(model, backend="aot_eager")
        moved, leak = second_task_leaks(guard, model, lambda: train(used, optimizer, 1, 5))
    assert [layer.name for layer in guard.layer_ranks()] == ["0", "3", "4"]
    assert moved > 1e-3
    assert leak < LIMIT


@pytest.mark.parametrize("part", [0, 1], ids=["block", "layer"])
def test_a_compiled_part_of_a_model(part: int) -> None:
    layers = small()
    model = nn.Sequential(layers[:3], layers[3], layers[4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the compiler, about how it works
        model[part] = torch.compile(model[part], backend="aot_eager")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        guard = attach(model, everything(), optimizer)
        train(model, optimizer, 0, 1)  # compiled without the hooks that see inputs
        moved, leak = second_task_leaks(guard, model, lambda: train(model, optimizer, 1, 5))
    assert all(layer.rank == 8 for layer in guard.layer_ranks())
    assert moved > 1e-3
    assert leak < LIMIT


@pytest.mark.parametrize("method", [everything(), SGP(epsilon=1.0)], ids=["gpm", "sgp"])
def test_two_optimisers_of_two_parts_are_as_one_of_both(method) -> None:
    weights = []
    for parts in (1, 2):
        model = small()
        parameters = list(model.parameters())
        optimizers = [
            torch.optim.SGD(parameters[part::parts], lr=0.1, momentum=0.9) for part in range(parts)
        ]
        guard = attach(model, method)
        for optimizer in optimizers:
            guard.watch(optimizer)
        guard.end_task([task(0)])
        for _ in range(5):
            model.zero_grad()
            loss_of(model, 1).backward()
            for optimizer in optimizers:
                optimizer.step()
        weights.append([p.detach() for p in parameters])
    assert all(torch.equal(one, other) for one, other in zip(*weights, strict=True))


@pytest.mark.parametrize("method", [everything(), SGP(epsilon=1.0)], ids=["gpm", "sgp"])
@pytest.mark.parametrize("name", ["nesterov", "adamw"])
def test_steps_of_a_watched_optimiser_are_those_of_the_context_manager(method, name: str) -> None:
    weights = []
    for watched in (True, False):
        model = small()
        optimizer = OPTIMISERS[name](model.parameters())
        guard = attach(model, method, optimizer if watched else None)
        guard.end_task([task(0)])
        for _ in range(5):
            optimizer.zero_grad()
            if watched:
                loss_of(model, 1).backward()
                optimizer.step()
            else:
                with guard.step(optimizer):
                    loss_of(model, 1).backward()
                    optimizer.step()
        weights.append([p.detach() for p in model.parameters()])
    for one, other in zip(*weights, strict=True):
        assert torch.allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_watched_optimiser_can_be_used_in_the_context_manager_too() -> None:
    model = small()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, CGP(epsilon=1.0, eta=1.0, correct_only=False), optimizer)

    def learn() -> None:
        for _ in range(3):
            optimizer.zero_grad()
            with guard.step(optimizer):
                loss_of(model, 1).backward()
                optimizer.step()

    moved, leak = second_task_leaks(guard, model, learn)
    assert moved > 1e-3
    assert leak < LIMIT


def test_a_step_without_any_optimiser_watched_is_refused_before_it_is_taken() -> None:
    model = small()
    guard = attach(model, everything())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train(model, optimizer, 0)  # nothing is protected yet
    guard.end_task([task(0)])
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(UserError, match=r"watches no optimizer.*guard\.watch"):
        train(model, optimizer, 1)
    assert all(map(torch.equal, before, model.parameters()))


def test_an_optimiser_can_be_watched_twice() -> None:
    model = small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, SGP(epsilon=1.0), optimizer)
    hooks = len(optimizer._optimizer_step_pre_hooks)
    guard.watch(optimizer)
    assert len(optimizer._optimizer_step_pre_hooks) == hooks


@pytest.mark.parametrize("project_every", [4, 16])
@pytest.mark.parametrize("name", ["adam", "adamw", "decay", "rmsprop"])
def test_every_few_steps_the_whole_move_is_projected(name: str, project_every: int) -> None:
    """As a plain loop does: projected gradients, then W₀ + (W - W₀)(I - S Sᵀ) after N steps."""
    model = small().double()
    optimizer = OPTIMISERS[name](model.parameters())
    guard = attach(model, everything(), optimizer, project_every=project_every)
    guard.end_task([tuple(v.double() if v.is_floating_point() else v for v in task(0))])
    bases = {n: s.basis for n, s in guard.method.subspaces.items()}
    plain = small().double()
    plain.load_state_dict(model.state_dict())
    trained = [plain.get_parameter(f"{n}.weight") for n in bases]
    oracle = OPTIMISERS[name](trained)
    x, y = task(1)
    for step in range(1, 2 * project_every + 3):
        if (step - 1) % project_every == 0:
            start = [weight.detach().clone() for weight in trained]
        for one, optimiser in ((plain, oracle), (model, optimizer)):
            optimiser.zero_grad()
            nn.functional.cross_entropy(one(x.double()), y).backward()
            if one is plain:
                for weight, basis in zip(trained, bases.values(), strict=True):
                    weight.grad = without(weight.grad, basis)
            optimiser.step()
        if step % project_every == 0 or step == 2 * project_every + 2:
            with torch.no_grad():
                for weight, then, basis in zip(trained, start, bases.values(), strict=True):
                    weight.copy_(then + without(weight - then, basis))
        if step == 2 * project_every + 2:
            guard.project()
        for n, weight in zip(bases, trained, strict=True):
            assert torch.allclose(model.get_parameter(f"{n}.weight"), weight, atol=1e-9), step


@pytest.mark.parametrize("name", ["sgd", "nesterov"])
def test_for_sgd_it_makes_no_difference_how_often_updates_are_projected(name: str) -> None:
    weights = []
    for project_every in (1, 16):
        model = small()
        guard = attach(model, everything(), project_every=project_every)
        guard.end_task([task(0)])
        optimizer = OPTIMISERS[name](model.parameters())
        guard.watch(optimizer)
        train(model, optimizer, 1, 5)
        weights.append([p.detach() for p in model.parameters()])
    assert all(map(torch.equal, *weights))


def test_rounding_does_not_add_up_over_many_projections() -> None:
    """In bfloat16, a hundred steps projected by fours leak no more than one projection rounds."""
    model = small().bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, everything(), optimizer, project_every=4)
    guard.end_task([(task(0)[0].bfloat16(), task(0)[1])])
    before = {n: p.detach().double() for n, p in model.named_parameters()}
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(task(1)[0].bfloat16()), task(1)[1]).backward()
        optimizer.step()
    for name, subspace in guard.method.subspaces.items():
        after = model.get_parameter(f"{name}.weight").detach().double()
        inside = (after - before[f"{name}.weight"]) @ subspace.basis
        assert inside.norm() < torch.finfo(torch.bfloat16).eps * after.norm()


@pytest.mark.parametrize("name", ["lbfgs", "adamw"])
@pytest.mark.parametrize("training", [True, False])
def test_deferred_projection_with_closures(name: str, training: bool) -> None:
    model = small().train(training)
    optimizer = (
        torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=4, line_search_fn="strong_wolfe")
        if name == "lbfgs"
        else torch.optim.AdamW(model.parameters(), lr=0.01)
    )
    guard = attach(model, everything(), optimizer, project_every=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, 1)
        loss.backward()
        return loss

    def learn() -> None:
        for _ in range(3):
            optimizer.step(closure)
        guard.project()

    moved, leak = second_task_leaks(guard, model, learn)
    assert moved > 1e-3
    assert leak < LIMIT


@pytest.mark.parametrize("name", ["adamw", "adamw fused"])
def test_deferred_projection_with_a_scaler(name: str) -> None:
    model = small()
    optimizer = OPTIMISERS[name](model.parameters())
    guard = attach(model, everything(), optimizer, project_every=4)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def learn() -> None:
        for step in range(10):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = loss_of(model, 1)
            scaler.scale(loss * (torch.inf if step == 5 else 1)).backward()
            scaler.step(optimizer)
            scaler.update()
        guard.project()

    moved, leak = second_task_leaks(guard, model, learn)
    assert moved > 1e-3
    assert leak < LIMIT


def test_weights_of_two_optimisers_are_projected_after_as_many_steps_each() -> None:
    model = small()
    parameters = list(model.parameters())
    often = torch.optim.AdamW(parameters[:2], lr=0.01)
    seldom = torch.optim.AdamW(parameters[2:], lr=0.01)
    guard = attach(model, everything(), often, project_every=4)
    guard.watch(seldom)
    guard.end_task([task(0)])
    before = {n: model.get_parameter(f"{n}.weight").detach().clone() for n in ("0", "3")}

    def leaks() -> list[bool]:
        result = []
        for name, then in before.items():
            move = (model.get_parameter(f"{name}.weight").detach() - then).double()
            inside = (move @ guard.method.subspaces[name].basis).norm()
            result.append(bool(inside > 1e-3 * move.norm()))
        return result

    history = []
    for step in range(8):
        model.zero_grad()
        loss_of(model, 1).backward()
        often.step()
        if step % 2:
            seldom.step()
        history.append(leaks())
    assert [first for first, _ in history] == [True, True, True, False, True, True, True, False]
    assert [second for _, second in history[1:]] == [*6 * [True], False]


@pytest.mark.parametrize(
    ("method", "project_every", "words"),
    [
        (everything(), 0, "project_every is 0: give a number of steps"),
        (everything(), True, "project_every is True: give a number of steps"),
        (everything(), 2.5, "project_every is 2.5: give a number of steps"),
        (SGP(), 4, "project_every=4 needs a method that removes .* SGP .* scales them: use 1"),
        (CGP(reading="released"), 4, "needs a method that removes .* CGP .* use 1"),
    ],
)
def test_what_cannot_be_deferred_is_refused(method, project_every, words: str) -> None:
    model = small()
    with pytest.raises(UserError, match=words):
        attach(model, method, project_every=project_every)
    attach(model, everything())  # nothing was changed


TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("project_every", [1, 4])
def test_processes_of_one_training_protect_the_same(tmp_path: Path, project_every: int) -> None:
    """Two processes train with DistributedDataParallel, each on its own half of the data.

    One of them then evaluates the model. Their weights are the same, or with steps that are still
    to be projected, the same up to rounding.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    run = [
        Forked(
            ["-m", "guard.two_processes", str(rank), port, str(tmp_path), str(project_every)],
            TESTS,
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in run]
    assert [process.returncode for process in run] == [0, 0], outputs
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["leak"] < LIMIT
    assert first["moved"] > 1e-3
    for name, weight in second["weights"].items():
        atol = 0.0 if project_every == 1 else 1e-6
        assert torch.allclose(first["weights"][name], weight, rtol=0, atol=atol)
    assert first["ranks"] == second["ranks"]
    assert min(first["ranks"]) > 0
    assert first["report"] == second["report"]
    assert len(first["report"]["held"]) == 3
