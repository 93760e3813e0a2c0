"""HAT against plain loops over its equations, and old answers that keep their bits."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn

from classgrad import methods, networks, seeds
from classgrad.errors import UserError
from classgrad.methods import HAT
from classgrad.methods.structure.hat import Gate
from classgrad.networks.layers import TaskBatchNorm
from classgrad.networks.network import Network
from classgrad.networks.trunk import NetworkSettings, Trunk
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.training.config import Training
from classgrad.training.loop import fit
from streams import blobs, step_of

FLAT = blobs(tasks=3, classes=2, shape=(1, 4, 4), per_class=6)
IMAGES = blobs(tasks=3, classes=2, shape=(3, 20, 20), per_class=6)
SMALL = blobs(tasks=3, classes=2, shape=(1, 12, 12), per_class=6)
SGD = torch.optim.SGD

# Layer -> (its norm, the ReLU it sees, the ReLU it feeds), written down from the architectures.
MLP = {"fc1": (None, None, "relu1"), "fc2": (None, "relu1", "relu2")}
LENET = {
    "conv1": (None, None, "relu1"),
    "conv2": (None, "relu1", "relu2"),
    "fc1": (None, "relu2", "relu3"),
    "fc2": (None, "relu3", "relu4"),
}
RESNET = {"conv1": ("bn1", None, "relu")}
BLOCKS = [f"stage{stage}.{number}" for stage in (1, 2, 3, 4) for number in (0, 1)]
for _block, _input in zip(BLOCKS, ["relu", *[f"{b}.relu2" for b in BLOCKS]], strict=False):
    RESNET[f"{_block}.conv1"] = (f"{_block}.bn1", _input, f"{_block}.relu1")
    RESNET[f"{_block}.conv2"] = (f"{_block}.bn2", f"{_block}.relu1", f"{_block}.relu2")
    if _block in ("stage2.0", "stage3.0", "stage4.0"):
        ends = _input, f"{_block}.relu2"
        RESNET[f"{_block}.shortcut.0"] = (f"{_block}.shortcut.1", *ends)


def gated(network="mlp", stream=FLAT, *, method=None, tasks=2, **options):
    """A gated network in float64 that is about to learn its last task, and its method."""
    net = networks.build(network, stream.input_shape, 1, **options).double()
    net.add_task(2)
    method = method or HAT(clip=1e30)  # a few channels with BatchNorm have steep gradients
    method.wrap(net, stream, 1)
    for _ in range(tasks - 1):
        net.add_task(2)
    method.begin_task(net, stream[tasks - 1])
    net.train()
    return net, method


def use(method, seed=0, *, soft=True):
    """Let the gates hold random masks of earlier tasks."""
    rng = torch.Generator().manual_seed(seed)
    for gate in method._gates.values():
        drawn = torch.rand(gate.units, generator=rng, dtype=torch.float64)
        gate.used.copy_(drawn if soft else drawn.round())
        gate.used[0], gate.used[-1] = 0.0, 1.0
    return {name: gate.used.numpy().copy() for name, gate in method._gates.items()}


def gradients(net, method, step):
    """Gradients of the loss by name, before and after the method's adjustment."""
    step.optimizer.zero_grad()
    method.loss(net, step).backward()
    named = {n: p for n, p in net.named_parameters() if p.grad is not None}
    raw = {n: p.grad.numpy().copy() for n, p in named.items()}
    method.adjust_gradients(net, step)
    return raw, {n: p.grad.numpy().copy() for n, p in named.items()}


def masked_slowly(gradient, out, seen):
    """The gradient of weight ij times 1 - min(a_i, a_j), unit by unit."""
    result = gradient.copy()
    positions = gradient.shape[1] // len(seen)
    for i in range(len(gradient)):
        for j in range(len(seen)):
            here = slice(j * positions, (j + 1) * positions)
            result[i, here] = gradient[i, here] * (1 - min(out[i], seen[j]))
    return result


