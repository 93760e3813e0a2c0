"""Blocks of norm, ReLU, dropout and pooling against the layers one after another."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from classgrad import networks
from classgrad.errors import UserError
from classgrad.networks import blocks
from classgrad.networks.layers import Dropout, TaskBatchNorm


def draw(*shape, seed=0):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=rng, dtype=torch.float64)


def stack(*, drop, pool, statistics="batch", channels=5):
    layers = [TaskBatchNorm(channels, statistics).double(), nn.ReLU()]
    if drop is not None:
        layers.append(Dropout(drop))
        layers[-1].generator = torch.Generator().manual_seed(7)
    if pool:
        layers.append(nn.MaxPool2d(2))
    with torch.no_grad():
        layers[0].scale_0.copy_(draw(channels, seed=1))
        layers[0].shift_0.copy_(draw(channels, seed=2))
    return layers


def results(layers, x, one_by_one):
    x = x.clone().requires_grad_()
    if one_by_one:
        out = x
        for layer in layers:
            out = layer(out)
    else:
        assert len(blocks.block_at(layers, 0, x)) == len(layers)
        out = blocks.run(layers, x)
    weights = draw(*out.shape, seed=3)
    (out * weights).sum().backward()
    return out.detach(), x.grad, *(p.grad for p in layers[0].parameters())


@pytest.mark.parametrize("drop", [None, 0.0, 0.3])
@pytest.mark.parametrize("statistics", ["batch", "stored"])
@pytest.mark.parametrize(
    ("shape", "pool"), [((6, 5), False), ((4, 5, 6, 7), False), ((4, 5, 7, 6), True)]
)
@pytest.mark.parametrize("last", [False, True])
def test_a_block_is_its_layers_one_after_another(drop, statistics, shape, pool, last):
    x = draw(*shape)
    if last and x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    slow = stack(drop=drop, pool=pool, statistics=statistics)
    fast = stack(drop=drop, pool=pool, statistics=statistics)
    expected = results(slow, x, one_by_one=True)
    result = results(fast, x, one_by_one=False)
    torch.testing.assert_close(result, expected, rtol=1e-10, atol=1e-10)
    if statistics == "stored":
        torch.testing.assert_close(fast[0].mean_0, slow[0].mean_0)
        torch.testing.assert_close(fast[0].variance_0, slow[0].variance_0)


def test_whole_networks_have_the_same_gradients():
    gradients = []
    for one_by_one in (False, True):
        net = networks.build("alexnet5", (3, 20, 20), 1).double()
        net.add_task(3)
        net.set_generator(torch.Generator().manual_seed(4))
        if one_by_one:  # a hook has to be called, so the layer is
            for layer in net.trunk:
                layer.register_forward_hook(lambda *_: None)
        net(draw(8, 3, 20, 20).abs(), 0).square().sum().backward()
        gradients.append({name: p.grad for name, p in net.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, gradients[1][name], rtol=1e-8, atol=1e-10)


@torch.no_grad()
@pytest.mark.parametrize("statistics", ["batch", "stored"])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_block_in_evaluation_is_its_layers_one_after_another(statistics, last, dtype):
    x = draw(4, 5, 7, 6).to(dtype)
    if last:
        x = x.contiguous(memory_format=torch.channels_last)
    layers = [layer.to(dtype).eval() for layer in stack(drop=0.3, pool=True, statistics=statistics)]
    assert (layers[0].scale_0 < 0).any()
    assert (layers[0].scale_0 > 0).any()
    if statistics == "stored":
        layers[0].mean_0.copy_(draw(5, seed=5))
        layers[0].variance_0.copy_(draw(5, seed=6).square())
    expected = x
    for layer in layers:
        expected = layer(expected)
    assert blocks.block_at(layers, 0, x) == layers
    result = blocks.run(layers, x)
    if statistics == "stored":
        assert torch.equal(result, expected)
    # How PyTorch rounds batch statistics depends on the processor.
    tolerance = 1e-6 if dtype == torch.float32 else 1e-14
    torch.testing.assert_close(result, expected, rtol=tolerance, atol=tolerance)


def test_a_block_of_one_value_per_channel_is_refused_in_evaluation():
    layers = [layer.eval() for layer in stack(drop=None, pool=True)]
    with torch.no_grad(), pytest.raises(UserError, match="more than one value"):
        blocks.run(layers, draw(1, 5, 1, 1))


@torch.no_grad()
@pytest.mark.parametrize("norm", ["batch", "stored"])
@pytest.mark.parametrize("precision", [None, torch.bfloat16])
def test_tasks_share_the_layers_before_the_first_that_differs(norm, precision):
    net = networks.build("alexnet5", (3, 20, 20), 1, norm=norm, affine="task")
    for task in range(3):
        net.add_task(2)
        for layer in net.trunk:
            if isinstance(layer, TaskBatchNorm):
                for kind in ("scale", "shift"):
                    value = layer.get_parameter(f"{kind}_{task}")
                    value.copy_(draw(layer.channels, seed=task))
    net.eval()
    net.precision = precision
    x, calls = draw(8, 3, 20, 20).float(), []
    one_by_one = [net.embed(x, task) for task in (2, 0, 1)]
    for name in ("conv1", "conv2"):
        layer = net.trunk.get_submodule(name)
        layer.register_forward_hook(lambda *_, name=name: calls.append(name))
    together = net.embed_each(x, (2, 0, 1))
    assert calls == ["conv1", "conv2", "conv2", "conv2"]
    for a, b in zip(together, one_by_one, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b)
    assert not torch.equal(together[0], together[1])


def test_layers_with_hooks_and_other_kinds_are_left_alone():
    x = draw(4, 5, 6, 6)
    called = []
    layers = stack(drop=0.2, pool=True)
    layers[1].register_forward_hook(lambda *_: called.append(1))
    assert blocks.block_at(layers, 0, x) == []
    blocks.run(layers, x)
    assert called == [1]
    assert blocks.block_at([layers[0], nn.Sigmoid()], 0, x) == []
    assert blocks.block_at([nn.BatchNorm2d(5), nn.ReLU()], 0, x) == []
    layers = stack(drop=0.2, pool=False)
    other = [*layers, nn.MaxPool2d(3, stride=2)]
    assert blocks.block_at(other, 0, x) == layers
    with torch.no_grad():
        assert blocks.block_at(layers, 0, x) == []
    for layer in layers:
        layer.eval()
    with torch.no_grad():
        assert blocks.block_at(layers, 0, x) == []
    layers = stack(drop=0.2, pool=False)
    layers[0].constant = True
    assert blocks.block_at(layers, 0, x) == []


def test_evaluation_with_gradients_or_with_dropout_is_left_alone():
    x, layers = draw(4, 5, 6, 6), stack(drop=0.2, pool=True)
    for layer in layers:
        layer.eval()
    assert blocks.block_at(layers, 0, x) == []
    with torch.no_grad():
        assert blocks.block_at(layers, 0, x) == layers
        assert blocks.block_at(layers, 0, x.float()) == []
        layers[2].train()
        assert blocks.block_at(layers, 0, x) == []


def test_a_trunk_uses_blocks():
    class Tiny(networks.NETWORKS["mlp"]):
        @staticmethod
        def stack(input_shape, options):
            return OrderedDict(bn=TaskBatchNorm(3), relu=nn.ReLU(), flat=nn.Flatten())

    trunk = Tiny((3, 2, 2), networks.options("mlp"))
    out = trunk(torch.ones(2, 3, 2, 2).requires_grad_())
    assert "Block" in type(out.grad_fn.next_functions[0][0]).__name__


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("network", ["alexnet5", "resnet18"])
def test_two_batches_at_once_are_two_passes_and_the_second_leaves_no_statistics(network, hooked):
    x, other = draw(8, 3, 20, 20).abs(), draw(6, 3, 20, 20, seed=1).abs()
    outcomes = []
    for at_once in (False, True):
        options = {"dropout": False} if network == "alexnet5" else {}
        net = networks.build(network, (3, 20, 20), 1, norm="stored", **options).double()
        net.add_task(3)
        rows = []
        for layer in net.trunk:
            if isinstance(layer, nn.Linear):
                layer.register_forward_hook(
                    lambda _, args, __, rows=rows: rows.append(len(args[0]))
                )
        if at_once:
            if hooked:  # a trunk with hooks has to be called
                net.trunk.register_forward_hook(lambda *_: None)
            pair = net.embed_both(x, other, 0)
        else:
            pair = [net.embed(x, 0)]
            with net.frozen_bn_stats():
                pair.append(net.embed(other, 0))
        weights = (draw(*out.shape, seed=2 + i) for i, out in enumerate(pair))
        sum((out * w).sum() for out, w in zip(pair, weights, strict=True)).backward()
        if network == "alexnet5":
            assert rows == ([14, 14] if at_once and not hooked else [8, 8, 6, 6])
        gradients = [p.grad for p in net.trunk.parameters()]
        outcomes.append([*(out.detach() for out in pair), *gradients, *net.buffers()])
    torch.testing.assert_close(*outcomes, rtol=1e-8, atol=1e-10)
