"""DEN against plain loops: growth, timestamps, selection, proximal steps, splits, and counting."""

import copy
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from classgrad import methods, networks
from classgrad.errors import UserError
from classgrad.methods import DEN
from classgrad.methods.structure.den import (
    drop_zeros,
    loss_of,
    reached,
    shrink_groups_,
    soft_threshold_,
    split,
)
from classgrad.methods.structure.growing import grow, make_growing, resize, units, width, wires
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.config import Training
from classgrad.training.loop import fit
from streams import blobs, step_of

FLAT = blobs(tasks=3, classes=2, shape=(1, 4, 4), per_class=6)
SMALL = blobs(tasks=2, classes=2, shape=(1, 8, 8), per_class=6)
IMAGES = blobs(tasks=2, classes=2, shape=(3, 20, 20), per_class=6)
DIGITS = blobs(tasks=1, classes=10, shape=(1, 8, 8), per_class=20)
PICTURES = blobs(tasks=1, classes=5, shape=(3, 16, 16), per_class=20)
QUICK = {"epochs": 3, "batch_size": 4, "learning_rate": 0.05, "warmup": 0}
NETWORKS = [
    ("mlp", FLAT, {"width": 6}),
    ("mlp", FLAT, {"width": 6, "batch_norm": True, "norm": "stored"}),
    ("mlp", FLAT, {"width": 6, "batch_norm": True, "norm": "stored", "affine": "task"}),
    ("lenet5", SMALL, {}),
    ("alexnet5", IMAGES, {"norm": "stored"}),
]


def growing(network="mlp", stream=FLAT, *, tasks=2, **options):
    net = networks.build(network, stream.input_shape, 1, **options).double()
    net.add_task(2)
    make_growing(net, "den")
    for _ in range(tasks - 1):
        net.add_task(2)
    return net


def answers(net, stream, task):
    net.eval()
    with torch.no_grad():
        return net(stream.test(0).unit_images(slice(0, 10), next(net.parameters()).dtype), task)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("network", "stream", "options"), NETWORKS)
def test_new_units_leave_the_outputs_for_old_tasks_bit_for_bit(network, stream, options):
    net = growing(network, stream, **options).float()
    before, now = answers(net, stream, 0), answers(net, stream, 1)
    old = width(net)
    grow(net, dict.fromkeys(old, 3), rng())
    assert width(net) == {target: number + 3 for target, number in old.items()}
    assert torch.equal(answers(net, stream, 0), before)
    if network == "mlp":  # local response normalisation sees new neighbours
        torch.testing.assert_close(answers(net, stream, 1), now)
    with torch.no_grad():
        for wire, layer, _ in wires(net):
            layer.weight[old[wire.target] :] = 7.0
            if wire.source:
                seen = layer.weight.shape[1] // width(net)[wire.source] * old[wire.source]
                layer.weight[:, seen:] = -3.0
        net.head_parameters(1)[0][:, -1] = 2.0
    assert torch.equal(answers(net, stream, 0), before)
    assert not torch.allclose(answers(net, stream, 1), now)


def test_a_column_for_each_position_behind_a_flattened_convolution():
    net = growing("lenet5", SMALL)
    conv, fc = net.trunk.conv2, net.trunk.fc1
    positions = fc.weight.shape[1] // 50
    old = fc.weight.detach().clone()
    grow(net, {"relu1": 1, "relu2": 2, "relu3": 3, "relu4": 4}, rng())
    assert tuple(conv.weight.shape) == (52, 21, 5, 5)
    assert tuple(fc.weight.shape) == (803, 52 * positions)
    assert torch.equal(fc.weight[:800, : 50 * positions], old)
    assert (fc.weight[:800, 50 * positions :] == 0).all()
    assert (fc.weight[800:] != 0).all()
    assert net.heads[1].weight.shape[1] == net.embedding == 504
    assert net.heads[0].weight.shape[1] == 500
    net.add_task(2)
    assert net.heads[2].weight.shape[1] == 504