def stepped(net, method, stream, task, optimizer=None, **place):
    moved = list(method.parameters(net, [stream[task]]))
    return step_of(stream[task], optimizer or SGD(moved, lr=0.1), **place)


@pytest.mark.parametrize(
    ("network", "stream", "options", "table"),
    [
        ("mlp", FLAT, {"width": 5}, MLP),
        ("mlp", FLAT, {"width": 5, "heads": "shared"}, MLP),
        ("lenet5", SMALL, {"heads": "shared"}, LENET),
        ("resnet18", IMAGES, {"width": 2}, RESNET),
        ("resnet18", IMAGES, {"width": 2, "norm": "stored", "heads": "shared"}, RESNET),
    ],
)
def test_gradients_are_multiplied_as_a_loop_over_units_says(network, stream, options, table):
    net, method = gated(network, stream, **options)
    used = use(method)
    step = stepped(net, method, stream, 1, number=0, per_epoch=3)
    raw, actual = gradients(net, method, step)
    checked = set()
    for layer, (norm, source, target) in table.items():
        name, out = f"trunk.{layer}.weight", used[target]
        inputs = raw[name].shape[1]
        seen = np.ones(inputs) if source is None else used[source]
        assert (raw[name] != 0).mean() > 0.1
        assert np.allclose(actual[name], masked_slowly(raw[name], out, seen), rtol=1e-12, atol=0)
        checked.add(name)
        for kind in ("scale_0", "shift_0") if norm else ():
            of_norm = f"trunk.{norm}.{kind}"
            expected = [g * (1 - a) for g, a in zip(raw[of_norm], out, strict=True)]
            assert np.allclose(actual[of_norm], expected, rtol=1e-12, atol=0)
            checked.add(of_norm)
    last = used[table["fc2"][2] if "fc2" in table else "stage4.1.relu2"]
    head = "heads.0.weight" if net.shared_head else "heads.1.weight"
    everything = np.ones(2) if net.shared_head else np.zeros(2)
    expected = masked_slowly(raw[head], everything, last)
    assert np.allclose(actual[head], expected, rtol=1e-12, atol=0)
    checked.add(head)
    embeddings = {name for name in raw if "embedding" in name}
    assert len(embeddings) == len(used)
    assert all(name.endswith("embedding_1") for name in embeddings)
    assert checked | embeddings == set(raw)


def test_nothing_is_masked_in_the_first_task():
    net, method = gated(tasks=1, batch_norm=True, heads="shared")
    raw, actual = gradients(net, method, stepped(net, method, FLAT, 0))
    for name in raw:
        assert np.array_equal(raw[name], actual[name]) == ("embedding" not in name)


def test_each_task_has_a_free_scale_and_shift_of_its_own():
    net, method = gated("resnet18", IMAGES, width=2, affine="task")
    use(method)
    raw, actual = gradients(net, method, stepped(net, method, IMAGES, 1, number=0, per_epoch=3))
    own = [name for name in raw if "scale" in name or "shift" in name]
    assert own
    assert all(name.endswith("_1") for name in own)
    assert all(np.array_equal(raw[name], actual[name]) for name in own)


class Biased(Trunk):
    """Layers with biases, and BatchNorm, in a trunk of one's own."""

    @staticmethod
    def stack(input_shape, options):
        return OrderedDict(
            conv=nn.Conv2d(1, 4, 3),
            norm=TaskBatchNorm(4),
            relu1=nn.ReLU(),
            flat=nn.Flatten(),
            fc=nn.Linear(16, 3),
            relu2=nn.ReLU(),
        )


def built(kind, shape=(1, 4, 4)):
    with networks.network.preserved_rng():
        torch.manual_seed(0)
        trunk = kind(shape, NetworkSettings())
    net = Network(trunk, trunk.embedding)
    net.add_task(2)
    return net


