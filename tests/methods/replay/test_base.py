"""What replay methods share: passes with enough samples, and steps that spare the memory."""

import numpy as np
import pytest
import torch

from oracles.replay import backward, begun_step, flat, learnt, mean_gradient, permuted
from streams import step_of

NORMED = {"batch_norm": True}


@pytest.mark.parametrize("name", ["er", "agem", "gem"])
@pytest.mark.parametrize(("memory", "fewest"), [(90, 32), (40, 20)])
def test_a_pass_through_batch_norm_has_32_samples_or_all_that_are_kept(name, memory, fewest):
    run = learnt(name, permuted()[0], 2, memory=memory, memory_batch=8, **NORMED)
    passes = []
    run.net.trunk.bn1.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    step = begun_step(run, 2, torch.arange(16))
    backward(run, step)
    run.method.adjust_gradients(run.net, step)
    assert passes.pop(0) == 16  # the current batch
    if name == "er":  # a uniform sample of all tasks, so the shares differ
        fewest = min(32, *(len(part) for part in run.method._memory.parts.values()))
    assert passes
    assert min(passes) >= fewest


@pytest.mark.parametrize("name", ["er", "agem", "gem"])
def test_without_batch_norm_as_many_are_drawn_as_asked_for(name):
    run = learnt(name, permuted()[0], 2, memory=96, memory_batch=8)
    passes = []
    run.net.trunk.fc1.register_forward_pre_hook(lambda _, given: passes.append(len(given[0])))
    step = begun_step(run, 2, torch.arange(16))
    backward(run, step)
    run.method.adjust_gradients(run.net, step)
    assert passes == ([16, 8, 8] if name == "gem" else [16, 4, 4])


def test_samples_drawn_for_the_statistics_alone_do_not_raise_the_weight_of_the_memory():
    run = learnt("er", permuted()[0], 1, memory=48, memory_batch=8, **NORMED)
    run.method.bn_samples = 1000  # all that are kept
    step = begun_step(run, 1, torch.arange(24))
    kept = run.method._memory.parts[0]
    current = torch.nn.functional.cross_entropy(run.net(step.x, 1), step.y)
    x = run.stream[0].transform(kept.unit_images(slice(None), torch.float64))
    replayed = torch.nn.functional.cross_entropy(run.net(x, 0), kept.labels)
    expected = (24 * current + 8 * replayed) / (24 + 8)
    assert backward(run, step) == pytest.approx(expected.item(), rel=1e-12)


OPTIMIZERS = {
    "plain": lambda p: torch.optim.SGD(p, lr=0.05),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1),
    "adam": lambda p: torch.optim.Adam(p, lr=0.005),
}


def worst_step(name, optimizer, constrain):
    """The largest first-order rise of the loss of a memory's task (A-GEM: of their mean)."""
    stream, _ = permuted()
    # Without a margin, which would keep most steps far from the constraints.
    values = {"memory_batch": 0, "margin": 0} if name == "gem" else {"memory_batch": 1000}
    values |= {"memory": 24, "constrain": constrain}
    run = learnt(name, stream, 2, learning_rate=0.1, epochs=6, **values)
    parameters = list(run.method.parameters(run.net, [stream[2]]))
    optimizer = OPTIMIZERS[optimizer](parameters)
    run.net.train()
    rises, kept = [], run.method._memory.parts
    for number in range(30):
        index = torch.randperm(48, generator=torch.Generator().manual_seed(number))[:6]
        step = step_of(stream[2], optimizer, index)
        rows = np.stack([mean_gradient(run.net, kept[t], t, stream[t].transform) for t in (0, 1)])
        rows = rows.mean(0, keepdims=True) if name == "agem" else rows
        before = flat(run.net, {n: p.detach().clone() for n, p in run.net.named_parameters()})
        backward(run, step)
        run.method.adjust_gradients(run.net, step)
        optimizer.step()
        run.method.after_step(run.net, step)
        moved = flat(run.net, {n: p.detach() for n, p in run.net.named_parameters()}) - before
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(moved)
        rises.append((rows @ moved / lengths).max())
    return max(rises)


@pytest.mark.parametrize("name", ["agem", "gem"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_step_raises_the_loss_of_the_memory_to_first_order(name, optimizer):
    assert worst_step(name, optimizer, "step") < 1e-9


@pytest.mark.parametrize("name", ["agem", "gem"])
@pytest.mark.parametrize("optimizer", ["momentum", "decay", "adam"])
def test_the_step_of_a_corrected_gradient_can_raise_it(name, optimizer):
    assert worst_step(name, optimizer, "gradient") > 1e-3
