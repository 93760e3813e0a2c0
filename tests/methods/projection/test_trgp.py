"""TRGP against its equations: bases, trusted tasks, scaled weights, and what stays as it was."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad import networks, seeds
from classgrad.errors import UserError
from classgrad.guard.attach import attach
from classgrad.methods import TRGP
from classgrad.methods.projection.trgp import (
    Scaled,
    ScaledConv2d,
    ScaledLinear,
    make_scaled,
    most_trusted,
)
from classgrad.networks.layers import Dropout
from classgrad.networks.network import Network
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.config import Training
from classgrad.training.loop import fit
from oracles.bases import (
    LayerMemory,
    as_batch,
    directions,
    energies_along,
    energy,
    linear_layer,
    outside,
    projector,
    random_case,
)
from oracles.models import built, normal
from oracles.projection import leak, random_basis
from streams import blobs, step_of

STREAM = blobs(classes=2, per_class=6)  # 12 samples a task: three tasks fit into 64 dimensions


class Oracle(LayerMemory):
    """S grown by the joint rule, and the projector on each task's own basis."""

    def task(self, classes: list[np.ndarray], epsilon: float) -> np.ndarray:
        r = np.concatenate(classes, axis=1)
        delta, (values, u) = energies_along(r, self.basis), directions(outside(r, self.basis))
        joined = [(e, s) for e, s in zip(delta, self.basis.T, strict=True)]
        joined += [(e, s) for e, s in zip(values, u.T, strict=True)]
        joined.sort(key=lambda pair: -pair[0])
        total, own = 0.0, []
        while total < epsilon * energy(r) and len(own) < len(joined):
            total += joined[len(own)][0]
            own.append(joined[len(own)][1])
        self.append(self.joint(r, epsilon))  # which notes by how much each choice was taken
        return projector(np.stack(own, axis=1))


def test_bases_and_own_directions_equal_those_of_the_joint_rule() -> None:
    checked = stored = 0
    for seed in range(100):
        case = random_case(seed)
        model = linear_layer(case.dimension)
        method = TRGP(samples=10_000, epsilon=case.epsilon, energy_step=case.step)
        method.attach(model)
        oracle, own = Oracle(case.dimension), []
        for number, classes in enumerate(case.tasks):
            own.append(oracle.task(classes, case.threshold(number)))
            batch = as_batch(classes)
            method.learn(model, model, lambda batch=batch: [batch], None)
        if min(oracle.margins) < 1e-6:
            continue
        checked += 1
        basis = method.subspaces["0"].basis
        assert basis.shape == oracle.basis.shape, seed
        assert np.abs(projector(basis.numpy()) - projector(oracle.basis)).max() < 1e-9, seed
        assert len(method.own["0"]) == len(own)
        before = 0
        for columns, expected in zip(method.own["0"], own, strict=True):
            actual = projector(basis[:, columns].numpy())
            assert np.abs(actual - expected).max() < 1e-9, seed
            stored += int((columns < before).sum())
            before = max(before, int(columns.max()) + 1)
    assert checked > 60
    assert stored > 100  # many of the own directions were there before


def trusted_by_loops(
    g: np.ndarray, bases: list[np.ndarray], trust: float, most: int
) -> tuple[list[int], float]:
    """Candidates by the full projection, the largest first; and by how much it was decided."""
    whole = math.sqrt(sum(float(row @ row) for row in g))
    norms = [float(np.linalg.norm(g @ (b @ b.T))) for b in bases]
    margins = [abs(norm - trust * whole) for norm in norms]
    margins += [abs(a - b) for i, a in enumerate(norms) for b in norms[:i]]
    chosen: list[int] = []
    left = [j for j, norm in enumerate(norms) if norm > trust * whole]
    while left and len(chosen) < most:
        best = max(left, key=lambda j: norms[j])
        left.remove(best)
        chosen.append(best)
    return chosen, min(margins) / whole