def test_biases_are_multiplied_by_what_is_free_of_their_unit():
    net, method = built(Biased).double(), HAT()
    method.wrap(net, FLAT, 1)
    net.add_task(2)
    used = use(method)
    raw, actual = gradients(net, method, stepped(net, method, FLAT, 1, number=1, per_epoch=3))
    for layer, gate in (("conv", "relu1"), ("fc", "relu2")):
        name = f"trunk.{layer}.bias"
        assert np.allclose(actual[name], raw[name] * (1 - used[gate]), rtol=1e-12, atol=0)
    assert np.abs(raw["trunk.fc.bias"]).max() > 0


@pytest.mark.parametrize(
    "optimiser",
    [
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"optimizer": "adam"},
        {"optimizer": "adam", "weight_decay": 0.1},
        {"optimizer": "adamw", "weight_decay": 0.1},
    ],
)
def test_what_connects_used_units_keeps_its_bits_with_every_optimiser(optimiser):
    net, method = gated("mlp", width=9, batch_norm=True, heads="shared")
    used = use(method, soft=False)
    before = {n: p.detach().numpy().copy() for n, p in net.named_parameters()}
    training = Training(epochs=4, batch_size=4, learning_rate=0.02, **optimiser)
    fit(net, method, [FLAT[1]], training, seed=1)
    moved = {n: before[n] != p.detach().numpy() for n, p in net.named_parameters()}
    one, two = used["relu1"] == 1, used["relu2"] == 1
    for name, kept in (
        ("trunk.fc1.weight", np.repeat(one[:, None], 16, axis=1)),
        ("trunk.fc2.weight", two[:, None] & one[None, :]),
        ("trunk.bn1.scale_0", one),
        ("trunk.bn2.shift_0", two),
        ("heads.0.weight", np.repeat(two[None, :], 2, axis=0)),
    ):
        assert kept.any(), name
        assert not moved[name][kept].any(), name
        assert moved[name][~kept].any(), name
    assert not moved["trunk.relu1.embedding_0"].any()
    assert moved["trunk.relu1.embedding_1"].any()


@pytest.mark.parametrize(
    ("kind", "options"),
    [("Adam", {}), ("AdamW", {"weight_decay": 0.1}), ("SGD", {"weight_decay": 0.1})],
)
def test_the_update_itself_is_multiplied_where_the_optimiser_needs_it(kind, options):
    net, method = gated(width=9)
    used = use(method)
    weight = net.trunk.fc2.weight
    start, plain = weight.detach().clone(), weight.detach().clone()
    optimizer = getattr(torch.optim, kind)([weight], lr=0.1, **options)
    step = step_of(FLAT[1], optimizer, number=0, per_epoch=3)
    method.loss(net, step).backward()
    plain.grad = weight.grad.clone()
    getattr(torch.optim, kind)([plain], lr=0.1, **options).step()
    method.adjust_gradients(net, step)
    optimizer.step()
    method.after_step(net, step)
    update = (plain - start).numpy()
    assert (update != 0).mean() > 0.2
    expected = masked_slowly(update, used["relu2"], used["relu1"])
    assert np.allclose((weight.detach() - start).numpy(), expected, rtol=1e-9, atol=1e-15)


OLD_ANSWERS = [
    ("mlp", FLAT, {"width": 20, "batch_norm": True, "dropout": 0.1, "norm": "stored"}),
    ("mlp", FLAT, {"width": 20, "batch_norm": True, "norm": "batch", "heads": "shared"}),
    ("mlp", FLAT, {"width": 20, "optimizer": "adam", "weight_decay": 0.01}),
    ("mlp", FLAT, {"width": 20, "schedule": "plateau"}),
    ("lenet5", SMALL, {"heads": "shared"}),
    ("alexnet5", IMAGES, {"norm": "stored", "affine": "task"}),
    ("resnet18", IMAGES, {"width": 4, "norm": "stored"}),
    ("resnet18", IMAGES, {"width": 4, "norm": "stored", "affine": "task"}),
    ("resnet18", IMAGES, {"width": 4, "norm": "batch", "heads": "shared"}),
]


