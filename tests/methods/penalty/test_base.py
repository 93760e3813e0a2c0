"""The pull to the anchor: an implicit step of a quadratic penalty."""

import copy

import pytest
import torch
from torch import nn

from classgrad import methods
from classgrad.errors import UserError
from classgrad.methods import EWC, MAS, METHODS, SI
from classgrad.methods.penalty.base import Anchored, inverse_step_size
from classgrad.networks import build
from classgrad.networks.network import Network
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.config import Training
from oracles.models import normal
from streams import blobs, step_of

STREAM = blobs(tasks=3, classes=2, shape=(1, 4, 4), per_class=8)
PENALTIES = [name for name, method in METHODS.items() if issubclass(method, Anchored)]
QUICK = {"epochs": 3, "batch_size": 8, "learning_rate": 0.05, "momentum": 0.5, "warmup": 0}
CURVATURE, GOAL = normal(2, 3, seed=1).square() + 0.5, normal(2, 3, seed=2)
ANCHOR, OMEGA = normal(2, 3, seed=3), normal(2, 3, seed=4).square()


def toy(method):
    """One weight matrix whose loss is ½ Σ a (θ - b)², and a method that pulls it."""
    net = Network(nn.Linear(3, 2, bias=False), 2).double()
    with torch.no_grad():
        net.trunk.weight.copy_(normal(2, 3, seed=5))
    method.keep({"weight": ANCHOR}, {"weight": OMEGA})
    return net, net.trunk.weight


def descend(net, weight, method, optimizer, steps):
    step = step_of(STREAM[0], optimizer)
    for _ in range(steps):
        weight.grad = CURVATURE * (weight.detach() - GOAL)
        method.adjust_gradients(net, step)
        optimizer.step()
        Anchored.after_step(method, net, step)


@pytest.fixture(autouse=True)
def no_global_draw():
    """Constructors of layers draw from the global generator."""
    with torch.random.fork_rng(devices=[]):
        yield


@pytest.mark.parametrize("strength", [0.3, 1e3])
@pytest.mark.parametrize(("method", "second"), [(EWC, 1), (MAS, 2), (SI, 2)])
@pytest.mark.parametrize("momentum", [{}, {"momentum": 0.8}, {"momentum": 0.8, "nesterov": True}])
def test_weights_come_to_rest_at_the_minimum_of_the_penalised_loss(
    method, second, momentum, strength
):
    method = method(strength=strength)
    net, weight = toy(method)
    descend(net, weight, method, torch.optim.SGD([weight], lr=0.2, **momentum), 400)
    pull = second * strength * OMEGA
    wanted = (CURVATURE * GOAL + pull * ANCHOR) / (CURVATURE + pull)
    assert torch.allclose(weight.detach(), wanted, rtol=0, atol=1e-9)
    assert not torch.allclose(wanted, ANCHOR, rtol=0, atol=1e-6)
    assert not torch.allclose(wanted, GOAL, rtol=0, atol=1e-2)


@pytest.mark.parametrize(("method", "second"), [(EWC, 1), (MAS, 2)])
def test_a_small_step_is_the_gradient_step_of_the_penalty_to_first_order(method, second):
    errors = []
    for rate in (1e-3, 1e-4):
        pulled = method(strength=0.7)
        net, weight = toy(pulled)
        before = weight.detach().clone()
        penalty = second / 2 * 0.7 * (OMEGA * (weight - ANCHOR).square()).sum()
        (slope,) = torch.autograd.grad(penalty, weight)
        explicit = before - rate * (CURVATURE * (before - GOAL) + slope)
        descend(net, weight, pulled, torch.optim.SGD([weight], lr=rate), 1)
        errors.append(float((weight.detach() - explicit).norm()))
    assert 80 < errors[0] / errors[1] < 120