def test_trusted_tasks_equal_those_of_a_loop() -> None:
    sizes = set()
    for seed in range(200):
        rng = np.random.default_rng(seed)
        dimension, tasks = int(rng.integers(4, 12)), int(rng.integers(1, 6))
        basis = random_basis(dimension, int(rng.integers(2, dimension + 1)), seed)
        rank = basis.shape[1]
        own = [
            rng.choice(rank, int(rng.integers(1, rank + 1)), replace=False) for _ in range(tasks)
        ]
        g = rng.standard_normal((3, dimension))
        trust, most = float(rng.choice([0.0, 0.3, 0.5, 0.8])), int(rng.integers(0, 4))
        bases = [basis[:, columns].numpy() for columns in own]
        expected, margin = trusted_by_loops(g, bases, trust, most)
        columns = [torch.from_numpy(one) for one in own]
        actual = most_trusted(torch.from_numpy(g), basis, columns, trust, most)
        if margin > 1e-9 or most == 0:
            assert actual == expected, seed
        sizes.add(len(actual))
    assert sizes == {0, 1, 2, 3}


def test_of_equal_norms_the_earlier_task_is_trusted_and_without_gradient_none() -> None:
    basis, own = random_basis(4, 2), [torch.tensor([0, 1]), torch.tensor([0, 1])]
    g = normal(2, 2) @ basis.T
    assert most_trusted(g, basis, own, 0.5, 1) == [0]
    assert most_trusted(0 * g, basis, own, 0.0, 2) == []


def scaled(kind: str) -> tuple[Scaled, Tensor, list[Tensor]]:
    """A scaled layer with two overlapping regions for task 1, its S and the Qs."""
    layer = built(lambda: nn.Linear(9, 5) if kind == "linear" else nn.Conv2d(2, 5, 3, padding=1))
    make_scaled(layer)
    dimension = layer.weight[0].numel()
    layer.basis = random_basis(dimension, 6)
    layer.add_regions(1, [torch.tensor([0, 2, 5]), torch.tensor([1, 2])])
    layer.task = 1
    qs = []
    for number, change in enumerate(layer.scales(1)):
        with torch.no_grad():
            change.copy_(normal(*change.shape, seed=number))
        qs.append(torch.eye(len(change)) + change.detach())
    return layer, layer.basis, qs


def formula(layer: Scaled, s: Tensor, qs: list[Tensor]) -> Tensor:
    """W + Σ (W B Q Bᵀ - W B Bᵀ)."""
    w = layer.weight.detach().flatten(1)
    result = w
    for columns, q in zip(layer.regions[1], qs, strict=True):
        b = s[:, columns]
        result = result + w @ b @ q @ b.T - w @ b @ b.T
    return result


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_the_scaled_weight_is_that_of_the_formula(kind: str) -> None:
    layer, s, qs = scaled(kind)
    expected = formula(layer, s, qs).view_as(layer.weight)
    if kind == "linear":
        x = normal(7, 3, 9)
        answer = functional.linear(x, expected, layer.bias)
        plain = functional.linear(x, layer.weight, layer.bias)
    else:
        x = normal(7, 2, 5, 5)
        answer = functional.conv2d(x, expected, layer.bias, padding=1)
        plain = functional.conv2d(x, layer.weight, layer.bias, padding=1)
    assert torch.allclose(layer(x), answer, atol=1e-12)
    assert not torch.allclose(answer, plain, atol=1e-2)
    layer.task = 0
    assert torch.equal(layer(x), plain)
    layer.task = 1
    for change in layer.scales(1):
        nn.init.zeros_(change)
    assert torch.allclose(layer(x), plain, atol=1e-12)  # Q = I


@pytest.mark.parametrize("kind", ["linear", "conv"])
def test_gradients_of_scales_and_of_the_weight_outside_s_are_those_of_the_formula(
    kind: str,
) -> None:
    """Inside S the weight is a constant: its gradient there is removed by projection."""
    layer, s, qs = scaled(kind)
    x = normal(4, 9) if kind == "linear" else normal(4, 2, 5, 5)
    layer(x).square().sum().backward()
    weight = layer.weight.detach().clone().requires_grad_()
    free = [q.clone().requires_grad_() for q in qs]
    w = weight.flatten(1)
    matrix = w
    for columns, q in zip(layer.regions[1], free, strict=True):
        b = s[:, columns]
        matrix = matrix + w @ b @ q @ b.T - w @ b @ b.T
    whole = matrix.view_as(weight)
    if kind == "linear":
        functional.linear(x, whole, layer.bias).square().sum().backward()
    else:
        functional.conv2d(x, whole, layer.bias, padding=1).square().sum().backward()
    actual, expected = (w.grad.flatten(1) for w in (layer.weight, weight))
    rest = torch.eye(len(s)) - s @ s.T
    assert torch.allclose(actual @ rest, expected @ rest, atol=1e-11)
    for change, q in zip(layer.scales(1), free, strict=True):
        assert torch.allclose(change.grad, q.grad, atol=1e-11)