@pytest.mark.parametrize(("network", "stream", "options"), OLD_ANSWERS)
def test_old_outputs_keep_their_bits_through_two_more_tasks(network, stream, options):
    training = {"epochs": 2, "batch_size": 4, "learning_rate": 0.05, "warmup": 0}
    plan = make_plan(stream, "hat", network=network, values={**training, **options})
    running = Run(plan, stream)
    x = stream.test(0).unit_images(slice(0, 12))

    def answers(task):
        running.net.eval()
        with torch.no_grad():
            return running.net(x, task)

    running.learn(0)
    first, trunk = answers(0), running.net.trunk.state_dict()
    before = {name: value.clone() for name, value in trunk.items() if name.endswith("weight")}
    assert first.std(dim=0).min() > 0
    running.learn(1)
    second = answers(1)
    running.learn(2)
    assert torch.equal(answers(0), first)
    assert torch.equal(answers(1), second)
    assert not torch.equal(answers(2), first)
    assert all(not torch.equal(trunk[name], value) for name, value in before.items())
    assert all(layer.rank > 0 for layer in running.method.layer_ranks())


def test_masks_that_are_not_rounded_protect_in_part_only():
    plan = make_plan(FLAT, "hat", values={"binary": False, "smax": 2, "width": 20, "epochs": 2})
    running = Run(plan, FLAT)
    x = FLAT.test(0).unit_images(slice(0, 12))
    running.learn(0)
    first = running.net.eval()(x, 0)
    running.learn(1)
    assert not torch.equal(running.net.eval()(x, 0), first)


def test_the_penalty_by_hand():
    net, method = gated(width=2, depth=2, method=HAT(sparsity=2.0))
    one, two = method._gates.values()
    for gate, embedding, used in ((one, [0.0, math.log(3)], [1.0, 0.5]), (two, [0, 0], [0, 0])):
        gate.newest.data.copy_(torch.tensor(embedding, dtype=torch.float64))
        gate.used.copy_(torch.tensor(used))
    # a = (1/2, 3/4) and (1/2, 1/2) at s = 1; free are (0, 1/2) and (1, 1).
    assert method.cost(1.0).item() == pytest.approx((0.375 + 0.5 + 0.5) / 2.5, rel=1e-12)
    step = stepped(net, method, FLAT, 1, number=1, per_epoch=3)
    cost = method.cost(method.slope(step)).item()
    with_cost = method.loss(net, step).item()
    method.sparsity = 0.0
    assert with_cost - method.loss(net, step).item() == pytest.approx(2 * cost, rel=1e-9)
    for gate in (one, two):
        gate.used.fill_(1.0)
    assert method.cost(1.0).item() == 0


def test_the_slope_grows_from_its_inverse_to_its_limit_in_every_epoch():
    net, method = gated(method=HAT(smax=200))
    actual = [
        method.slope(stepped(net, method, FLAT, 1, number=number, per_epoch=5))
        for number in (0, 2, 4, 5, 14)
    ]
    middle = (200 + 1 / 200) / 2
    assert actual == pytest.approx([1 / 200, middle, 200, 1 / 200, 200], rel=1e-12)
    assert method.slope(stepped(net, method, FLAT, 1, number=3, per_epoch=1)) == 200


def test_gradients_of_embeddings_are_compensated_as_the_formula_says():
    net, method = gated(width=6, method=HAT(smax=30))
    step = stepped(net, method, FLAT, 1, number=1, per_epoch=3)
    s = method.slope(step)
    for gate in method._gates.values():
        gate.newest.data.copy_(torch.tensor([-6.0, -0.7, 0.0, 0.1, 0.8, 5.0]))
    raw, actual = gradients(net, method, step)
    for name in ("relu1", "relu2"):
        key = f"trunk.{name}.embedding_1"
        for before, after, e in zip(
            raw[key], actual[key], net.trunk.get_submodule(name).newest.tolist(), strict=True
        ):
            steep = max(-50.0, min(50.0, s * e))
            factor = 30 / s * (math.cosh(steep) + 1) / (math.cosh(e) + 1)
            assert after == pytest.approx(before * factor, rel=1e-9)
    assert np.abs(raw["trunk.relu1.embedding_1"]).max() > 0


