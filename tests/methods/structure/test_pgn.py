"""Progressive networks: columns by the formula, old answers to the last bit, capacity by hand."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad import networks
from classgrad.errors import UserError
from classgrad.methods import PGN
from classgrad.methods.structure.pgn import ColumnNetwork, Joined, Progressive, width_for
from classgrad.networks.network import Network, preserved_rng
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from streams import blobs

FLAT = blobs()
IMAGES = blobs(tasks=3, classes=2, shape=(3, 20, 20), per_class=6)
CASES = [
    ("mlp", {"dropout": 0.3, "batch_norm": True, "norm": "batch"}),
    ("mlp", {"heads": "shared", "batch_norm": True, "norm": "stored"}),
    ("lenet5", {}),
    ("alexnet5", {"norm": "batch"}),
    ("alexnet5", {"norm": "stored", "affine": "task"}),
    ("resnet18", {"width": 4, "norm": "stored"}),
]


def start(network="mlp", share=0.3, stream=FLAT, **values):
    values = {"epochs": 1, "batch_size": 12, "learning_rate": 0.03, "warmup": 0, **values}
    plan = make_plan(stream, PGN(column_width=share), network=network, values=values)
    return Run(plan, stream)


def answers(net, stream, task):
    """Logits of the first tasks for some images, in one batch each."""
    result = []
    with net.evaluating(), torch.no_grad():
        for old in range(task):
            x = stream.test(old).unit_images(torch.arange(10), torch.float32)
            result.append(net(x, old))
    return result


@pytest.mark.parametrize(("network", "options"), CASES)
def test_old_outputs_keep_their_bits(network, options):
    stream = FLAT if network == "mlp" else IMAGES
    running = start(network, share=0.1 if network == "alexnet5" else 0.3, stream=stream, **options)
    running.learn(0)
    first = answers(running.net, stream, 1)
    running.learn(1)
    second = answers(running.net, stream, 2)
    running.learn(2)
    last = answers(running.net, stream, 3)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], last[0])
    assert torch.equal(second[1], last[1])
    state = running.net.state_dict()
    assert any("columns.2" in name for name in state)
    assert running.record.backward_transfer == 0


@pytest.mark.parametrize(
    "optimiser",
    [
        {"optimizer": "adam", "learning_rate": 0.005, "weight_decay": 0.01},
        {"optimizer": "adamw", "learning_rate": 0.005, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"schedule": "plateau"},
    ],
)
def test_old_outputs_keep_their_bits_with_every_optimiser(optimiser):
    running = start(batch_norm=True, norm="stored", dropout=0.2, **optimiser)
    running.learn(0)
    running.learn(1)
    before = answers(running.net, FLAT, 2)
    running.learn(2)
    for old, new in zip(before, answers(running.net, FLAT, 3)[:2], strict=True):
        assert torch.equal(old, new)


def test_only_the_newest_column_and_its_head_are_trained():
    running = start(network="lenet5", stream=IMAGES)
    net = running.net
    net.add_task(2)
    net.add_task(2)
    net.train()
    x = IMAGES[2].train.unit_images(torch.arange(6), torch.float32)
    functional.cross_entropy(net(x, 2), IMAGES[2].train.labels[:6]).backward()
    for name, parameter in net.named_parameters():
        newest = name.startswith(("trunk.columns.2.", "heads.2."))
        assert (parameter.grad is not None) == newest, name
        if newest:
            assert parameter.grad.abs().sum() > 0, name
    moved = {p for p in running.method.parameters(net, [IMAGES[2]]) if p.requires_grad}
    names = {name for name, p in net.named_parameters() if p in moved}
    assert all(name.startswith(("trunk.columns.2.", "heads.2.")) for name in names)


def test_frozen_columns_take_no_statistics_and_drop_nothing():
    running = start(batch_norm=True, norm="stored", dropout=0.5)
    net = running.net
    net.add_task(3)
    net.train()
    old = net.trunk.columns[0]
    before = {name: value.clone() for name, value in old.state_dict().items()}
    x = FLAT[1].train.unit_images(torch.arange(12), torch.float32)
    net(x, 1)
    assert all(torch.equal(before[name], value) for name, value in old.state_dict().items())
    assert torch.equal(old(x), old(x))
    new = net.trunk.columns[1]
    assert not torch.equal(new.get_submodule("bn1").mean_0, torch.zeros(77))


def lateral(state, prefix, layer, older, convolve):
    """U relu(V [a_j h_j]) with loops over columns, from the weights of a state."""
    scalars, v = state[f"{prefix}.{layer}.scalars"], state[f"{prefix}.{layer}.v.weight"]
    channels = len(v)
    total = 0
    for j, h in enumerate(older):
        part = v[:, j * channels : (j + 1) * channels]
        total = total + scalars[j] * torch.einsum("oc,nc...->no...", part, h)
    return convolve(total.clamp(min=0), state[f"{prefix}.{layer}.u.weight"])


def lenet_by_the_formula(state, x, columns):
    """Embedding of the last of some columns of LeNet-5; every h is kept before flattening."""

    def pooled(h):
        h = functional.local_response_norm(h.clamp(min=0), 4, 0.001 / 9, 0.75, 1.0)
        return functional.max_pool2d(h, 3, 2, 1)

    def padded(h, w):
        return functional.conv2d(h, w, padding=2)

    def dense(h, w):
        return h.flatten(1) @ w.T

    maps, flat, hidden = [], [], []
    for t in range(columns):
        at = f"trunk.columns.{t}"
        h = pooled(padded(x, state[f"{at}.conv1.weight"]))
        out = padded(h, state[f"{at}.conv2.own.weight"])
        one = pooled(out + (lateral(state, at, "conv2", maps, padded) if t else 0))
        out = dense(one, state[f"{at}.fc1.own.weight"])
        two = (out + (lateral(state, at, "fc1", flat, dense) if t else 0)).clamp(min=0)
        out = dense(two, state[f"{at}.fc2.own.weight"])
        end = (out + (lateral(state, at, "fc2", hidden, dense) if t else 0)).clamp(min=0)
        maps.append(h)
        flat.append(one)
        hidden.append(two)
    return end


@pytest.mark.parametrize("size", [4, 20])
def test_columns_are_those_of_the_formula(size):
    stream = blobs(tasks=3, classes=2, shape=(3, size, size), per_class=6)
    running = start("lenet5", share=0.2, stream=stream)
    net = running.net
    net.add_task(2)
    net.add_task(2)
    net.double().eval()
    for name, parameter in net.named_parameters():
        if name.endswith("scalars"):  # as large as after training, to be seen at all
            parameter.data.copy_(torch.linspace(-1, 1.5, len(parameter)))
    x = stream[0].train.unit_images(torch.arange(5), torch.float64)
    for task in range(3):
        wanted = lenet_by_the_formula(net.state_dict(), x, task + 1)
        torch.testing.assert_close(net.embed(x, task), wanted, rtol=1e-12, atol=1e-12)
    assert not net.trunk.board


def test_capacity_by_hand():
    """MLP 64-6-6 at half width, 3 classes: columns of 3 units."""
    running = start(share=0.5, width=6)
    record = running.execute()
    base = 64 * 6 + 6 * 6 + 3 * (6 * 3)
    column = 64 * 3 + 3 * 3 + 3 * 3  # two layers and the head
    laterals = (1 + 3 * 3 + 3 * 3) + (2 + 6 * 3 + 3 * 3)  # a, V, U of fc2 in columns 2 and 3
    total = 3 * column + laterals
    assert record.parameters == total
    assert running.method.stored_parameters(running.net) == total
    assert record.capacity == pytest.approx(100 * total / base)
    assert record.memory_bytes == 0


@pytest.mark.parametrize("network", ["mlp", "lenet5", "resnet18"])
def test_parameters_are_counted_without_building_all_columns(network):
    trunk = networks.build(network, (3, 20, 20)).trunk
    columns = Progressive(trunk, 0.2, seed=1)
    net = ColumnNetwork(columns, columns.embedding)
    counted = columns.parameters_for([2, 5, 3])
    for classes in (2, 5, 3):
        net.add_task(classes)
    assert sum(p.numel() for p in net.parameters()) == counted
    assert columns(torch.ones(2, 3, 20, 20)).shape == (2, columns.embedding)


def test_the_width_of_271_per_cent_is_found_and_is_that_of_the_recipes():
    trunk = networks.build("lenet5", (3, 32, 32)).trunk
    width = width_for(trunk, [5] * 20, 271)
    stored = Progressive(trunk, width, seed=1).parameters_for([5] * 20)
    assert 266 < 100 * stored / (2_986_500 + 50_000) < 276
    for recipe in ("fast", "paper"):
        assert make_plan("cifar100-superclass", "pgn", recipe=recipe).method.column_width == width


def test_at_full_width_a_column_has_the_layers_of_the_base_network():
    base = networks.build("alexnet5", (3, 20, 20), seed=3, affine="task")
    base.add_task(2)
    weights = [p.detach().clone() for p in base.parameters()]
    made = PGN().wrap(base, IMAGES, 3)
    assert all(map(torch.equal, weights, made.parameters()))
    assert PGN().wrap(made, IMAGES, 3) is made


def test_columns_start_from_different_weights():
    net = start().net
    net.add_task(3)
    first, second = net.trunk.columns
    assert not torch.equal(first.fc1.weight, second.fc1.weight)
    joined = second.fc2
    assert isinstance(joined, Joined)
    assert 0 < joined.scalars.item() < 0.1


def test_a_network_resumes_alike_from_its_state():
    left, right = start(norm="stored", batch_norm=True), start(norm="stored", batch_norm=True)
    left.learn(0)
    left.learn(1)
    right.net.add_task(3)
    right.net.load_state_dict(left.net.state_dict())
    x = FLAT.test(1).unit_images(torch.arange(8), torch.float32)
    with torch.no_grad():
        assert torch.equal(left.net.eval()(x, 1), right.net.eval()(x, 1))
    right.scores, right.session.tasks = list(left.scores), left.session.tasks
    right.session.prototypes = copy.deepcopy(left.session.prototypes)
    for run in (left, right):
        run.learn(2)
    for name, value in left.net.state_dict().items():
        assert torch.equal(value, right.net.state_dict()[name]), name


def test_a_capacity_that_cannot_be_reached_is_refused():
    trunk = networks.build("mlp", (1, 4, 4), 1).trunk
    with pytest.raises(UserError, match=r"columns of full width have a capacity of .* not 5000 %"):
        width_for(trunk, [2, 2], 5000)


@pytest.mark.parametrize("width", [0, 1.5, -1])
def test_a_bad_width_is_refused_in_one_line(width):
    with pytest.raises(UserError, match="column_width") as caught:
        PGN(column_width=width)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_a_column_is_refused_in_one_line():
    with preserved_rng():
        net = Network(nn.Sequential(nn.Flatten(), nn.Linear(64, 5)), 5)
    with pytest.raises(UserError, match="pgn cannot tell how the layers of a Sequential"):
        PGN().wrap(net, FLAT, 1)


def test_no_width_is_found_for_a_trunk_whose_connections_are_unknown():
    with pytest.raises(UserError, match="layers of a Flatten are connected"):
        width_for(nn.Flatten(), [2, 2], 100)
