"""APD(2): what moves to a common part and what stays, by hand; k-means against plain Lloyd."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from classgrad import methods
from classgrad.errors import UserError
from classgrad.methods import APD, APD2
from classgrad.methods.structure.apd import Sparse, make_decomposed
from classgrad.methods.structure.apd2 import consolidate, k_means, products, split
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.loop import fit
from streams import blobs

STREAM = blobs(tasks=4, classes=2, shape=(1, 4, 4), per_class=8)
QUICK = {"epochs": 6, "batch_size": 8, "learning_rate": 0.03, "momentum": 0.8, "warmup": 0}
QUICK |= {"start": "shared"}  # parts with many entries


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def layer_with(parts):
    """A layer of one output whose finished tasks have these parts."""
    with torch.random.fork_rng():
        layer = nn.Linear(parts[0].shape[1], 1, bias=False).double()
    make_decomposed(layer)
    for part in parts:
        layer.own.append(Sparse.of(part))
        layer.common.append(None)
        layer.add_task()
    return layer


def start(**values):
    plan = make_plan(STREAM, "apd2", network="mlp", values={**QUICK, "width": 12, **values})
    running = Run(plan, STREAM)
    running.net.double()
    return running


def test_what_is_nearly_the_same_in_a_group_moves_to_the_middle():
    a = row(1.0, 0.500, 0.0, 0.004, 0.0, 2.0)
    b = row(1.0, 0.508, 0.0, 0.000, 3.0, 2.02)
    common, (left, right) = split([Sparse.of(a), Sparse.of(b)], 0.01, a)
    assert common.index.tolist() == [0, 1, 3]
    assert common.value.tolist() == pytest.approx([1.0, 0.504, 0.002], abs=1e-12)
    assert (left.index.tolist(), left.value.tolist()) == ([5], [2.0])
    assert (right.index.tolist(), right.value.tolist()) == ([4, 5], [3.0, 2.02])


def test_groups_of_a_layer_by_hand():
    near, far = row(1.0, 2.0, 0.0, 4.0), row(-5.0, 0.0, 7.0, 0.0)
    step = row(0.006, 0.0, 0.0, 1.0)
    layer = layer_with([near, far, near + step, far, row(100.0, 0.0, 0.0, 0.0)])
    before = [layer.tau(task) for task in range(5)]
    consolidate(layer, 0.6, 0.01, good_start(before))
    assert layer.common[0] is layer.common[2]
    assert layer.common[1] is layer.common[3]
    assert layer.common[4] is None  # alone: keeps all it has
    assert layer.common[0].value.tolist() == pytest.approx([1.003, 2.0])
    assert layer.common[1].value.tolist() == [-5.0, 7.0]
    assert [part.value.tolist() for part in layer.own] == [[4.0], [], [5.0], [], [100.0]]
    for task, tau in enumerate(before):
        assert (layer.tau(task) - tau).abs().max() <= 0.005 + 1e-12
    # Grouped again, the common parts count as parts of their tasks.
    again = [layer.tau(task) for task in range(5)]
    consolidate(layer, 0.6, 0.01, good_start(again))
    for task, tau in enumerate(again):
        assert torch.equal(layer.tau(task), tau)


def good_start(parts):
    """A generator with which k-means ends in the groups above."""
    gram = products([Sparse.of(part) for part in parts], parts[0])
    for seed in range(50):
        groups = k_means(gram, 3, rng(seed))
        if groups[0] == groups[2] != groups[1] == groups[3] and groups[4] not in groups[:4]:
            return rng(seed)
    raise AssertionError("no start finds the groups")


def test_a_task_that_ends_up_alone_gets_back_what_it_shared():
    layer = layer_with([row(1.0, 2.0), row(1.0, 3.0)])
    consolidate(layer, 0.5, 0.01, rng())
    assert [part.value.tolist() for part in layer.own] == [[2.0], [3.0]]
    consolidate(layer, 1.0, 0.01, rng())
    assert layer.common == [None, None]
    assert [part.value.tolist() for part in layer.own] == [[1.0, 2.0], [1.0, 3.0]]


def test_a_group_without_points_gets_none():
    x = torch.tensor([[1.0], [1.0], [-1.0]], dtype=torch.float64)
    seed = next(s for s in range(99) if torch.randperm(3, generator=rng(s))[2] == 2)
    assert k_means(x @ x.T, 2, rng(seed)) == [0, 0, 0]


def test_groups_equal_those_of_plain_lloyd():
    sizes = set()
    for seed in range(100):
        draws = np.random.default_rng(seed)
        points, count = int(draws.integers(2, 12)), int(draws.integers(1, 5))
        count = min(count, points)
        x = draws.standard_normal((points, 3)) + 3 * draws.integers(0, 3, (points, 1))
        first = torch.randperm(points, generator=rng(seed))[:count].tolist()
        centres, groups = [x[i] for i in first], None
        for _ in range(100):
            away = [[float(((p - c) ** 2).sum()) for c in centres] for p in x]
            nearest = [int(np.argmin(row)) for row in away]
            if nearest == groups:
                break
            groups = nearest
            for g in range(count):
                inside = [x[i] for i in range(points) if groups[i] == g]
                centres[g] = np.mean(inside, axis=0) if inside else np.full(3, np.inf)
        parts = [Sparse.of(torch.from_numpy(p)[None]) for p in x]
        gram = products(parts, torch.zeros(1, 3, dtype=torch.float64))
        assert np.abs(gram.numpy() - x @ x.T).max() < 1e-12
        assert k_means(gram, count, rng(seed)) == groups, seed
        sizes.add(len(set(groups)))
    assert sizes >= {1, 2, 3, 4}


def test_weights_change_by_half_of_the_spread_at_most_and_less_is_stored():
    running = start(consolidate_every=2, clusters=0.5, spread=0.05, threshold=0.0, sparsity=1e-3)
    running.learn(0)
    running.net.add_task(2)
    running.method.begin_task(running.net, STREAM[1])
    fit(running.net, running.method, [STREAM[1]], running.plan.training, seed=1)
    plain = copy.deepcopy((running.method, running.net))
    other = APD(**{n: getattr(running.method, n) for n in APD.model_fields})
    other.load_state_dict(plain[0].state_dict(), plain[1])
    other.end_task(plain[1], STREAM[1], rng())
    running.method.end_task(running.net, STREAM[1], rng())
    for name, layer in running.method.layers.items():
        assert layer.common[0] is layer.common[1] is not None
        for task in range(2):
            change = layer.tau(task) - other.layers[name].tau(task)
            assert 0 < change.abs().max() <= 0.025 + 1e-12
    fewer = other.stored_parameters(plain[1]) - running.method.stored_parameters(running.net)
    assert fewer > 0
    assert running.method.memory_bytes() < other.memory_bytes()


def test_every_few_tasks_and_as_many_groups_as_asked_for():
    running = start(consolidate_every=2, clusters=0.5)
    grouped = []
    for number in range(4):
        running.learn(number)
        layer = running.method.layers["fc1"]
        grouped.append([part is not None for part in layer.common])
        assert len({id(part) for part in layer.common if part is not None}) <= 2
    assert grouped[0] == [False]
    assert grouped[1] == [True, True]
    assert grouped[2] == [True, True, False]
    assert any(grouped[3])


def test_capacity_counts_a_common_part_once():
    near = row(1.0, 2.0, 0.0, 4.0)
    layer = layer_with([near, near + row(0.0, 0.0, 0.0, 1.0)])
    consolidate(layer, 0.4, 0.01, rng())
    method = APD2()
    method.layers["0"] = layer
    with torch.no_grad():
        layer.weight.fill_(1.0)  # four
        for task in range(3):
            layer.logits(task).fill_(1.0)  # three
    # Two common entries, and one of each task.
    assert method.stored_parameters(layer) == 4 + 3 + 2 + 2
    assert method.memory_bytes() == (2 + 2) * (4 + 8)


def test_the_state_keeps_groups_and_old_weights_follow_with_their_common_part():
    running = start(consolidate_every=2, clusters=0.5, spread=0.05, threshold=0.0)
    running.learn(0)
    running.learn(1)
    net = copy.deepcopy(running.net)
    again = methods.make("apd2", **running.plan.method.model_dump())
    again.wrap(net, STREAM, 1)
    again.load_state_dict(running.method.state_dict(), net)
    before = {n: [layer.tau(t) for t in range(2)] for n, layer in again.layers.items()}
    sigmas = {n: layer.weight.detach().clone() for n, layer in again.layers.items()}
    for name, layer in again.layers.items():
        assert layer.common[0] is layer.common[1]
        for task in range(2):
            assert torch.equal(before[name][task], running.method.layers[name].tau(task))
    net.add_task(2)
    again.begin_task(net, STREAM[2])
    fit(net, again, [STREAM[2]], running.plan.training, seed=1)
    again.end_task(net, STREAM[2], rng())
    bound = again.sparsity / again.retention + 1e-12
    for name, layer in again.layers.items():
        assert not torch.equal(layer.weight, sigmas[name])
        for task in range(2):
            theta = layer.weight * layer.mask(task) + layer.tau(task)
            star = sigmas[name] * layer.mask(task) + before[name][task]
            assert (theta - star).abs().max() <= bound


@pytest.mark.parametrize("values", [{"clusters": 0}, {"consolidate_every": 0}, {"spread": -1}])
def test_bad_settings_are_refused_in_one_line(values):
    with pytest.raises(UserError, match=next(iter(values))) as caught:
        APD2(**values)
    assert "\n" not in str(caught.value)