def test_compensated_gradients_are_those_of_a_mask_at_slope_one_times_the_limit():
    gate = Gate(5, 1, "a").double()
    gate.steepest = 40.0
    for s in (1 / 40, 1.0, 5.0):
        gate.newest.grad = None
        gate.annealed(s).sum().backward()
        actual = gate.newest.grad * gate.compensation(s)
        a = torch.sigmoid(gate.newest.detach())
        torch.testing.assert_close(actual, 40 * a * (1 - a), rtol=1e-9, atol=0)


def test_embeddings_stay_between_minus_six_and_six():
    net, method = gated(width=6)
    step = stepped(net, method, FLAT, 1, number=1, per_epoch=3)
    first = method._gates["relu1"]
    first.newest.data.copy_(torch.tensor([-9.0, -6.0, 0.5, 5.0, 6.5, 80.0]))
    method.after_step(net, step)
    assert first.newest.tolist() == [-6.0, -6.0, 0.5, 5.0, 6.0, 6.0]


def test_gradients_longer_than_the_limit_are_shortened_together():
    lengths = []
    for clip in (10000, 0.01):
        net, method = gated(width=6, method=HAT(clip=clip))
        _, actual = gradients(net, method, stepped(net, method, FLAT, 1, number=1, per_epoch=3))
        lengths.append(math.sqrt(sum((g**2).sum() for g in actual.values())))
    assert lengths[0] > 0.1
    assert lengths[1] == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("binary", [True, False])
def test_used_is_the_largest_finished_mask_of_each_unit(binary):
    net, method = gated(width=4, tasks=1, method=HAT(binary=binary, smax=2))
    tasks = [[-1.0, 0.1, -0.2, 2.0], [-2.0, -0.3, 0.4, 1.0], [-3.0, 0.2, -0.1, -4.0]]
    gate = method._gates["relu1"]
    expected = [0.0] * 4
    for number, embedding in enumerate(tasks):
        if number:
            net.add_task(2)
        gate.newest.data.copy_(torch.tensor(embedding))
        method.end_task(net, FLAT[number], torch.Generator())
        for unit, e in enumerate(embedding):
            a = 1 / (1 + math.exp(-2 * e))
            a = float(a > 0.5) if binary else a
            expected[unit] = max(expected[unit], a)
        assert gate.used.tolist() == pytest.approx(expected, rel=1e-7)
    layer = method.layer_ranks()[0]
    assert (layer.name, layer.dimension, layer.rank) == ("relu1", 4, 3)
    assert method.memory_bytes() == 8 * 2 * 4 * (3 + 1)  # two gates, three tasks and a_pre


def test_a_gate_anneals_the_newest_task_in_training_only():
    gate = Gate(3, 1, "a").double()
    gate.steepest = 10.0
    gate.get_parameter("embedding_0").data.copy_(torch.tensor([1.0, -1.0, 0.01]))
    gate.add_task()
    gate.newest.data.copy_(torch.tensor([-0.5, 0.0, 0.5]))
    x = torch.tensor([[[2.0, -1.0]] * 3], dtype=torch.float64)

    def mask(task):
        gate.task = task
        y = gate(x)
        assert (y[..., 1] == 0).all()
        return (y[0, :, 0] / 2).detach()

    assert mask(1).tolist() == [0, 0, 1]
    gate.slope = 2.0
    torch.testing.assert_close(mask(1), torch.sigmoid(torch.tensor([-1.0, 0, 1])).double())
    assert mask(0).tolist() == [1, 0, 1]
    gate.eval()
    assert mask(1).tolist() == [0, 0, 1]
    gate.binary = False
    torch.testing.assert_close(mask(0), torch.sigmoid(torch.tensor([10.0, -10, 0.1])).double())