@pytest.mark.parametrize("strength", [1e12, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_strength_overshoots(strength, dtype):
    method = EWC(strength=strength)
    net, weight = toy(method)
    net.to(dtype)
    importance = torch.tensor([[1.0, 0.0, 1e-3], [1.0, 0.0, 1.0]], dtype=dtype)
    method.keep({"weight": ANCHOR.to(dtype)}, {"weight": importance})
    free = weight.detach().clone()
    with torch.no_grad():
        weight.add_(5)
    Anchored.after_step(method, net, step_of(STREAM[0], torch.optim.SGD([weight], lr=0.1)))
    assert weight.isfinite().all()
    assert torch.allclose(weight[:, [0, 2]], ANCHOR.to(dtype)[:, [0, 2]], rtol=0, atol=1e-6)
    assert torch.equal(weight[:, 1], free[:, 1] + 5)


def test_the_pull_is_exact_at_the_anchor_and_without_rate_or_strength():
    method = EWC(strength=3.0)
    net, weight = toy(method)
    for values, rate in (({"strength": 1e30}, 0.0), ({"strength": 0.0}, 0.1)):
        other = method.replace(**values)
        other.keep({"weight": ANCHOR}, {"weight": 1e300 * OMEGA})  # times 1e30: infinite
        before = weight.detach().clone()
        Anchored.after_step(other, net, step_of(STREAM[0], torch.optim.SGD([weight], lr=rate)))
        assert torch.equal(weight, before)
    with torch.no_grad():
        weight.copy_(ANCHOR)
    Anchored.after_step(method, net, step_of(STREAM[0], torch.optim.SGD([weight], lr=0.1)))
    assert torch.equal(weight, ANCHOR)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_with_adam_too_weights_come_to_rest_at_the_minimum_of_the_penalised_loss(kind):
    method = MAS(strength=0.7)
    net, weight = toy(method)
    for rate in (1e-2, 1e-2, 1e-3, 1e-4):
        optimizer = kind([weight], lr=rate, weight_decay=0)
        descend(net, weight, method, optimizer, 400)
    wanted = (CURVATURE * GOAL + 1.4 * OMEGA * ANCHOR) / (CURVATURE + 1.4 * OMEGA)
    assert torch.allclose(weight.detach(), wanted, rtol=0, atol=1e-3)


def test_the_rate_is_how_far_a_gradient_of_1_moves_a_weight_in_the_long_run():
    for training in (
        Training(optimizer="sgd", learning_rate=0.1),
        Training(optimizer="sgd", learning_rate=0.1, momentum=0.75),
        Training(optimizer="sgd", learning_rate=0.1, momentum=0.75, nesterov=True),
        Training(optimizer="adam", learning_rate=0.1, momentum=0.75),
        Training(optimizer="adamw", learning_rate=0.1),
    ):
        weight = nn.Parameter(torch.zeros(1, dtype=torch.float64))
        optimizer = training.optimizer_for([weight])
        for _ in range(200):
            before = float(weight.detach())
            weight.grad = torch.full_like(weight, 1.0)
            optimizer.step()
        slow = inverse_step_size(optimizer, [weight])
        rate = 1 / (slow if isinstance(slow, float) else float(slow[0]))
        assert before - float(weight.detach()) == pytest.approx(rate, rel=1e-6)


def test_adam_pulls_weights_without_a_gradient_at_the_plain_rate():
    method = EWC(strength=1.0)
    net, weight = toy(method)
    other = nn.Parameter(torch.ones(1))
    start = weight.detach().clone()
    optimizer = torch.optim.Adam([weight, other], lr=0.1)
    other.grad = torch.ones(1)
    optimizer.step()
    Anchored.after_step(method, net, step_of(STREAM[0], optimizer))
    h = 0.1 * OMEGA
    assert torch.allclose(weight, (start + h * ANCHOR) / (1 + h), rtol=1e-12, atol=0)


def test_shared_parameters_leave_out_what_belongs_to_one_task():
    for options, wanted in (
        ({}, {"fc1.weight", "bn1.scale_0", "bn1.shift_0"}),
        ({"affine": "task"}, {"fc1.weight"}),
        (
            {"heads": "shared"},
            {"trunk.fc1.weight", "trunk.bn1.scale_0", "trunk.bn1.shift_0", "heads.0.weight"},
        ),
    ):
        net = build("mlp", (4,), depth=1, batch_norm=True, **options)
        for _ in range(2):
            net.add_task(2)
        assert net.shared_parameters().keys() == wanted


OPTIONS = [
    {},
    {"heads": "shared"},
    {"batch_norm": True, "affine": "task"},
    {"batch_norm": True, "norm": "stored"},
    {"batch_norm": True, "norm": "stored", "affine": "task", "heads": "shared"},
]


def started(name, options, **values):
    values = {**QUICK, "width": 6, **options, **values}
    return Run(make_plan(STREAM, name, network="mlp", values=values), STREAM)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", PENALTIES)
def test_enormous_strength_keeps_what_tasks_share_and_leaves_the_rest_free(name, options):
    """With importance everywhere; IMM has it by itself."""
    running = started(name, options, strength=1e30)
    running.learn(0)
    method, net = running.method, running.net
    method._importance = {n: torch.ones_like(p) for n, p in method.importance.items()}
    before = {n: p.detach().clone() for n, p in net.shared_parameters().items()}
    old = {id(p) for p in net.parameters()}
    running.learn(1)
    for label, parameter in net.shared_parameters().items():
        assert torch.allclose(parameter, before[label], rtol=0, atol=1e-6), label
    fresh = [p for p in net.parameters() if id(p) not in old]
    own = 2 * 2 * (options.get("affine") == "task") + (options.get("heads") != "shared")
    assert len(fresh) == own
    start = started(name, options)
    start.net.add_task(2)
    assert all(p.isfinite().all() for p in fresh)
    if options.get("heads") != "shared":
        assert not torch.equal(net.heads[1].weight, start.net.heads[1].weight)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("name", PENALTIES)
def test_training_resumes_from_a_state_in_the_middle_of_a_task(name, options):
    running = started(name, options)
    running.learn(0)
    running.net.add_task(2)
    running.method.begin_task(running.net, STREAM[1])
    optimizer = torch.optim.SGD(running.net.parameters(), lr=0.1)
    steps = [step_of(STREAM[1], optimizer, torch.arange(k, k + 6)) for k in (0, 5, 10)]

    def go(method, net, steps):
        for step in steps:
            optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
            step = step_of(step.task, optimizer, step.index)
            net.train()
            loss = method.loss(net, step)
            optimizer.zero_grad()
            loss.backward()
            method.adjust_gradients(net, step)
            optimizer.step()
            method.after_step(net, step)

    go(running.method, running.net, steps[:2])
    state, net = running.method.state_dict(), copy.deepcopy(running.net)
    kept = copy.deepcopy(state)
    again = methods.make(name, **running.plan.method.model_dump())
    again.load_state_dict(state, net)
    for method, model in ((running.method, running.net), (again, net)):
        go(method, model, steps[2:])
        method.end_task(model, STREAM[1], torch.Generator().manual_seed(1))
    same(running.net.state_dict(), net.state_dict())
    same(running.method.state_dict(), again.state_dict())
    same(state, kept)  # a state is not changed by what comes after it


def same(left, right):
    assert left.keys() == right.keys()
    for key, value in left.items():
        if isinstance(value, dict):
            same(value, right[key])
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, right[key]), key
        else:
            assert value == right[key]


@pytest.mark.parametrize("name", PENALTIES)
def test_old_own_parameters_stay_and_all_that_is_kept_is_counted(name):
    running = started(name, {"batch_norm": True, "affine": "task"})
    running.learn(0)
    old = running.net.trunk.bn1.scale_0.detach().clone()
    running.learn(1)
    assert torch.equal(running.net.trunk.bn1.scale_0, old)
    assert not torch.equal(running.net.trunk.bn1.scale_1, old)
    shared = sum(p.nbytes for p in running.net.shared_parameters().values())
    copies = {"imm": 3}.get(name, 2)  # θ* and Ω; for IMM θ of the last task, merged θ and Σ F
    beside = 4 * 2 * (name == "imm")  # one number per parameter tensor
    assert running.method.memory_bytes() == copies * shared + beside


@pytest.mark.parametrize("name", PENALTIES)
def test_bad_settings_are_refused_in_one_line(name):
    letter = "c" if name == "si" else "lambda"
    assert methods.make(name, **{letter: 2.5}).strength == 2.5
    bad = ({letter: -1}, {letter: 1e31}, {"strength": float("nan")}, {letter: 1, "strength": 1})
    for values in bad:
        with pytest.raises(UserError) as error:
            methods.make(name, **values)
        assert "\n" not in str(error.value)