def test_proximal_steps_by_hand():
    values = torch.tensor([0.5, -0.5, 0.2, -0.2, 0.0, 0.3])
    soft_threshold_(values, 0.25)
    assert values.tolist() == pytest.approx([0.25, -0.25, 0, 0, 0, 0.05])
    assert values[2:5].count_nonzero() == 0
    one, two = torch.tensor([[2.0], [0.1], [0.0]]), torch.tensor([[2.0, 1.0], [0.2, 0.2], [0, 0]])
    shrink_groups_([one, two], 1.5)  # norms 3, 0.3 and 0
    assert one.flatten().tolist() == [1.0, 0.0, 0.0]
    assert two.tolist() == [[1.0, 0.5], [0.0, 0.0], [0.0, 0.0]]


def reached_slowly(net):
    """Breadth first, unit by unit, with a queue."""
    layers = wires(net)
    head = net.heads[-1].weight.detach().numpy()
    result = {wire.target: set() for wire, _, _ in layers}
    queue = []
    for output in range(len(head)):
        for column in range(head.shape[1]):
            if head[output, column] != 0:
                positions = head.shape[1] // len(layers[-1][1].weight)
                queue.append((len(layers) - 1, column // positions))
    while queue:
        depth, unit = queue.pop(0)
        wire, layer, _ = layers[depth]
        if unit in result[wire.target]:
            continue
        result[wire.target].add(unit)
        if depth:
            row = layer.weight.detach().numpy()[unit]
            positions = len(row) // len(layers[depth - 1][1].weight)
            queue += [(depth - 1, j // positions) for j in range(len(row)) if np.any(row[j] != 0)]
    return result


@pytest.mark.parametrize(
    ("network", "stream", "share"), [("mlp", FLAT, 0.25), ("lenet5", SMALL, 0.004)]
)
def test_selection_equals_a_search_unit_by_unit(network, stream, share):
    partly = 0
    for seed in range(6 if network == "mlp" else 2):
        net = growing(network, stream, **({"width": 9, "depth": 3} if network == "mlp" else {}))
        with torch.no_grad():
            for p in net.parameters():
                p.mul_(torch.rand(p.shape, generator=rng(seed)) < share)
        result = {t: set(m.nonzero().flatten().tolist()) for t, m in reached(net).items()}
        assert result == reached_slowly(net), seed
        partly += any(0 < len(result[t]) < n for t, n in width(net).items())
    assert partly


def two_islands():
    """Two networks beside each other in one: old tasks use units 0-2, the new one 3-5."""
    net = growing(width=6).float()
    method = DEN(split_threshold=1e9, expansion=0, l1=0.0, group_lasso=0.0)
    method.wrap(net, FLAT, 1)
    with torch.no_grad():
        net.trunk.fc2.weight[:3, 3:] = net.trunk.fc2.weight[3:, :3] = 0
        net.heads[0].weight[:, 3:] = 0
        net.heads[1].weight[:, :3] = 0
    return net, method


@pytest.mark.parametrize(
    "optimiser",
    [{"momentum": 0.9}, {"weight_decay": 0.1}, {"optimizer": "adamw", "weight_decay": 0.1}],
)
def test_old_outputs_keep_their_bits_when_disjoint_units_are_retrained(optimiser):
    net, method = two_islands()
    before, start = answers(net, FLAT, 0), copy.deepcopy(net)
    method._task, method._round = 1, "head"
    method._before = width(net)
    method._old = {f"trunk.{n}": p.detach().clone() for n, p in net.trunk.named_parameters()}
    method._next_round(net, FLAT[1])
    assert method._round == "selected"
    training = Training(**{**QUICK, **optimiser})
    fit(net, method, [FLAT[1]], training, seed=1)
    assert torch.equal(answers(net, FLAT, 0), before)
    moved = net.trunk.fc2.weight != start.trunk.fc2.weight
    assert moved[3:, 3:].all()
    assert not moved[:3].any()
    assert not moved[:, :3].any()
    assert (net.trunk.fc1.weight != start.trunk.fc1.weight).any(1).tolist() == [False] * 3 + [
        True
    ] * 3
    assert not torch.equal(answers(net, FLAT, 1), answers(start, FLAT, 1))


def test_new_units_that_are_exactly_zero_are_gone_from_the_count():
    values = {**QUICK, "width": 6, "group_lasso": 1e6, "split_threshold": 1e9, "loss_threshold": 0}
    running = Run(make_plan(FLAT, "den", values=values), FLAT)
    running.learn(0)
    count = running.method.stored_parameters(running.net)
    running.learn(1)
    assert units(running.net) == {"relu1": [6, 6], "relu2": [6, 6]}
    assert running.method.stored_parameters(running.net) == count + 2 * 6  # the head
    values["group_lasso"] = 0
    kept = Run(make_plan(FLAT, "den", values=values), FLAT)
    kept.learn(0)
    kept.learn(1)
    assert units(kept.net) == {"relu1": [6, 16], "relu2": [6, 16]}


def test_parameters_counted_by_hand():
    net = growing(width=2, tasks=2)
    with torch.no_grad():
        for p in net.parameters():
            p.fill_(1.0)
    method = DEN()
    assert method.stored_parameters(net) == 16 * 2 + 2 * 2 + 2 * (2 * 2)
    grow(net, {"relu1": 1, "relu2": 2}, rng())
    # Rows of new units, 16 and 2 x 3; old units and the head see them by zeros.
    assert method.stored_parameters(net) == 44 - 4 + 4 + 16 + 6
    with torch.no_grad():
        net.trunk.fc2.weight[3] = 0
    drop_zeros(net, {"relu1": 2, "relu2": 2})
    assert units(net) == {"relu1": [2, 3], "relu2": [2, 3]}
    assert method.stored_parameters(net) == 44 + 16 + 3


@pytest.mark.parametrize("options", [{}, {"batch_norm": True, "norm": "stored"}])
def test_a_split_restores_the_old_unit_and_the_task_continues_with_the_copy(options):
    net = growing(width=5, **options)
    before = answers(net, FLAT, 0)
    old = {f"trunk.{n}": p.detach().clone() for n, p in net.trunk.named_parameters()}
    with torch.no_grad():
        net.trunk.fc2.weight[[1, 3]] += 0.3
        if options:
            net.trunk.bn2.scale_0[[1, 3]] += 0.5
    drifted = net.trunk.fc2.weight.detach().clone()
    now = answers(net, FLAT, 1)
    assert not torch.equal(answers(net, FLAT, 0), before)
    drawn_to = split(net, {"relu1": [], "relu2": [3, 1]}, old, width(net))
    assert torch.equal(answers(net, FLAT, 0), before)
    torch.testing.assert_close(answers(net, FLAT, 1), now)
    assert torch.equal(net.trunk.fc2.weight[:5], old["trunk.fc2.weight"])
    assert torch.equal(net.trunk.fc2.weight[5:], drifted[[3, 1]])
    assert torch.equal(drawn_to["trunk.fc2.weight"][5:], old["trunk.fc2.weight"][[3, 1]])
    assert (net.heads[1].weight[:, [1, 3]] == 0).all()


def test_splits_in_two_layers_move_the_weights_between_copies():
    net = growing(width=4)
    old = {f"trunk.{n}": p.detach().clone() for n, p in net.trunk.named_parameters()}
    with torch.no_grad():
        net.trunk.fc1.weight[2] += 1
        net.trunk.fc2.weight[0] += 1
    now = net.trunk.fc2.weight.detach().clone()
    drawn_to = split(net, {"relu1": [2], "relu2": [0]}, old, width(net))
    weight, was = net.trunk.fc2.weight, old["trunk.fc2.weight"]
    assert torch.equal(weight[:4, :4], was)
    assert (weight[:4, 4] == 0).all()
    assert weight[4].tolist() == [now[0, 0], now[0, 1], 0, now[0, 3], now[0, 2]]
    pull = drawn_to["trunk.fc2.weight"][4].tolist()
    assert pull == [was[0, 0], was[0, 1], 0, was[0, 3], was[0, 2]]


def test_the_farthest_units_are_split_and_no_more_than_allowed():
    net, method = growing(width=5), DEN(splits=2, split_threshold=0.05)
    method._old = {f"trunk.{n}": p.detach().clone() for n, p in net.trunk.named_parameters()}
    with torch.no_grad():
        for unit, far in enumerate([0.04, 0.06, 0.9, 0.5, 0.0]):
            net.trunk.fc2.weight[unit, 0] += far
    assert method._drifted(net) == {"relu1": [], "relu2": [2, 3]}


def test_penalties_in_selective_retraining_have_the_gradient_of_their_formula():
    net, method = growing(width=4), DEN(l2=0.3, drift=0.7, l1=0.0)
    method.begin_task(net, FLAT[1])
    method._next_round(net, FLAT[1])
    with torch.no_grad():
        net.trunk.fc2.weight += 0.2
    weight = net.trunk.fc2.weight
    step = step_of(FLAT[1], torch.optim.SGD([weight], lr=0.1))
    loss = method.loss(net, step)
    (plain,) = torch.autograd.grad(loss, weight, retain_graph=True)
    loss.backward()
    method.adjust_gradients(net, step)
    expected = plain + 0.3 * weight.detach() + 0.7 * 0.2
    torch.testing.assert_close(weight.grad, expected, rtol=1e-9, atol=1e-12)


def rounds_of(**values):
    """Learn the first task, then yield around every round of the second: its name, and when done.

    What comes with it are copies of the weights and of the masks before the round.
    """
    options = {**QUICK, "width": 8, "loss_threshold": 0.0, "split_threshold": 0.001}
    options |= {"group_lasso": 0.01, "l1": 0.001}
    running = Run(make_plan(FLAT, "den", values={**options, **values}), FLAT)
    running.learn(0)
    first = {n: p.detach().clone() for n, p in running.net.named_parameters()}
    running.net.add_task(2)
    running.method.begin_task(running.net, FLAT[1])
    fit = running.session.training_loop(FLAT[1], running.observe)
    while running.method._round != "done":
        masks = {name: mask.clone() for name, mask in running.method._free.items()}
        before = {n: p.detach().clone() for n, p in running.net.named_parameters()}
        fit([FLAT[1]])
        yield running, first, masks, before
        running.method._next_round(running.net, FLAT[1])


@pytest.mark.parametrize(
    "values",
    [
        {"momentum": 0.9},
        {"optimizer": "adamw", "weight_decay": 0.1, "learning_rate": 0.01},
        {"momentum": 0.9, "batch_norm": True, "norm": "stored"},
    ],
)
def test_each_round_moves_what_is_its_own_and_nothing_else(values):
    names = []
    for running, first, masks, before in rounds_of(**values):
        names.append(running.method._round)
        now = dict(running.net.named_parameters())
        moved = {name for name in now if not torch.equal(now[name], before[name])}
        assert "heads.1.weight" in moved
        for name in moved:
            assert torch.equal(now[name][~masks[name]], before[name][~masks[name]]), name
        if names[-1] == "head":
            assert not {name for name in moved if name.startswith("trunk.fc")}
        else:
            assert {"trunk.fc1.weight", "trunk.fc2.weight"} <= moved
        for name in ("trunk.fc1.weight", "trunk.fc2.weight"):
            if names[-1] == "expanded":
                part = tuple(slice(size) for size in first[name].shape)
                assert not masks[name][part].any()
            if names[-1] == "split":
                assert masks[name].all()
        if names[-1] == "split":  # the originals of copies were given their old weights back
            rows = (before["trunk.fc2.weight"][:8, :8] == first["trunk.fc2.weight"]).all(1)
            assert rows.any()
            pull = running.method._old["trunk.fc2.weight"][:8, :8]
            assert torch.equal(pull, first["trunk.fc2.weight"])
    assert names == ["head", "selected", "expanded", "split"]


def test_copies_are_drawn_to_the_old_weights():
    for running, _first, _masks, _before in rounds_of():
        method, net = running.method, running.net
        if method._round != "split":
            continue
        method.l2 = 0.0
        weight = net.trunk.fc2.weight
        step = step_of(FLAT[1], torch.optim.SGD([weight], lr=0.1))
        loss = method.loss(net, step)
        (plain,) = torch.autograd.grad(loss, weight, retain_graph=True)
        net.zero_grad()
        loss.backward()
        method.adjust_gradients(net, step)
        drawn = method.drift * (weight.detach() - method._old["trunk.fc2.weight"])
        assert drawn[method._free["trunk.fc2.weight"]].abs().max() > 1e-3
        expected = (plain + drawn) * method._free["trunk.fc2.weight"]
        torch.testing.assert_close(weight.grad, expected, rtol=1e-5, atol=1e-6)
        return
    pytest.fail("no round of splits")


def test_what_is_trained_gets_exact_zeros_in_every_round():
    seen = {}
    for running, _first, masks, _before in rounds_of(l1=0.4, shrink="rate"):
        for name, mask in masks.items():
            if name.endswith("weight"):
                free = running.net.get_parameter(name).detach()[mask]
                seen[running.method._round, name] = 1 - int(free.count_nonzero()) / len(free)
    for place in (("head", "heads.1.weight"), ("selected", "trunk.fc2.weight")):
        assert 0.02 < seen[place] < 0.98


def test_the_first_task_gets_exact_zeros():
    running = Run(make_plan(FLAT, "den", values={**QUICK, "width": 8, "l1": 3.0}), FLAT)
    running.learn(0)
    for weight in (running.net.trunk.fc1.weight, running.net.heads[0].weight):
        share = 1 - int(weight.count_nonzero()) / weight.numel()
        assert 0.02 < share < 0.98


@pytest.mark.parametrize("shrink", ["rate", "step"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam])
def test_proximal_steps_are_as_long_as_the_rate_or_as_the_step_taken(shrink, kind):
    net, method = growing(width=4), DEN(l1=0.5, group_lasso=3.0, shrink=shrink)
    method.begin_task(net, FLAT[1])
    method._next_round(net, FLAT[1])
    before = width(net)
    grow(net, dict.fromkeys(before, 1), rng())
    method._round = "expanded"
    weight = net.trunk.fc2.weight
    free = torch.rand(weight.shape, generator=rng(1)) < 0.7
    method.set_free(
        net, {"trunk.fc1.weight": free[:, :4].new_ones(5, 16), "trunk.fc2.weight": free}
    )
    step = step_of(FLAT[1], kind([net.trunk.fc1.weight, weight], lr=0.01))
    net.trunk.fc1.weight.grad = torch.zeros_like(net.trunk.fc1.weight)
    weight.grad = torch.randn(weight.shape, generator=rng(2), dtype=weight.dtype)
    was = weight.detach().clone()
    method.adjust_gradients(net, step)
    step.optimizer.step()
    then = weight.detach().clone()
    method.after_step(net, step)
    rate = of_new = 0.01
    if shrink == "step":
        rate = float(sum((then - was)[free] ** 2) / free.sum()) ** 0.5
        of_new = float(sum((then - was)[4] ** 2) / 5) ** 0.5
        assert of_new != rate
    softened = torch.where(free, then.sign() * (then.abs() - 0.5 * rate).clamp(min=0), then)
    torch.testing.assert_close(weight[:4].detach(), softened[:4])
    expected = softened[4] * max(0.0, 1 - 3 * of_new / float(softened[4].norm()))
    torch.testing.assert_close(weight[4].detach(), expected)


@pytest.mark.parametrize(
    ("network", "stream", "options"), [("mlp", DIGITS, {"width": 256}), ("lenet5", PICTURES, {})]
)
@pytest.mark.parametrize(
    "optimiser",
    [
        {"learning_rate": 0.05, "momentum": 0.0},
        {"optimizer": "adam", "learning_rate": 0.001},
    ],
)
def test_with_its_defaults_it_learns_with_every_optimiser(network, stream, options, optimiser):
    values = {"epochs": 10, "batch_size": 8, "warmup": 0, **options, **optimiser}
    plan = make_plan(stream, "den", network=network, values={"l1": DEN().l1, **values})
    running = Run(replace(plan, method=DEN()), stream)
    running.learn(0)
    weights = [p for p in running.net.parameters() if p.dim() > 1]
    assert all(int(weight.count_nonzero()) > weight.numel() / 10 for weight in weights)
    assert running.record.average_accuracy > 90


def test_a_head_that_reaches_nothing_frees_nothing():
    running = Run(make_plan(FLAT, "den", values={**QUICK, "width": 6, "expansion": 0}), FLAT)
    running.learn(0)
    first = {n: p.detach().clone() for n, p in running.net.trunk.named_parameters()}
    running.net.add_task(2)
    with torch.no_grad():
        running.net.heads[1].weight.zero_()
    running.method.begin_task(running.net, FLAT[1])
    running.method._next_round(running.net, FLAT[1])
    assert running.method._free == {}
    running.method.fit_task(
        running.net, FLAT[1], running.session.training_loop(FLAT[1], running.observe)
    )
    assert running.method._round == "done"
    for name, parameter in running.net.trunk.named_parameters():
        assert torch.equal(parameter, first[name]), name


def test_growth_is_judged_by_validation_data():
    net = growing(width=4)
    task = FLAT[1]
    with torch.no_grad():
        x = task.valid.unit_images(torch.arange(len(task.valid)), torch.float64)
        logits = net(task.transform(x), 1)
    expected = torch.nn.functional.cross_entropy(logits, task.valid.labels)
    assert loss_of(net, task) == pytest.approx(float(expected), rel=1e-9)


def test_capacity_of_a_run_by_hand():
    running = Run(make_plan(FLAT, "den", values={**QUICK, "width": 6, "l1": 0.05}), FLAT)
    record = running.execute()
    stored = sum(int((p != 0).sum()) for p in running.net.parameters())
    assert record.capacity == pytest.approx(100 * stored / (16 * 6 + 6 * 6 + 3 * 2 * 6))


def test_units_are_added_only_above_the_threshold():
    for threshold, grown in ((math.inf, False), (0.0, True)):
        values = {**QUICK, "width": 8, "loss_threshold": min(threshold, 1e9), "splits": 0}
        values["group_lasso"] = 0.01
        running = Run(make_plan(FLAT, "den", values=values), FLAT)
        running.learn(0)
        running.learn(1)
        assert (width(running.net)["relu1"] > 8) == grown


def test_progress_is_of_the_whole_task():
    running = Run(make_plan(FLAT, "den", values={**QUICK, "width": 8}), FLAT)
    seen = []
    running.execute(seen.append)
    for task in range(3):
        shares = [at.step / at.steps for at in seen if at.task == task]
        assert shares == sorted(shares)
        assert 0 < shares[0] < shares[-1] <= 1


@pytest.mark.parametrize("rounds", [0, 1, 2])
def test_a_run_continues_from_the_middle_of_a_task(rounds):
    values = {**QUICK, "width": 8, "batch_norm": True, "norm": "stored", "group_lasso": 0.01}
    one, two = (Run(make_plan(FLAT, "den", values=values), FLAT) for _ in range(2))
    one.learn(0)
    one.net.add_task(2)
    one.method.begin_task(one.net, FLAT[1])
    once = one.session.training_loop(FLAT[1], one.observe)
    for _ in range(rounds):
        once([FLAT[1]])
        one.method._next_round(one.net, FLAT[1])
    state = copy.deepcopy(one.method.state_dict())
    two.net.add_task(2)
    two.method.load_state_dict(state, two.net)
    two.net.load_state_dict(copy.deepcopy(one.net.state_dict()))
    for run in (one, two):
        run.method.begin_task(run.net, FLAT[1])
        run.method.fit_task(run.net, FLAT[1], run.session.training_loop(FLAT[1], run.observe))
        run.method.end_task(run.net, FLAT[1], rng())
    assert units(one.net) == units(two.net)
    assert units(one.net)["relu1"][1] > 8
    for name, value in one.net.state_dict().items():
        assert torch.equal(value, two.net.state_dict()[name]), name
    assert one.method.memory_bytes() == 0


def test_sizes_are_cut_and_filled_up_again():
    net = growing("alexnet5", IMAGES, norm="stored", affine="task")
    first = copy.deepcopy(net.state_dict())
    sizes = units(net)
    grow(net, dict.fromkeys(sizes, 2), rng())
    grown = units(net)
    resize(net, sizes)
    net.load_state_dict(first)
    resize(net, grown)
    assert units(net) == grown
    assert net.embedding == 2050


def test_a_network_that_cannot_grow_is_refused_by_name():
    net = networks.build("resnet18", (3, 20, 20), 1, width=2)
    net.add_task(2)
    with pytest.raises(UserError, match="den cannot add units to ResNet18") as caught:
        DEN().wrap(net, IMAGES, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "named"), [({"mu": -1}, "mu"), ({"k": -1}, "k"), ({"splits": 1.5}, "splits")]
)
def test_bad_settings_are_refused_in_one_line(values, named):
    with pytest.raises(UserError, match=named) as caught:
        methods.make("den", **values)
    assert "\n" not in str(caught.value)
