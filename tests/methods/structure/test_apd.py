"""APD against its loss, minimised slowly; its parts, its zeros, and old tasks that stay."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from classgrad import methods, networks
from classgrad.errors import UserError
from classgrad.methods import APD
from classgrad.methods.structure.apd import Decomposed, Sparse, make_decomposed
from classgrad.networks.network import Network
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.loop import fit
from streams import blobs, step_of

STREAM = blobs(tasks=3, classes=2, shape=(1, 4, 4), per_class=8)
SMALL = blobs(tasks=2, classes=2, shape=(1, 8, 8), per_class=4)
# Parts that start dense, so that the tests of what happens to entries have some.
QUICK = {"epochs": 6, "batch_size": 8, "learning_rate": 0.03, "momentum": 0.8, "warmup": 0}
QUICK |= {"start": "shared"}


def start(method="apd", stream=STREAM, network="mlp", **values):
    if network == "mlp":
        values = {"width": 12, **values}
    running = Run(make_plan(stream, method, network=network, values={**QUICK, **values}), stream)
    running.net.double()
    return running


def begin(running, number):
    if number:
        running.net.add_task(running.stream[number].classes)
    running.method.begin_task(running.net, running.stream[number])


def learn(running, number):
    """Learn a task, but do not end it."""
    begin(running, number)
    fit(running.net, running.method, [running.stream[number]], running.plan.training, seed=1)


def thetas(running, task):
    running.net.select(task)
    return {n: layer.theta().detach().clone() for n, layer in running.method.layers.items()}


def drawn(shape, seed, scale=1.0):
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape) * scale)


def a_layer(tasks=3, *, limit=0.1, conv=False, seed=0):
    """A layer in the middle of a task, with random parts of `tasks` finished ones."""
    with torch.random.fork_rng():
        layer = nn.Conv2d(2, 3, 2, bias=False) if conv else nn.Linear(4, 3, bias=False)
    layer = layer.double()
    make_decomposed(layer, from_shared=True)
    assert isinstance(layer, Decomposed)
    layer.limit = limit
    shape = layer.weight.shape
    for task in range(tasks):
        dense = drawn(shape, (seed, 1, task)) * (drawn(shape, (seed, 2, task)) > 0.3)
        layer.own.append(Sparse.of(dense))
        layer.common.append(None)
        layer.add_task()
    with torch.no_grad():
        for task in range(tasks + 1):
            layer.logits(task).copy_(drawn(3, (seed, 3, task)))
        layer.weight.copy_(drawn(shape, (seed, 4)))
        layer.begin()
        layer.weight.add_(drawn(shape, (seed, 5), 0.2))
    return layer


def dense(part, shape):
    """Entries one by one."""
    flat = np.zeros(int(np.prod(shape)))
    for where, what in zip(part.index.tolist(), part.value.tolist(), strict=True):
        flat[where] = what
    return flat.reshape(shape)


def by_rows(layer, task):
    m = 1 / (1 + np.exp(-layer.logits(task).detach().numpy()))
    return m.reshape(-1, *[1] * (layer.weight.dim() - 1))


def residuals(layer, task):
    """θ* - σ m, from the parts."""
    anchor, sigma = layer.anchor.numpy(), layer.weight.detach().numpy()
    m = by_rows(layer, task)
    return anchor * m + dense(layer.own[task], sigma.shape) - sigma * m


def best_by_search(r, lambda1, lambda2):
    """The minimiser of λ2/2 (r - τ)² + λ1 |τ| by ever finer grids."""
    centre, width = 0.0, 2 * abs(r) + 1
    for _ in range(12):
        grid = np.append(np.linspace(centre - width, centre + width, 201), 0.0)
        values = lambda2 / 2 * (r - grid) ** 2 + lambda1 * np.abs(grid)
        centre, width = grid[np.argmin(values)], width / 20
    return centre


@pytest.mark.parametrize("conv", [False, True])
def test_old_parts_minimise_their_penalties(conv):
    lambda1, lambda2 = 0.3, 2.0
    layer = a_layer(limit=lambda1 / lambda2, conv=conv)
    zeros = 0
    for task in range(3):
        result = layer.retrofitted(task).detach().numpy()
        wanted = residuals(layer, task)
        for tau, r in zip(result.flat, wanted.flat, strict=True):
            best = best_by_search(r, lambda1, lambda2)
            assert tau == pytest.approx(best, abs=1e-6)
            zeros += tau == 0
    assert 0 < zeros < 3 * result.size


def test_eliminating_the_old_parts_gives_the_joint_minimum():
    """A quadratic in σ plus both penalties, over σ and all τ_i by slow descent, and as here."""
    lambda1, lambda2 = 0.2, 1.5
    layer = a_layer(limit=lambda1 / lambda2)
    sigma0 = layer.weight.detach().clone()
    goal = drawn(sigma0.shape, 9)
    masks = [torch.from_numpy(by_rows(layer, t)) for t in range(3)]
    stars = [torch.from_numpy(residuals(layer, t)) + sigma0 * masks[t] for t in range(3)]
    # Jointly: gradient steps on σ and τ, and a proximal one for the absolute values.
    sigma, taus, rate = sigma0.clone(), [torch.zeros_like(goal) for _ in range(3)], 0.15
    for _ in range(4000):
        off = [s - sigma * m - t for s, m, t in zip(stars, masks, taus, strict=True)]
        pulls = [lambda2 * o * m for o, m in zip(off, masks, strict=True)]
        sigma = sigma - rate * (sigma - goal - sum(pulls))
        taus = [t + rate * lambda2 * o for t, o in zip(taus, off, strict=True)]
        taus = [t.sign() * (t.abs() - rate * lambda1).clamp(min=0) for t in taus]
    with torch.no_grad():
        for _ in range(4000):
            layer.weight.sub_(rate * (layer.weight - goal + layer.pull(lambda2)))
    assert torch.allclose(layer.weight, sigma, atol=1e-9)
    for task, tau in enumerate(taus):
        assert torch.allclose(layer.retrofitted(task), tau, atol=1e-9)
    assert any((tau == 0).any() for tau in taus)


@pytest.mark.parametrize("conv", [False, True])
def test_the_gradient_of_the_shared_weight_is_that_of_the_penalty_at_its_minimum(conv):
    lambda1, lambda2 = 0.3, 2.0
    layer = a_layer(limit=lambda1 / lambda2, conv=conv)
    sigma = layer.weight.detach().clone().requires_grad_()
    total = torch.zeros((), dtype=torch.float64)
    for task in range(3):
        m = torch.from_numpy(by_rows(layer, task))
        r = layer.anchor * m + torch.from_numpy(dense(layer.own[task], sigma.shape)) - sigma * m
        huber = torch.where(
            r.abs() <= lambda1 / lambda2,
            lambda2 / 2 * r**2,
            lambda1 * r.abs() - lambda1**2 / (2 * lambda2),
        )
        # The same value as the two penalties have with the parts put in.
        tau = layer.retrofitted(task).detach()
        at_best = lambda2 / 2 * (r - tau) ** 2 + lambda1 * tau.abs()
        assert torch.allclose(huber, at_best, atol=1e-12)
        total = total + huber.sum()
    total.backward()
    assert torch.allclose(layer.pull(lambda2), sigma.grad, atol=1e-12)
    assert sigma.grad.abs().max() > 0.1


def test_a_layer_uses_masked_rows_plus_its_own_part():
    for conv in (False, True):
        layer = a_layer(tasks=2, conv=conv)
        layer.task = 2
        x = drawn((5, 2, 3, 3) if conv else (5, 4), 7)
        sigma, tau = layer.weight.detach().numpy(), layer.adaptive.detach().numpy()
        theta = np.zeros_like(sigma)
        for row in range(3):
            theta[row] = sigma[row] / (1 + np.exp(-layer.logits(2)[row].item())) + tau[row]
        if conv:
            expected = torch.nn.functional.conv2d(x, torch.from_numpy(theta)).numpy()
        else:
            expected = x.numpy() @ theta.T
        assert np.abs(layer(x).detach().numpy() - expected).max() < 1e-12


def test_the_weight_rebuilt_from_its_parts_is_the_one_that_was_trained():
    running = start(threshold=0.0)
    for number in range(3):
        learn(running, number)
        trained = thetas(running, number)
        old = [thetas(running, task) for task in range(number)]
        running.method.end_task(running.net, STREAM[number], None)
        again = methods.make("apd", **running.plan.method.model_dump())
        net = copy.deepcopy(running.net)
        again.load_state_dict(running.method.state_dict(), net)
        running.net.select(number)
        for name, layer in again.layers.items():
            layer.task = number
            assert torch.equal(layer.theta(), trained[name])
            for task, before in enumerate(old):
                layer.task = task
                assert (layer.theta() - before[name]).abs().max() < 1e-15


@pytest.mark.parametrize(
    "optimiser", [{}, {"optimizer": "adam", "learning_rate": 0.003}, {"weight_decay": 1e-2}]
)
def test_old_weights_stay_within_the_penalties_whatever_the_optimiser(optimiser):
    running = start(sparsity=0.005, retention=5.0, **optimiser)
    running.learn(0)
    before, sigma = thetas(running, 0), running.method.layers["fc1"].weight.detach().clone()
    learn(running, 1)
    moved = (running.method.layers["fc1"].weight - sigma).abs().max()
    assert moved > 0.005  # five times the bound: the own parts have something to put right
    for name, theta in thetas(running, 0).items():
        off = (theta - before[name]).abs().max().item()
        assert 0 < off <= 0.001 + 1e-12
    running.method.end_task(running.net, STREAM[1], None)
    for name, theta in thetas(running, 0).items():  # now also without small entries
        assert (theta - before[name]).abs().max() <= 0.001 + 0.005 + 1e-12


def test_outputs_for_old_tasks_hardly_change_and_without_a_price_not_at_all():
    x = STREAM[0].transform(STREAM.test(0).unit_images(torch.arange(8), torch.float64))
    drift = {}
    for sparsity in (0.0, 6e-4):
        running = start(sparsity=sparsity)
        running.learn(0)
        before = running.net.eval()(x, 0).detach()
        running.learn(1)
        running.learn(2)
        drift[sparsity] = (running.net.eval()(x, 0) - before).abs().max().item()
    assert drift[0.0] < 1e-12
    assert 1e-9 < drift[6e-4] < 0.05


def test_zeros_are_exact_after_every_step_and_small_entries_are_gone_after_the_task():
    running = start(sparsity=0.1, threshold=0.01)
    learn(running, 0)
    shares = [
        float((layer.adaptive == 0).double().mean()) for layer in running.method.layers.values()
    ]
    assert all(0.1 < share < 0.99 for share in shares)
    running.method.end_task(running.net, STREAM[0], None)
    learn(running, 1)
    running.method.end_task(running.net, STREAM[1], None)
    for layer in running.method.layers.values():
        for part in layer.own:
            assert (part.value.abs() > 0.01).all()
            assert 0 < len(part.value) < layer.weight.numel()


def test_a_proximal_step_comes_to_rest_where_the_gradient_is_balanced():
    """For L = (τ - a)²/2 that is a shrunk by λ1."""
    goal = torch.tensor([1.0, -0.5, 0.05, -0.02], dtype=torch.float64)
    for kind, rounds, options in [
        (torch.optim.SGD, 400, {"lr": 0.05, "momentum": 0.5}),
        (torch.optim.Adam, 4000, {"lr": 0.003}),
    ]:
        method = APD(sparsity=0.1, decay=0)
        net = one_layer()
        method.wrap(net, STREAM, 1)
        method.begin_task(net, STREAM[0])
        part = method.layers["0"].adaptive
        optimizer = kind([part], **options)
        step = step_of(STREAM[0], optimizer)
        for _ in range(rounds):
            part.grad = part.detach() - goal[None]
            optimizer.step()
            method.after_step(net, step)
        result = part.detach().flatten().tolist()
        assert result[:2] == pytest.approx([0.9, -0.4], abs=0.02)
        assert result[2:] == [0.0, 0.0]


def one_layer():
    with torch.random.fork_rng():
        net = Network(nn.Sequential(nn.Linear(4, 1, bias=False)), 1).double()
    net.add_task(2)
    return net


def test_gradients_get_the_pull_and_the_decay():
    running = start(sparsity=0.05, retention=2.0, decay=0.3)
    for number in range(2):
        begin(running, number)
        net, method = running.net, running.method
        moving = [p for p in method.parameters(net, [STREAM[number]]) if p.requires_grad]
        step = step_of(STREAM[number], torch.optim.SGD(moving, lr=0.1))
        with torch.no_grad():
            for layer in method.layers.values():
                layer.weight.add_(0.1)
        method.loss(net, step).backward()
        raw = {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}
        method.adjust_gradients(net, step)
        for name, layer in method.layers.items():
            sigma = layer.weight.grad - raw[f"trunk.{name}.weight"]
            tau = layer.adaptive.grad - raw[f"trunk.{name}.adaptive"]
            v = layer.logits(number).grad - raw[f"trunk.{name}.mask_{number}"]
            expected = 0.3 * layer.weight if number == 0 else layer.pull(2.0)
            assert torch.allclose(sigma, expected, atol=1e-12)
            assert sigma.abs().max() > 0
            assert torch.allclose(tau, 0.3 * layer.adaptive, atol=1e-12)
            assert torch.allclose(v, 0.3 * layer.logits(number), atol=1e-12)
        net.zero_grad()
        method.end_task(net, STREAM[number], None)


def test_a_new_part_starts_at_the_shared_weight_and_masks_at_a_half():
    running = start()
    running.learn(0)
    begin(running, 1)
    for layer in running.method.layers.values():
        assert torch.equal(layer.adaptive, layer.weight)
        assert (layer.mask(1) == 0.5).all()
        assert not torch.equal(layer.adaptive, layer.own[0].dense(layer.weight))
        assert layer.adaptive is not layer.weight


def test_by_default_a_new_part_starts_at_zero_and_the_task_at_nearly_the_shared_weight():
    running = start(start=APD().start)
    running.learn(0)
    begin(running, 1)
    running.net.select(1)
    for layer in running.method.layers.values():
        assert layer.adaptive.count_nonzero() == 0
        assert torch.allclose(layer.theta(), 0.95 * layer.weight, rtol=0.01, atol=0)


@pytest.mark.parametrize("name", ["apd", "apd2"])
def test_a_short_run_stores_little_more_than_one_network_and_learns(name):
    """In sixty steps per task an own part that starts dense stays dense."""
    values = {"epochs": 30, "batch_size": 8, "warmup": 0, "learning_rate": 0.02, "momentum": 0.9}
    plan = make_plan(STREAM, name, network="mlp", values=values)
    record = Run(plan, STREAM).execute()
    dense = Run(replace(plan, method=plan.method.replace(start="shared")), STREAM).execute()
    assert 100 < record.capacity < 180
    assert dense.capacity > 300
    assert record.average_accuracy > 95


@pytest.mark.parametrize("affine", ["first", "task"])
@pytest.mark.parametrize("norm", ["batch", "stored"])
def test_what_else_is_shared_stays_as_the_first_task_left_it(norm, affine):
    running = start(batch_norm=True, norm=norm, affine=affine, heads="shared")
    assert set(running.method.layers) == {"trunk.fc1", "trunk.fc2", "heads.0"}
    names = {id(p): n for n, p in running.net.named_parameters()}
    first = {names[id(p)] for p in running.method.parameters(running.net, [STREAM[0]])}
    assert "trunk.bn1.scale_0" in first
    running.learn(0)
    begin(running, 1)
    names = {id(p): n for n, p in running.net.named_parameters()}
    later = {names[id(p)] for p in running.method.parameters(running.net, [STREAM[1]])}
    own = {f"{n}.{what}" for n in running.method.layers for what in ("weight", "adaptive")}
    own |= {f"{n}.mask_1" for n in running.method.layers}
    assert own <= later
    rest = later - own
    assert all("scale" in n or "shift" in n for n in rest)
    assert ("trunk.bn1.scale_1" in rest) == (affine == "task")
    assert ("trunk.bn1.scale_0" in rest) == (affine == "task")  # of task 1, without a gradient
    x = STREAM[0].transform(STREAM.test(0).unit_images(torch.arange(8), torch.float64))
    before = running.net.eval()(x, 0).detach()
    fit(running.net, running.method, [STREAM[1]], running.plan.training, seed=1)
    running.method.end_task(running.net, STREAM[1], None)
    assert 0 < (running.net.eval()(x, 0).detach() - before).abs().max() < 0.05


@pytest.mark.parametrize("name", ["apd", "apd2"])
def test_capacity_of_a_run_and_the_usual_threshold(name):
    running = start(name, width=6, sparsity=0.01)
    record = running.execute()
    stored = sum(int((p != 0).sum()) for p in running.net.parameters())
    small, parts = math.inf, 0
    for layer in running.method.layers.values():
        for part in layer.own:
            parts += len(part.value)
            small = min([small, *part.value.abs().tolist()])
    assert parts > 0
    assert 0.01 < small < 0.1
    base = 16 * 6 + 6 * 6 + 3 * 2 * 6
    assert record.capacity == pytest.approx(100 * (stored + parts) / base)


def test_capacity_counted_by_hand():
    method = APD(sparsity=0.5, threshold=0.25)
    net = one_layer()
    method.wrap(net, STREAM, 1)
    method.begin_task(net, STREAM[0])
    layer = method.layers["0"]
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.0, 2.0, 3.0]]))  # three
        layer.logits(0).fill_(1.0)  # one
        layer.adaptive.copy_(torch.tensor([[0.25, -0.26, 0.0, 1.0]]))  # two above the threshold
        net.heads[0].weight.copy_(torch.tensor([[1.0], [0.0]]))  # one
    method.end_task(net, STREAM[0], None)
    assert method.stored_parameters(net) == 3 + 1 + 2 + 1
    assert method.memory_bytes() == 2 * (4 + 8)  # int32 places, float64 values
    net.add_task(2)
    method.begin_task(net, STREAM[1])
    with torch.no_grad():
        layer.logits(1).fill_(1.0)
        layer.adaptive.zero_()
        net.heads[1].weight.fill_(1.0)
    assert method.memory_bytes() == 2 * (4 + 8) + 4 * 8  # and σ' within a task
    method.end_task(net, STREAM[1], None)
    assert method.stored_parameters(net) == 7 + 1 + 2
    assert layer.own[0].value.tolist() == pytest.approx([-0.26 + 0.005, 1 - 0.005])  # κ = 0.005
    assert len(layer.own[1].value) == 0


def test_a_state_from_the_middle_of_a_task_resumes_alike():
    running = start()
    running.learn(0)
    learn(running, 1)  # not ended
    state = running.method.state_dict()
    weights = {name: value.clone() for name, value in running.net.state_dict().items()}
    assert running.method.memory_bytes() > sum(
        layer.weight.nbytes for layer in running.method.layers.values()
    )
    net = networks.build("mlp", STREAM.input_shape, 5, width=12)
    net.add_task(2)
    again = methods.make("apd", **running.plan.method.model_dump())
    again.wrap(net, STREAM, 1)
    net.add_task(2)
    net.double()
    again.load_state_dict(state, net)
    net.load_state_dict(weights)
    assert again.memory_bytes() == running.method.memory_bytes()
    for model, method in ((running.net, running.method), (net, again)):
        method.begin_task(model, STREAM[1])  # which has begun already
        assert torch.equal(method.layers["fc1"].adaptive, weights["trunk.fc1.adaptive"])
        assert not torch.equal(method.layers["fc1"].adaptive, method.layers["fc1"].weight)
        fit(model, method, [STREAM[1]], running.plan.training, seed=2)
        method.end_task(model, STREAM[1], None)
    for left, right in zip(running.net.parameters(), net.parameters(), strict=True):
        assert torch.equal(left, right)
    for name, layer in again.layers.items():
        for left, right in zip(layer.own, running.method.layers[name].own, strict=True):
            assert torch.equal(left.value, right.value)


def test_networks_with_convolutions_keep_old_outputs():
    running = start(stream=SMALL, network="lenet5", epochs=1)
    running.learn(0)
    before = thetas(running, 0)
    running.learn(1)
    assert set(before) == {"conv1", "conv2", "fc1", "fc2"}
    for name, theta in thetas(running, 0).items():
        assert (theta - before[name]).abs().max() <= 6e-6 + 6e-4 + 1e-12


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ({"lambda2": 0}, "lambda2"),
        ({"sparsity": -1}, "sparsity"),
        ({"threshold": -0.1}, "threshold"),
        ({"lambda1": 1, "sparsity": 1}, "same"),
    ],
)
def test_bad_settings_are_refused_in_one_line(values, word):
    with pytest.raises(UserError, match=word) as caught:
        APD(**values)
    assert "\n" not in str(caught.value)


def test_layers_that_cannot_be_decomposed_are_refused_by_name():
    with torch.random.fork_rng():
        net = Network(nn.Sequential(nn.Conv1d(2, 3, 1), nn.Flatten()), 3)
    net.add_task(2)
    with pytest.raises(UserError, match=r"'0' \(Conv1d\)"):
        APD().wrap(net, STREAM, 1)