def test_embeddings_differ_between_seeds_layers_and_tasks():
    gates = [Gate(400, seed, name) for seed, name in ((1, "a"), (1, "a"), (2, "a"), (1, "b"))]
    first = [gate.newest.detach().clone() for gate in gates]
    assert torch.equal(first[0], first[1])
    gates[0].add_task()
    for other in (first[2], first[3], gates[0].newest):
        assert not torch.equal(first[0], other)
    assert abs(float(first[0].mean())) < 0.15
    assert abs(float(first[0].std()) - 1) < 0.15


def test_the_optimiser_has_the_newest_embeddings_and_head_only():
    net, method = gated(tasks=3)
    given = {id(p) for p in method.parameters(net, [FLAT[2]])}
    left_out = [name for name, p in net.named_parameters() if id(p) not in given]
    assert sorted(left_out) == sorted(
        ["heads.0.weight", "heads.1.weight"]
        + [f"trunk.relu{layer}.embedding_{task}" for layer in (1, 2) for task in (0, 1)]
    )


@pytest.mark.parametrize("network_first", [True, False])
def test_a_run_continues_from_the_middle_of_a_task(network_first):
    values = {"width": 12, "batch_norm": True, "norm": "stored"}
    running = Run(make_plan(FLAT, "hat", values=values), FLAT)
    running.learn(0)
    running.net.add_task(2)
    running.method.begin_task(running.net, FLAT[1])

    def go_on(net, method, numbers):
        optimizer = SGD(list(method.parameters(net, [FLAT[1]])), lr=0.1, weight_decay=0.01)
        net.train()
        for number in numbers:
            step = step_of(FLAT[1], optimizer, number=number, per_epoch=3)
            optimizer.zero_grad()
            method.loss(net, step).backward()
            method.adjust_gradients(net, step)
            optimizer.step()
            method.after_step(net, step)

    go_on(running.net, running.method, range(2))
    state = {name: value.clone() for name, value in running.net.state_dict().items()}
    again = Run(make_plan(FLAT, "hat", values=values), FLAT)
    again.net.add_task(2)
    loads = [
        lambda: again.net.load_state_dict(state),
        lambda: again.method.load_state_dict(running.method.state_dict(), again.net),
    ]
    for load in loads if network_first else reversed(loads):
        load()
    for one in (running, again):
        go_on(one.net, one.method, range(2, 5))
    for name, value in running.net.state_dict().items():
        assert torch.equal(value, again.net.state_dict()[name]), name


def test_wrapping_twice_keeps_the_gates():
    net, method = gated(tasks=1)
    gates = dict(method._gates)
    other = HAT(smax=7, binary=False)
    other.wrap(net, FLAT, 5)
    assert other._gates == gates
    assert all((gate.steepest, gate.binary) == (7, False) for gate in gates.values())


def stack_of(*layers):
    """A trunk of these layers, in order."""

    class Odd(Trunk):
        @staticmethod
        def stack(input_shape, options):
            return OrderedDict((f"part{n}", layer()) for n, layer in enumerate(layers))

    return Odd


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        ([nn.Flatten, lambda: nn.Linear(16, 4)], "part1"),
        ([nn.Flatten, lambda: nn.Linear(16, 4), nn.GELU], "part2"),
        ([nn.Flatten, lambda: nn.Linear(16, 4), lambda: nn.Linear(4, 4), nn.ReLU], "part2"),
        ([nn.Flatten, lambda: TaskBatchNorm(16), lambda: nn.Linear(16, 4), nn.ReLU], "part1"),
        ([nn.Flatten, lambda: nn.Linear(16, 4), lambda: nn.LayerNorm(4), nn.ReLU], "part2"),
        ([nn.Flatten, lambda: nn.Linear(16, 4), lambda: nn.Softmax(1), nn.ReLU], "part2"),
        (
            [lambda: nn.Conv2d(1, 4, 3), nn.ReLU, lambda: nn.Conv2d(4, 4, 1, groups=2), nn.ReLU],
            "part2",
        ),
    ],
)
def test_a_stack_that_masks_cannot_protect_is_refused_by_layer(layers, named):
    net = built(stack_of(*layers))
    with pytest.raises(UserError, match=f"layer '{named}'.*of Odd.*wiring") as caught:
        HAT().wrap(net, FLAT, 1)
    assert "\n" not in str(caught.value)


