"""Shards of a batch behave like the batch: rows, norms, dropout. Threads stand for processes."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.nn import functional

from classgrad import networks
from classgrad.networks.blocks import block_at
from classgrad.networks.layers import Dropout, TaskBatchNorm
from classgrad.networks.shard import Shard

COUNTS = (3, 1, 2)  # samples of each process


class ChannelSums:
    """ChannelSums over threads that all call in the same order."""

    def __init__(self, size):
        self.barrier = threading.Barrier(size, timeout=20)
        self.parts = [None] * size

    def of(self, index):
        def total(values):
            self.parts[index] = values
            self.barrier.wait()
            result = torch.stack(self.parts).sum(0)
            self.barrier.wait()
            return result

        return total


def together(work):
    """Return what each thread makes of its shard."""
    sums, starts = ChannelSums(len(COUNTS)), torch.tensor([0, *COUNTS]).cumsum(0).tolist()
    shards = [
        Shard(sum(COUNTS), starts[i], starts[i + 1], len(COUNTS), sums.of(i))
        for i in range(len(COUNTS))
    ]
    with ThreadPoolExecutor(len(COUNTS)) as pool:
        return list(pool.map(work, shards))


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_gathered_rows_are_those_of_the_batch_and_their_gradients_sums():
    x, weights = normal(6, 4), normal(3, 6, 4)

    def work(shard):
        own = x[shard.part].clone().requires_grad_()
        rows = shard.gather(own)
        (rows * weights[COUNTS.index(shard.size)]).sum().backward()
        return rows.detach(), own.grad

    result = together(work)
    assert all(torch.equal(rows, x) for rows, _ in result)
    torch.testing.assert_close(torch.cat([grad for _, grad in result]), weights.sum(0))


@pytest.mark.parametrize("size", [(), (4, 3)])
def test_norms_use_the_statistics_of_the_batch(size):
    x, above = normal(6, 5, *size), normal(6, 5, *size).flip(0)

    def norm():
        layer = TaskBatchNorm(5, "stored").double()
        with torch.no_grad():
            layer.scale_0.copy_(torch.linspace(0.5, 2, 5))
        return layer

    def work(shard):
        layer, own = norm(), x[shard.part].clone().requires_grad_()
        layer.shard = shard
        out = layer(own)
        out.backward(above[shard.part])
        return out.detach(), own.grad, layer.scale_0.grad, layer.shift_0.grad, layer

    alone, whole = norm(), x.clone().requires_grad_()
    out = alone(whole)
    out.backward(above)
    outs, grads, scales, shifts, layers = zip(*together(work), strict=True)
    torch.testing.assert_close(torch.cat(outs), out)
    torch.testing.assert_close(torch.cat(grads), whole.grad)
    torch.testing.assert_close(torch.stack(scales).sum(0), alone.scale_0.grad)
    torch.testing.assert_close(torch.stack(shifts).sum(0), alone.shift_0.grad)
    for layer in layers:
        torch.testing.assert_close(layer.mean_0, alone.mean_0)
        torch.testing.assert_close(layer.variance_0, alone.variance_0)


def test_dropout_drops_what_it_would_of_the_batch():
    x = normal(6, 7, 2)

    def dropped(part, shard):
        layer = Dropout(0.5)
        layer.generator, layer.shard = torch.Generator().manual_seed(3), shard
        return layer(part)

    result = together(lambda shard: dropped(x[shard.part], shard))
    assert torch.equal(torch.cat(result), dropped(x, None))


def test_a_weighted_loss_has_the_mean_of_the_batch():
    x = normal(6)
    result = together(lambda shard: shard.weighted(x[shard.part].mean()))
    torch.testing.assert_close(torch.stack(result).mean(), x.mean())


def test_a_network_sets_the_shard_of_its_layers_and_resets_it():
    net = networks.build("mlp", (1, 4, 4), batch_norm=True, dropout=0.5)
    layers = [m for m in net.modules() if isinstance(m, TaskBatchNorm | Dropout)]
    assert {type(layer) for layer in layers} == {TaskBatchNorm, Dropout}
    part, few = Shard(6, 0, 3, 2), Shard(1, 0, 1)

    def seen():
        (shard,) = {layer.shard for layer in layers}
        return shard

    with net.sharded(part):
        assert seen() is part
        with net.sharded(few):  # which every process has all of
            assert seen() is None
        assert seen() is part
    assert seen() is None
    with pytest.raises(RuntimeError), net.sharded(part):
        net(torch.zeros(2, 3), 0)
    assert seen() is None


def test_a_norm_that_sees_a_shard_is_not_in_a_block():
    layers = [TaskBatchNorm(3), nn.ReLU()]
    x = normal(4, 3)
    assert block_at(layers, 0, x) == layers
    layers[0].shard = Shard(8, 0, 4, 2)
    assert block_at(layers, 0, x) == []


def test_statistics_of_several_processes_are_those_of_all_their_inputs():
    x = normal(6, 1, 4, 4).float()

    alone, *nets = (
        networks.build("mlp", (1, 4, 4), batch_norm=True, norm="stored") for _ in range(4)
    )
    for net in (alone, *nets):
        net.add_task(3)

    def work(shard):
        index = COUNTS.index(shard.size)
        batches = [[x[:4]], [], [x[4:]]]  # one has no input
        nets[index].recalibrate(0, batches[index], shard.sum)

    together(work)
    alone.recalibrate(0, [x[:4], x[4:]])
    expected = dict(alone.named_buffers())
    assert any(value.ne(0).any() for value in expected.values())
    for net in nets:
        torch.testing.assert_close(dict(net.named_buffers()), expected)


def test_a_shard_that_is_the_batch_costs_nothing():
    x = functional.normalize(normal(4, 2))
    shard = Shard(4, 0, 4)
    assert shard.gather(x) is x
    assert shard.weighted(x) is x
    assert shard.sum(x) is x
    assert shard.weight == 1.0