def net_of(*layers: nn.Module, embedding: int, shared: bool = False) -> Network:
    net = built(lambda: Network(nn.Sequential(*layers), embedding, shared_head=shared))
    net.add_task(2)
    return net


def wide(shared: bool = False) -> Network:
    """Two layers with room for three tasks."""
    layers = built(
        lambda: nn.Sequential(nn.Linear(64, 80, bias=False), nn.ReLU(), nn.Linear(80, 90))
    )
    return net_of(nn.Flatten(), *layers, nn.ReLU(), embedding=90, shared=shared)


def learn(net: Network, method: TRGP, number: int, **values: object) -> list[float]:
    """Learn one task; return the losses."""
    task, losses = STREAM[number], []
    if number:
        net.add_task(2)
    method.begin_task(net, task)
    settings = {"epochs": 15, "batch_size": 6, "learning_rate": 0.05, "momentum": 0.8, **values}
    training = Training(**settings)
    fit(net, method, [task], training, seed=1, observer=lambda at: losses.append(at.loss))
    method.end_task(net, task, seeds.generator(1, "samples", number))
    method.close()
    return losses


def answers(net: Network, number: int) -> Tensor:
    net.eval()
    with torch.no_grad():
        return net(STREAM[number].train.unit_images(slice(None), torch.float64), number)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("shared", [False, True])
def test_old_outputs_weights_inside_s_and_old_scales_stay_while_new_tasks_learn(
    shared: bool, optimizer: str
) -> None:
    net = wide(shared)
    method = TRGP(epsilon=1.0, trust=0.0)
    method.wrap(net, STREAM, 1)
    known: list[Tensor] = []
    scales: dict[str, Tensor] = {}
    rate = {"learning_rate": 0.002} if optimizer == "adam" else {}
    for number in range(3):
        layers = method._layers()
        before = {name: layer.weight.detach().clone() for name, layer in layers.items()}
        bases = {name: subspace.basis for name, subspace in method.subspaces.items()}
        training = {"optimizer": optimizer, **rate}
        losses = learn(net, method, number, **training)
        assert losses[-1] < 0.5 * losses[0]
        for name, layer in layers.items():
            change = layer.weight.detach() - before[name]
            assert change.norm() > 1e-3
            assert leak(change, bases[name]) < 1e-12
        for name, old in scales.items():
            assert torch.equal(net.get_parameter(name), old)
        fresh = {n: p.detach().clone() for n, p in net.named_parameters() if "scale_" in n}
        assert len(fresh) == len(layers) * (0, 1, 3)[number]
        assert all(float(fresh[n].norm()) > 1e-3 for n in fresh.keys() - scales.keys())
        scales = fresh
        known.append(answers(net, number))
        for old in range(number):
            assert torch.allclose(answers(net, old), known[old], rtol=0, atol=1e-9)
    assert any("heads" in name for name in scales) == shared
    rank = {layer.name: layer.rank / layer.dimension for layer in method.layer_ranks()}
    assert max(rank.values()) < 1


def learn_images(network: str, tasks: int = 2, **options: object) -> Run:
    stream = blobs(tasks=3, classes=2, shape=(3, 20, 20), per_class=8)
    values = {"epochs": 2, "batch_size": 8, "trust": 0.0, "warmup": 0, **options}
    running = Run(make_plan(stream, "trgp", network=network, values=values), stream)
    for number in range(tasks):
        running.learn(number)
    return running


@pytest.mark.parametrize("affine", ["first", "task"])
def test_norms_stay_as_the_first_task_left_them_or_are_each_task_s_own(affine: str) -> None:
    running = learn_images("alexnet5", 1, affine=affine, norm="stored")
    old = {n: p.detach().clone() for n, p in running.net.named_parameters() if ".bn" in n}
    assert len(old) == 10
    running.learn(1)
    new = {n: p for n, p in running.net.named_parameters() if ".bn" in n}
    assert all(torch.equal(new[name], value) for name, value in old.items())
    assert len(new) == (10 if affine == "first" else 20)


