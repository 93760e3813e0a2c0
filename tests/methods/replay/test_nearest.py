"""Answers by nearest means."""

import copy

import pytest
import torch
from torch import nn

from classgrad.methods.replay.icarl import NearestMeans
from classgrad.networks import Network, build
from oracles.models import built, normal


def plane() -> NearestMeans:
    """A network whose embedding is its input in the plane, with two tasks of two classes."""
    trunk = built(lambda: nn.Linear(2, 2, bias=False))
    nn.init.eye_(trunk.weight)
    net = Network(trunk, 2)
    net.add_task(2)
    wrapped = NearestMeans.of(net)
    wrapped.add_task(2)
    return wrapped


def test_a_case_worked_by_hand():
    net = plane().eval()
    net.set_means([torch.tensor([[5.0, 0.0], [0.0, 0.1]], dtype=torch.float64)])
    x = torch.tensor([[3.0, 4.0], [2.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    wanted = [[-(0.4**2 + 0.8**2), -(0.6**2 + 0.2**2)], [0, -2], [-1, -1]]
    assert net(x, 0).tolist() == [pytest.approx(row, abs=1e-12) for row in wanted]
    assert [m.tolist() for m in net.means] == [[[1, 0], [0, 1]]]


def test_heads_predict_in_training_and_for_tasks_without_means():
    net, x = plane(), normal(4, 2)
    logits = [net.heads[task](x) for task in range(2)]
    assert all(torch.equal(net.eval()(x, task), logits[task]) for task in range(2))
    net.set_means([torch.eye(2, dtype=torch.float64)])
    assert not torch.allclose(net(x, 0), logits[0])
    assert torch.equal(net(x, 1), logits[1])
    assert torch.equal(net.train()(x, 0), logits[0])


def test_a_network_is_taken_over_whole_and_only_once():
    net = build("resnet18", (3, 12, 12), width=2, norm="stored", affine="task")
    net.add_task(3)
    wrapped = NearestMeans.of(net.eval())
    assert wrapped.trunk is net.trunk
    assert not wrapped.training
    assert NearestMeans.of(wrapped) is wrapped
    x = torch.rand(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(wrapped(x, 0), net(x, 0))
    wrapped.add_task(2)
    wrapped.find_layers()
    assert wrapped.task_dependent
    assert len(wrapped._norms) == 20
    assert wrapped(x, 1).shape == (4, 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_means_go_with_the_state_and_with_copies(dtype):
    nets = []
    for _ in range(2):
        net = build("mlp", (1, 4, 4), width=5)
        net.add_task(3)
        wrapped = NearestMeans.of(net).to(dtype)
        wrapped.add_task(2)
        nets.append(wrapped.eval())
    first, second = nets
    first.set_means([normal(3, 5).to(dtype), normal(2, 5, seed=1).to(dtype)])
    x = normal(6, 1, 4, 4).to(dtype)
    second.load_state_dict(first.state_dict())
    third = copy.deepcopy(first)
    for task in range(2):
        assert first(x, task).dtype == dtype
        assert torch.equal(first(x, task), second(x, task))
        assert torch.equal(first(x, task), third(x, task))
    assert [m.shape for m in second.means] == [(3, 5), (2, 5)]
    third.set_means([normal(3, 5, seed=2).to(dtype)])
    assert not torch.equal(first(x, 0), third(x, 0))
