"""Importances of SGP against its equations in numpy, and what they do to gradients and updates."""

import copy
import json
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.guard.attach import Guard, attach
from classgrad.methods import GPM, SGP
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from oracles.bases import (
    LayerMemory,
    as_batch,
    directions,
    energies_along,
    linear_layer,
    outside,
    random_case,
)
from oracles.models import built, in_turn, normal
from streams import blobs

Optimiser = Callable[[nn.Module], torch.optim.Optimizer]


class Oracle(LayerMemory):
    """GPM's basis with an importance for every direction, one loop per equation."""

    lambdas: tuple[float, ...] = ()

    def task(self, classes: list[np.ndarray], epsilon: float, alpha: float) -> None:
        r = np.concatenate(classes, axis=1)
        stored = [math.sqrt(energy) for energy in energies_along(r, self.basis)]
        sigma = np.sqrt(directions(outside(r, self.basis))[0])
        self.pooled_task(classes, epsilon)
        s = [*stored, *sigma[: self.basis.shape[1] - len(stored)]]
        result = [(alpha + 1) * one / (alpha * one + max(s)) for one in s]
        known = [*self.lambdas, *[0.0] * (len(s) - len(stored))]
        self.lambdas = tuple(min(a + b, 1.0) for a, b in zip(known, result, strict=True))

    def removed(self) -> np.ndarray:
        """M Λ Mᵀ, whatever the signs of the columns."""
        total = np.zeros((self.dimension, self.dimension))
        for column, weight in zip(self.basis.T, self.lambdas, strict=True):
            total += weight * np.outer(column, column)
        return total


def test_importances_equal_those_of_a_plain_loop_over_tasks() -> None:
    checked = accumulated = cut = 0
    for seed in range(100):
        case, alpha = random_case(seed), (0.0, 1.0, 3.0, 10.0, 100.0)[seed % 5]
        guard = attach(
            linear_layer(case.dimension),
            SGP(samples=10_000, epsilon=case.epsilon, energy_step=case.step, alpha=alpha),
        )
        oracle = Oracle(case.dimension)
        for number, classes in enumerate(case.tasks):
            before = oracle.lambdas
            oracle.task(classes, case.threshold(number), alpha)
            guard.end_task([as_batch(classes)])
            accumulated += sum(a < b for a, b in zip(before, oracle.lambdas, strict=False))
            cut += sum(a < 1 and b == 1 for a, b in zip(before, oracle.lambdas, strict=False))
        if min(oracle.margins) < 1e-6:
            continue
        checked += 1
        basis = guard.method.subspaces["0"].basis
        weights = guard.method.importance["0"]
        assert basis.shape == oracle.basis.shape, seed
        result = (basis * weights @ basis.T).numpy()
        # The root of a rounding error in the energy along a direction of none is 1e-8.
        assert np.abs(result - oracle.removed()).max() < 1e-6, seed
    assert checked > 60
    assert accumulated > 60
    assert cut > 20


def test_importances_by_hand() -> None:
    """Three directions of singular values 4, 2 and 1; then a task along the second and a fourth."""
    guard = attach(linear_layer(5), SGP(epsilon=1.0, alpha=2, samples=100))
    first = np.diag([4.0, 2.0, 1.0, 0.0, 0.0])
    guard.end_task([as_batch([first])])
    assert guard.method.importance["0"].tolist() == pytest.approx([1, 6 / 8, 3 / 6], abs=1e-12)
    second = np.diag([0.0, 0.5, 0.0, 2.0, 0.0])
    guard.end_task([as_batch([second])])
    expected = [1, 1, 3 / 6, 1]  # 3/4 + 3 * 0.5 / 3 = 1.25 is cut; the third gets nothing
    assert guard.method.importance["0"].tolist() == pytest.approx(expected, abs=1e-12)


def mixed() -> nn.Module:
    """A convolution, a layer less than half full and one more than half full."""
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, 20, bias=False),
        nn.Tanh(),
        nn.Linear(20, 3, bias=False),
    )


def guarded(alpha: float) -> Guard:
    """A model that learnt two tasks of random numbers."""
    energy = {"5": 0.99, "*": 0.85}
    guard = attach(built(mixed), SGP(epsilon=energy, energy_step=0.0, alpha=alpha))
    for seed in range(2):
        guard.end_task([(normal(8, 2, 4, 4, seed=seed), in_turn(8, 3))])
    return guard