def test_choosing_regions_disturbs_nothing() -> None:
    running = learn_images("alexnet5", 1, norm="stored")
    net, task = running.net, running.stream[1]
    net.add_task(task.classes)
    net.train()
    net.trunk.drop1.eval()
    rng = next(m for m in net.modules() if isinstance(m, Dropout)).generator
    drawn = rng.get_state()
    state = {name: value.clone() for name, value in net.state_dict().items()}
    modes = [module.training for module in net.modules()]
    net.zero_grad()
    running.method.begin_task(net, task)
    assert torch.equal(rng.get_state(), drawn)
    assert all(torch.equal(net.state_dict()[name], value) for name, value in state.items())
    assert [module.training for module in net.modules()] == modes
    assert all(p.grad is None for p in net.parameters())
    assert len(net.state_dict()) > len(state)  # the new scales
    chosen = copy.deepcopy(running.method.trusted)
    running.method.begin_task(net, task)  # the task has begun already
    assert running.method.trusted == chosen


def test_the_gradient_that_chooses_is_that_of_the_loss_on_the_probe() -> None:
    running = Run(make_plan(STREAM, TRGP(probe=7), values={"epochs": 1}), STREAM)
    running.net.double()
    running.learn(0)
    net, task = running.net, STREAM[1]
    net.add_task(2)
    actual = running.method._gradients(net, task)
    rng = seeds.generator(1, "trust", 1)
    index = torch.randperm(len(task.train), generator=rng)[:7]
    net.zero_grad()
    step = step_of(task, torch.optim.SGD(net.parameters(), lr=1), index)
    functional.cross_entropy(net(step.x, 1), step.y).backward()
    for name in ("fc1", "fc2"):
        expected = net.trunk.get_parameter(f"{name}.weight").grad
        assert torch.allclose(actual[name], expected, rtol=1e-12)


def test_a_task_chooses_by_its_gradient_before_any_projection() -> None:
    """The guard's route through projected rows would leave nothing of it inside old bases."""
    running = Run(make_plan(STREAM, TRGP(probe=7), values={"epochs": 3}), STREAM)
    running.net.double()
    running.learn(0)
    net, method, task = running.net, running.method, STREAM[1]
    net.add_task(2)
    for layer in method.projector.sites.values():
        assert layer.layer.out_features >= 7  # few rows: they would be projected
    expected = {}
    for name, gradient in method._gradients(net, task).items():
        basis = method.subspaces[name].basis
        assert (gradient @ basis).norm() > 0.5 * gradient.norm()
        expected[name] = {"1": [0]}
    method.begin_task(net, task)
    method.begin_task(net, task)  # of a task that was begun before, nothing changes
    assert method.trusted == expected


def test_the_optimiser_has_the_scales_of_the_current_task_only() -> None:
    net, method = wide(), TRGP(epsilon=1.0, trust=0.0)
    method.wrap(net, STREAM, 1)
    learn(net, method, 0)
    learn(net, method, 1)
    net.add_task(2)
    method.begin_task(net, STREAM[2])
    mine = {id(p) for p in method.parameters(net, [STREAM[2]])}
    names = [name for name, p in net.named_parameters() if id(p) in mine]
    assert sorted(names) == [
        "heads.2.weight",
        "trunk.1.scale_2_0",
        "trunk.1.scale_2_1",
        "trunk.1.weight",
        "trunk.3.bias",
        "trunk.3.scale_2_0",
        "trunk.3.scale_2_1",
        "trunk.3.weight",
    ]
    method.close()


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_run_resumes_from_its_states_in_the_middle_of_a_task(shared: bool, wrapped: bool) -> None:
    net, method = wide(shared), TRGP(epsilon=0.99, trust=0.0)
    method.wrap(net, STREAM, 1)
    learn(net, method, 0)
    learn(net, method, 1)
    net.add_task(2)
    method.begin_task(net, STREAM[2])
    short = Training(epochs=1, batch_size=6, learning_rate=0.02)
    fit(net, method, [STREAM[2]], short, seed=1)
    states = method.state_dict(), {n: v.clone() for n, v in net.state_dict().items()}

    other, again = wide(shared), TRGP(epsilon=0.99, trust=0.0)
    if wrapped:
        again.wrap(other, STREAM, 1)
    other.add_task(2)
    other.add_task(2)
    again.load_state_dict(states[0], other)
    other.load_state_dict(states[1])
    for number in range(3):
        assert torch.equal(answers(other, number), answers(net, number))
    again.begin_task(other, STREAM[2])
    for model, guard in ((net, method), (other, again)):
        fit(model, guard, [STREAM[2]], short, seed=2)
        guard.end_task(model, STREAM[2], seeds.generator(1, "samples", 2))
        guard.close()
    for left, right in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(left, right)
    for name, columns in method.own.items():
        pairs = zip(columns, again.own[name], strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)
        assert torch.equal(method.subspaces[name].basis, again.subspaces[name].basis)


