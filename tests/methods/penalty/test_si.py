"""The path integral of SI is the fall of the loss, and its importance that of a plain loop."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad.errors import UserError
from classgrad.methods import SI
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.config import Training
from classgrad.training.loop import fit, validation_loss
from oracles.sensitivities import later_loss
from streams import blobs

STREAM = blobs(tasks=2, classes=2, shape=(1, 4, 4), per_class=6)


def started(method, **options):
    values = {"width": 6, **options}
    running = Run(make_plan(STREAM, method, network="mlp", values=values), STREAM)
    running.net.double()
    return running


def entropy(net, task):
    x = task.transform(task.train.unit_images(slice(None), torch.float64))
    return functional.cross_entropy(net(x, task.id), task.train.labels)


def full_batch(rate, epochs, **values):
    return Training(
        learning_rate=rate, epochs=epochs, batch_size=1000, schedule="constant", **values
    )


def begun(running, number):
    """Add what task `number` owns and let the method begin it."""
    if number:
        running.net.add_task(STREAM[number].classes)
    running.method.begin_task(running.net, STREAM[number])


@pytest.mark.parametrize("number", [0, 1])
def test_the_path_adds_up_to_the_fall_of_the_loss(number):
    """In the second task too, where the pull to the anchor is part of the movement."""
    errors = []
    for finer in (1, 4):
        running = started(SI(c=20.0, xi=1e-3), heads="shared")
        net, method = running.net, running.method
        net.trunk.relu1 = net.trunk.relu2 = nn.Tanh()  # smooth, so that small steps have an order
        if number:
            begun(running, 0)
            fit(net, method, [STREAM[0]], full_batch(0.1, 60), seed=1)
            method.end_task(net, STREAM[0], torch.Generator())
        begun(running, number)
        before = float(entropy(net, STREAM[number]).detach())
        fit(net, method, [STREAM[number]], full_batch(0.1 / finer, 60 * finer), seed=1)
        fall = before - float(entropy(net, STREAM[number]).detach())
        total = sum(float(path.sum()) for path in method.state_dict()["path"].values())
        errors.append(abs(total - fall))
        assert fall > 0.02
    assert errors[0] < 0.02 * fall
    assert 3.5 < errors[0] / errors[1] < 4.6


def plain_loop(net, task, state, c, xi, rate, momentum, epochs):
    """SI from its equations with gradient descent on all samples, one parameter at a time."""
    shared = net.shared_parameters()
    moving = [*net.trunk.parameters(), *net.head_parameters(task.id)]
    moving = list({id(p): p for p in moving}.values())
    path = {name: torch.zeros_like(p) for name, p in shared.items()}
    start = {name: p.detach().clone() for name, p in shared.items()}
    speed = {id(p): torch.zeros_like(p) for p in moving}
    for _ in range(epochs):
        net.train()
        actual = torch.autograd.grad(entropy(net, task), moving, allow_unused=True)
        slopes = {id(p): g for p, g in zip(moving, actual, strict=True) if g is not None}
        for p in moving:
            if id(p) not in slopes:
                continue
            old = p.detach().clone()
            speed[id(p)] = momentum * speed[id(p)] + slopes[id(p)]
            new = old - rate * speed[id(p)]
            label = next((name for name, q in shared.items() if q is p), None)
            if label in state:
                omega, anchor = state[label]
                h = rate / (1 - momentum) * 2 * c * omega
                new = (new + h * anchor) / (1 + h)
            if label is not None:
                path[label] -= slopes[id(p)] * (new - old)
            p.data.copy_(new)
    result = {}
    for name, p in shared.items():
        omega = state[name][0] if name in state else 0
        omega = omega + path[name] / ((p.detach() - start[name]) ** 2 + xi)
        result[name] = (torch.relu(omega), p.detach().clone())
    return result


@pytest.mark.parametrize("momentum", [0.0, 0.6])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"heads": "shared"},
        {"batch_norm": True},
        {"batch_norm": True, "norm": "stored", "affine": "task"},
    ],
    ids=str,
)
def test_importance_over_two_tasks_is_that_of_a_plain_loop(options, momentum):
    running, other = started(SI(c=3.0, xi=0.01), **options), started(SI(), **options)
    state = {}
    for number, task in enumerate(STREAM):
        begun(running, number)
        training = full_batch(0.1, 12, momentum=momentum)
        fit(running.net, running.method, [task], training, seed=1)
        running.method.end_task(running.net, task, torch.Generator())
        if number:
            other.net.add_task(task.classes)
        state = plain_loop(other.net, task, state, 3.0, 0.01, 0.1, momentum, 12)
        assert running.method.importance.keys() == state.keys()
        for name, (omega, weights) in state.items():
            assert torch.allclose(running.method.importance[name], omega, rtol=1e-7, atol=1e-10)
            assert torch.allclose(running.method.anchor[name], weights, rtol=1e-8, atol=1e-10)
            assert omega.any()


def test_the_path_ends_at_the_weights_that_a_schedule_goes_back_to():
    """A plateau ends with the weights of its best epoch, so as if trained only up to it."""
    rate, epochs = 1.5, 12

    def learnt(schedule, count):
        running = started(SI(xi=0.01))
        begun(running, 0)
        training = full_batch(rate, count).replace(schedule=schedule, patience=100)
        fit(running.net, running.method, [STREAM[0]], training, seed=1)
        loss = validation_loss(running.net, [STREAM[0]], 1000)
        running.method.end_task(running.net, STREAM[0], torch.Generator())
        return loss, running.method

    losses = [learnt("constant", count + 1)[0] for count in range(epochs)]
    best = losses.index(min(losses)) + 1
    assert 1 < best < epochs
    result, wanted = learnt("plateau", epochs)[1], learnt("constant", best)[1]
    for name in wanted.anchor:
        assert torch.equal(result.anchor[name], wanted.anchor[name])
        assert torch.equal(result.importance[name], wanted.importance[name])
    assert result.state_dict()["best_path"] == {}


def test_negative_paths_take_from_earlier_importance_but_not_below_zero():
    running = started(SI(xi=0.5), depth=1)
    method, net = running.method, running.net
    weight = net.trunk.fc1.weight
    method.begin_task(net, STREAM[0])
    method._path["fc1.weight"] = torch.full_like(weight, 1.0)
    with torch.no_grad():
        weight.add_(0.5)
    method.end_task(net, STREAM[0], torch.Generator())
    assert torch.allclose(method.importance["fc1.weight"], torch.full_like(weight, 1 / 0.75))
    assert method.state_dict()["path"] == {}
    method.begin_task(net, STREAM[0])
    method._path["fc1.weight"][0] = -0.5
    method._path["fc1.weight"][1] = -5.0
    method.end_task(net, STREAM[0], torch.Generator())
    actual = method.importance["fc1.weight"]
    assert torch.allclose(actual[0], torch.full_like(actual[0], 1 / 0.75 - 1))
    assert torch.equal(actual[1], torch.zeros_like(actual[1]))
    assert torch.allclose(actual[2], torch.full_like(actual[2], 1 / 0.75))


def test_adam_and_weight_decay_move_weights_but_g_is_of_the_loss():
    running = started(SI(c=0.0), heads="shared")
    begun(running, 0)
    training = full_batch(2e-3, 60, optimizer="adam", weight_decay=0.01)
    before = float(entropy(running.net, STREAM[0]).detach())
    fit(running.net, running.method, [STREAM[0]], training, seed=1)
    fall = before - float(entropy(running.net, STREAM[0]).detach())
    total = sum(float(path.sum()) for path in running.method.state_dict()["path"].values())
    assert total == pytest.approx(fall, rel=0.05)


def test_forgets_less_than_without_it():
    stream = blobs(tasks=3, classes=3, shape=(1, 4, 4), per_class=16, seed=2)
    assert later_loss(stream, SI(strength=1, damping=0.01)) < 0.7 * later_loss(
        stream, SI(strength=0)
    )


@pytest.mark.parametrize("values", [{"xi": 0}, {"damping": -1.0}, {"samples": 5}])
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError) as error:
        SI(**values)
    assert "\n" not in str(error.value)