def loss_of(model: nn.Module, seed: int = 9) -> Tensor:
    return functional.cross_entropy(model(normal(30, 2, 4, 4, seed=seed)), in_turn(30, 3))


def weight_of(model: nn.Module, name: str) -> Tensor:
    return model.get_parameter(f"{name}.weight").flatten(1)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 10.0])
def test_gradients_along_each_direction_are_scaled_by_one_minus_its_importance(
    alpha: float,
) -> None:
    guard = guarded(alpha)
    plain = copy.deepcopy(guard.model)
    optimizer = torch.optim.SGD(guard.model.parameters(), lr=0.1)
    loss_of(plain).backward()
    with guard.step(optimizer):
        loss_of(guard.model).backward()
        optimizer.step()
    ranks = {layer.name: layer.rank / layer.dimension for layer in guard.layer_ranks()}
    assert ranks["3"] < 0.5 < ranks["5"] < 1
    for name, weights in guard.method.importance.items():
        assert 0 < float(weights.min()) < 0.98
        basis = guard.method.subspaces[name].basis
        result = guard.model.get_parameter(f"{name}.weight").grad.flatten(1)
        gradient = plain.get_parameter(f"{name}.weight").grad.flatten(1)
        expected = (gradient @ basis) * (1 - weights)
        assert torch.allclose(result @ basis, expected, rtol=1e-10, atol=1e-14)
        outside_found = result - result @ basis @ basis.T
        outside_expected = gradient - gradient @ basis @ basis.T
        assert torch.allclose(outside_found, outside_expected, atol=1e-14)


OPTIMISERS: dict[str, Optimiser] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.1),
    "momentum": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9),
    "decay": lambda m: torch.optim.SGD(m.parameters(), lr=0.1, weight_decay=0.1, momentum=0.9),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
}


@pytest.mark.parametrize("closure", [False, True])
@pytest.mark.parametrize("name", OPTIMISERS)
def test_the_update_of_any_optimiser_is_scaled_once(name: str, closure: bool) -> None:
    """Each update is that of the optimiser left alone, times I - M Λ Mᵀ: from its first step on.

    Left alone, it has seen the same gradients; plain SGD has seen the scaled ones, and is linear.
    """
    guard = guarded(3.0)
    optimizer = OPTIMISERS[name](guard.model)
    free = OPTIMISERS[name](copy.deepcopy(guard.model))
    for number in range(3):
        alone = copy.deepcopy(guard.model)
        free.param_groups[0]["params"] = list(alone.parameters())
        old = list(free.state.values())
        free.state.clear()
        free.state.update(zip(alone.parameters(), old, strict=False))
        before = copy.deepcopy(guard.model)
        optimizer.zero_grad()

        def backward(model: nn.Module = guard.model, number: int = number) -> Tensor:
            loss = loss_of(model, seed=number)
            loss.backward()
            return loss

        with guard.step(optimizer):
            if closure:
                optimizer.step(backward)
            else:
                backward()
                optimizer.step()
        backward(alone)
        free.step()
        for layer, weights in guard.method.importance.items():
            basis = guard.method.subspaces[layer].basis
            change = weight_of(guard.model, layer) - weight_of(before, layer)
            whole = weight_of(alone, layer) - weight_of(before, layer)
            expected = whole - (whole @ basis) * weights @ basis.T
            assert expected.norm() > 1e-4
            assert torch.allclose(change, expected, atol=1e-13)


@pytest.mark.parametrize("rows", [4, 40])
def test_with_alpha_infinite_bases_and_gradients_are_those_of_gpm(rows: int) -> None:
    guards = [attach(built(mixed), method) for method in (SGP(alpha=math.inf), GPM())]
    for guard in guards:
        for seed in range(2):
            guard.end_task([(normal(8, 2, 4, 4, seed=seed), in_turn(8, 3))])
        x = normal(rows, 2, 4, 4, seed=5)
        optimizer = torch.optim.SGD(guard.model.parameters(), lr=0.1)
        with guard.step(optimizer):
            functional.cross_entropy(guard.model(x), in_turn(rows, 3)).backward()
            optimizer.step()
    mine, theirs = guards
    for name, subspace in theirs.method.subspaces.items():
        assert torch.equal(mine.method.subspaces[name].basis, subspace.basis)
        assert bool((mine.method.importance[name] == 1).all())
    for left, right in zip(mine.model.parameters(), theirs.model.parameters(), strict=True):
        assert torch.equal(left.grad, right.grad)
        assert torch.equal(left, right)