def test_memory_is_bases_and_columns_and_the_scales_are_parameters() -> None:
    running = learn_images("lenet5", 2)
    method, net = running.method, running.net
    expected = sum(subspace.memory_bytes for subspace in method.subspaces.values())
    expected += sum(8 * len(c) for columns in method.own.values() for c in columns)
    assert method.memory_bytes() == expected
    scales = sum(len(columns[0]) ** 2 for columns in method.own.values())
    plain = networks.build("lenet5", (3, 20, 20))
    heads = sum(head.weight.numel() for head in net.heads)
    trunk = sum(p.numel() for p in plain.parameters())
    assert running.record.parameters == trunk + heads + scales
    assert isinstance(net.trunk.conv1, ScaledConv2d)
    assert isinstance(net.trunk.fc1, ScaledLinear)
    assert all("basis" not in name for name in net.state_dict())


def test_wrapping_twice_keeps_the_scales() -> None:
    running = learn_images("lenet5", 2)
    before = {n: p.clone() for n, p in running.net.named_parameters()}
    x = running.stream[1].train.unit_images(slice(None))
    with torch.no_grad():
        answer = running.net(x, 1)
        TRGP().wrap(running.net, running.stream, 1)
        assert torch.equal(running.net(x, 1), answer)
    assert all(torch.equal(p, before[n]) for n, p in running.net.named_parameters())


def test_without_regions_nothing_is_scaled_and_with_a_high_trust_less_is() -> None:
    counts = []
    for values in ({"regions": 0}, {"trust": 0.999}, {"regions": 1}, {"regions": 2}):
        options = {"epochs": 2, "width": 40, "trust": 0.0, **values}
        running = Run(make_plan(STREAM, "trgp", values=options), STREAM)
        running.execute()
        counts.append(sum("scale_" in name for name, _ in running.net.named_parameters()))
        assert running.net.task_dependent == (counts[-1] > 0)
    assert counts[0] == 0
    assert counts[1] < counts[2] == 4
    assert counts[3] == 6


def test_the_plateau_schedule_brings_back_the_best_scales() -> None:
    stream = blobs()
    values = {"epochs": 4, "schedule": "plateau", "patience": 1, "trust": 0.0}
    running = Run(make_plan(stream, "trgp", values=values), stream)
    assert running.execute().complete


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        (lambda: nn.Conv2d(2, 4, 1, groups=2), r"'1' \(Conv2d\)"),
        (lambda: nn.Conv1d(2, 4, 1), r"'1' \(Conv1d\)"),
    ],
)
def test_layers_that_cannot_be_scaled_are_refused_by_name(layer, named: str) -> None:
    net = net_of(nn.Flatten(), built(layer), embedding=4)
    with pytest.raises(UserError, match=named) as caught:
        TRGP().wrap(net, STREAM, 1)
    assert "\n" not in str(caught.value)


def test_attaching_it_to_a_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"TRGP .* before each task"):
        attach(linear_layer(3), TRGP())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"trust": 1.0}, "trust must be less than 1"),
        ({"regions": -1}, "regions must be greater than or equal to 0"),
        ({"probe": 0}, "probe must be greater than or equal to 1"),
    ],
)
def test_bad_settings_are_refused_in_one_line(values: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        TRGP(**values)
    assert str(caught.value).startswith(message)
