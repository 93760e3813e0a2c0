"""Outputs of frozen layers: what is looked up, what is computed, and which layers are frozen."""

import copy

import pytest
import torch

from classgrad import networks
from classgrad.networks.frozen import FrozenOutputs
from classgrad.networks.layers import Dropout, PerTask
from classgrad.tasks import Split, unchanged

NAME = "efficientnet-lite0"
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def built(trainable=0):
    net = networks.build(NAME, (3, 16, 16), weights="random", size=16, trainable=trainable)
    net.add_task(2)
    return net


def images(count, seed=1):
    return torch.rand(count, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def look_up(net, known):
    """Let a network look up what its frozen layers make of these images."""
    net.frozen_outputs = FrozenOutputs(net.frozen_layers(), len(known))
    net.add_frozen_outputs(Split(known, torch.zeros(len(known), dtype=torch.int64)), unchanged)
    return net.frozen_outputs


def change_stem(net):
    """Change what the frozen layers compute, so that looking up can be told from computing."""
    net.trunk.stem.norm.bias.add_(1)


@pytest.mark.parametrize(
    ("trainable", "last"),
    [(0, "flat"), (1, "block15"), (3, "block13"), (17, "relu_stem"), (18, None), (99, None)],
)
def test_the_layers_before_the_first_that_learns_are_frozen(trainable, last):
    trunk = built(trainable).trunk
    names = [name for name, _ in trunk.named_children()]
    wanted = list(trunk)[: names.index(last) + 1] if last else []
    assert trunk.frozen_layers() == wanted


def test_no_layer_is_frozen_that_draws_or_knows_the_task_or_the_batch():
    for part in (Dropout(0.5), PerTask()):
        trunk = built().trunk
        trunk.block3.extra = part
        assert trunk.frozen_layers()[-1] is trunk.block2
    net = networks.build("alexnet5", (3, 32, 32))
    net.trunk.requires_grad_(False)
    assert net.frozen_layers() == []
    with torch.random.fork_rng():
        linear = torch.nn.Linear(4, 2).requires_grad_(False)
    own = networks.build_own(torch.nn.Sequential(linear), (4,))
    assert own.frozen_layers() == []  # of its layers nothing is known
    own.frozen_outputs = None
    assert own.frozen_outputs is None


@pytest.mark.parametrize("trainable", [0, 1, 3])
def test_embeddings_differ_by_rounding_only(trainable):
    net, known = built(trainable), images(73)  # a batch of 64, and one of 9
    wanted = net.embed(known, 0)
    look_up(net, known)
    mixed = torch.cat([known[62:], images(3, seed=2), known[:5]])
    torch.testing.assert_close(net.embed(known, 0), wanted, **CLOSE)
    assert (wanted[1:] - wanted[:-1]).abs().amax(1).min() > 0.01  # images can be told apart
    found = net.embed(mixed, 0)
    net.frozen_outputs = None
    torch.testing.assert_close(found, net.embed(mixed, 0), **CLOSE)


def test_known_images_are_looked_up_and_others_computed():
    net, known, others = built(), images(6), images(3, seed=2)
    before, mixed = net.embed(known, 0), torch.cat([others, known])
    table = look_up(net, known)
    change_stem(net)
    torch.testing.assert_close(net.embed(mixed, 0)[3:], before, **CLOSE)
    torch.testing.assert_close(net.embed(mixed.double().float(), 0)[3:], before, **CLOSE)
    one, copies = net.embed_both(known, others, 0)
    torch.testing.assert_close(one, before, **CLOSE)
    assert len(table) == 6
    net.frozen_outputs = None
    torch.testing.assert_close(copies, net.embed(others, 0), **CLOSE)
    assert (net.embed(known, 0) - before).abs().max() > 0.1


def test_looking_up_adds_nothing_and_the_first_output_of_an_image_stays():
    net, known = built(), images(4)
    table = look_up(net, torch.cat([known, known]))
    assert len(table) == 4
    before = net.embed(known, 0)
    net.embed(images(5, seed=2), 0)
    change_stem(net)
    table.add(known)
    assert len(table) == 4
    assert torch.equal(net.embed(known, 0), before)


def test_layers_that_are_not_frozen_learn_as_ever():
    def gradients(net):
        loss = net.train()(images(6), 0).square().sum()
        return torch.autograd.grad(loss, list(net.shared_parameters().values()))

    net = built(trainable=3)
    wanted = gradients(net)
    look_up(net, images(6))
    change_stem(net)
    found = gradients(net)
    assert len(found) > 3
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).norm() < 1e-4 * other.norm()
        assert other.abs().max() > 0
    before = net.embed(images(6), 0)
    net.embed(images(6), 0).square().sum().backward()
    assert torch.equal(net.embed(images(6), 0), before)  # no layer writes to the table


def test_frozen_layers_with_hooks_are_called():
    net, calls = built(), []
    look_up(net, images(4))
    handle = net.trunk.block5.project.conv.register_forward_pre_hook(lambda *_: calls.append(1))
    net.embed(images(4), 0)
    assert calls == [1]
    handle.remove()
    net.embed(images(4), 0)
    assert calls == [1]


def test_copies_of_a_network_look_up_in_the_same_table():
    net = built()
    table = look_up(net, images(4))
    twin = copy.deepcopy(net)
    assert twin.frozen_outputs is table
    assert torch.equal(twin.embed(images(4), 0), net.embed(images(4), 0))


def test_the_size_of_a_table():
    assert FrozenOutputs(built().frozen_layers(), 10).nbytes((3, 16, 16)) == 10 * 1280 * 4
    assert FrozenOutputs(built(1).frozen_layers(), 10).nbytes((3, 16, 16)) == 10 * 320 * 4
    assert FrozenOutputs(built(7).frozen_layers(), 1).nbytes((3, 16, 16)) == 112 * 4