@pytest.mark.parametrize("values", [{}, {"optimizer": "adam", "learning_rate": 0.005}])
@pytest.mark.parametrize("heads", ["task", "shared"])
def test_with_alpha_infinite_a_whole_run_ends_with_the_weights_of_gpm(
    values: dict, heads: str
) -> None:
    stream = blobs()
    nets = []
    for method in (SGP(alpha=math.inf), GPM(), SGP(alpha=3)):
        plan = make_plan(stream, method, values={"epochs": 3, "heads": heads, **values})
        running = Run(plan, stream)
        running.execute()
        nets.append(torch.cat([p.detach().flatten() for p in running.net.parameters()]))
    assert torch.equal(nets[0], nets[1])
    assert not torch.equal(nets[0], nets[2])


def test_importances_near_one_are_near_gpm() -> None:
    gradients = []
    for method in (SGP(alpha=1e10), GPM()):
        guard = attach(built(mixed), method)
        guard.end_task([(normal(8, 2, 4, 4), in_turn(8, 3))])
        optimizer = torch.optim.SGD(guard.model.parameters(), lr=0.1)
        with guard.step(optimizer):
            loss_of(guard.model).backward()
            optimizer.step()
        gradients.append([p.grad for p in guard.model.parameters()])
    for left, right in zip(*gradients, strict=True):
        assert torch.allclose(left, right, atol=1e-8)
        assert not torch.equal(left, right)


def test_linear_layers_go_by_rows() -> None:
    for alpha in (3.0, math.inf):
        model = guarded(alpha).model
        assert ["forward" in vars(model[i]) for i in (0, 3, 5)] == [False, True, True]


def test_a_layer_that_sees_nothing_has_no_importance() -> None:
    guard = attach(linear_layer(3), SGP(alpha=3))
    guard.end_task([(torch.zeros(4, 3, dtype=torch.float64), in_turn(4, 2))])
    assert guard.method.importance["0"].tolist() == []
    guard.end_task([(normal(4, 3), in_turn(4, 2))])
    known = guard.method.importance["0"]
    guard.end_task([(torch.zeros(4, 3, dtype=torch.float64), in_turn(4, 2))])
    assert torch.equal(guard.method.importance["0"], known)


def test_the_state_has_the_importances_and_continues_from_them() -> None:
    stream = blobs()
    running = Run(make_plan(stream, SGP(alpha=3), values={"epochs": 2}), stream)
    running.learn(0)
    running.learn(1)
    state = running.method.state_dict()
    assert state["importance"].keys() == state["bases"].keys()
    parts = [*state["bases"].values(), *state["importance"].values()]
    assert running.method.memory_bytes() == sum(part.nbytes for part in parts)
    again = SGP(alpha=3)
    again.load_state_dict(state, running.net)
    for name, projection in again.projector._projections.items():
        matrix = normal(2, projection.basis.shape[0]).float()
        assert torch.equal(
            projection.project(matrix), running.method.projector._projections[name].project(matrix)
        )
        assert projection.soft


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, "alpha must be greater than or equal to 0 (got -1)"),
        (math.nan, "alpha must be greater than or equal to 0 (got nan)"),
        ("much", "alpha must be a valid number"),
    ],
)
def test_a_bad_alpha_is_refused_in_one_line(value: object, message: str) -> None:
    with pytest.raises(UserError) as caught:
        SGP(alpha=value)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [math.inf, "inf", "Infinity"])
def test_an_infinite_alpha_survives_json(given: object) -> None:
    method = SGP(alpha=given)
    assert method.scale == math.inf
    assert json.loads(json.dumps(method.model_dump(), allow_nan=False))["scale"] == "inf"
    assert method.replace().scale == math.inf
    with pytest.raises(UserError, match="finite"):
        SGP(energy_step=math.inf)  # all other settings stay finite


def test_an_infinite_alpha_on_the_command_line(call) -> None:
    words = ["split-digits", "--method", "sgp", "--set", "alpha=inf", "--set", "epochs=1"]
    code, out, err = call("run", *words, "--json")
    assert code == 0, err
    record = json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    assert record["method"]["scale"] == "inf"
    code, out, err = call("list", "sgp", "--json")
    assert "inf: GPM" in json.loads(out)["sgp"]["scale (alpha)"]