def test_a_trunk_without_wiring_is_refused_by_name():
    with networks.network.preserved_rng():
        trunk = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU())
    net = Network(trunk, 4)
    net.add_task(2)
    with pytest.raises(UserError, match="layers of a Sequential") as caught:
        HAT().wrap(net, FLAT, 1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("values", "named"),
    [({"c": -1}, "c "), ({"smax": 0.5}, "smax"), ({"clip": 0}, "clip"), ({"binary": 3}, "binary")],
)
def test_bad_settings_are_refused_in_one_line(values, named):
    with pytest.raises(UserError, match=named) as caught:
        methods.make("hat", **values)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", [SGD, torch.optim.Adam])
def test_every_step_of_an_embedding_is_multiplied_by_its_rate(kind):
    moves = {}
    for rate in (1.0, 7.0):
        net, method = gated(width=5, method=HAT(embedding_rate=rate, clip=1e30))
        before = {n: p.detach().clone() for n, p in net.named_parameters()}
        moved = list(method.parameters(net, [FLAT[1]]))
        step = stepped(net, method, FLAT, 1, kind(moved, lr=1e-4), number=1, per_epoch=3)
        gradients(net, method, step)
        step.optimizer.step()
        method.after_step(net, step)
        moves[rate] = {n: (p.detach() - before[n]).numpy() for n, p in net.named_parameters()}
    for name, move in moves[1.0].items():
        factor = 7.0 if name.endswith("embedding_1") else 1.0
        assert np.allclose(moves[7.0][name], factor * move, rtol=1e-9, atol=1e-15), name
    assert np.abs(moves[7.0]["trunk.relu1.embedding_1"]).max() > 1e-4


def test_short_training_learns_the_masks_only_at_a_higher_rate_of_the_embeddings():
    """Units that do nothing for the task are switched off; an untrained embedding uses half."""
    stream, share = blobs(tasks=1, classes=4, shape=(1, 8, 8), per_class=40), {}
    for rate in (1.0, 30.0):
        values = {"epochs": 8, "batch_size": 16, "learning_rate": 0.03, "momentum": 0.9}
        values |= {"warmup": 0, "width": 1000, "embedding_rate": rate}
        running = Run(make_plan(stream, "hat", network="mlp", values=values), stream)
        running.learn(0)
        share[rate] = sum(layer.units[0] for layer in running.record.layers) / 2000
        assert running.record.average_accuracy > 90
    assert 0.42 < share[1.0] < 0.58
    assert 0.05 < share[30.0] < 0.3


def test_the_record_has_the_units_of_every_task():
    values = {"epochs": 2, "batch_size": 6, "learning_rate": 0.05, "warmup": 0, "width": 20}
    running = Run(make_plan(FLAT, "hat", network="mlp", values=values), FLAT)
    record = running.execute()
    for layer in record.layers:
        gate = running.method._gates[layer.name]
        masks = [gate.get_parameter(f"embedding_{task}") > 0 for task in range(3)]
        assert layer.units == [int(mask.sum()) for mask in masks]
        start = [
            torch.randn(20, generator=seeds.generator(1, "gates", gate.name, task))
            for task in range(3)
        ]
        assert layer.switched == [
            int((mask != (e > 0)).sum()) for mask, e in zip(masks, start, strict=True)
        ]
        assert sum(layer.switched) > 0
        together = [torch.stack(masks[: n + 1]).any(0) for n in range(3)]
        assert layer.ranks == [int(mask.sum()) for mask in together]
