"""Sensitivities of weights by one backward pass for each sample, and a network to do by hand."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.methods import Method
from classgrad.networks.network import Network
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Split, Task, TaskStream
from oracles.models import built


def one_by_one(
    model: nn.Module, scalars: Tensor, measure: Callable[[Tensor], Tensor]
) -> dict[str, Tensor]:
    """Sum m(∂l_i/∂θ) over samples for every parameter of a model, zero where it has no part."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for scalar in scalars:
        result = torch.autograd.grad(
            scalar, list(named.values()), retain_graph=True, allow_unused=True
        )
        for name, gradient in zip(named, result, strict=True):
            if gradient is not None:
                total[name] += measure(gradient)
    return total


def logits_apart(net: Network, task: Task) -> Tensor:
    """Logits of all training samples in one batch, none of which moves another's gradient."""
    net.eval()
    dtype = next(net.parameters()).dtype
    with net.detached_batch_stats():
        return net(task.transform(task.train.unit_images(slice(None), dtype)), task.id)


def linear_net(weight: list[list[float]]) -> Network:
    """A network whose logits are W x: the trunk is W, the head of the first task passes them on."""
    w = torch.tensor(weight, dtype=torch.float64)
    net = built(lambda: Network(nn.Linear(w.shape[1], len(w), bias=False), len(w)))
    net.add_task(len(w))
    with torch.no_grad():
        net.trunk.weight.copy_(w)
        net.heads[0].weight.copy_(torch.eye(len(w)))
    return net


def task_of(x: list[list[float]], y: list[int]) -> Task:
    """A first task with these training samples."""
    split = Split(torch.tensor(x, dtype=torch.float64), torch.tensor(y))
    names = tuple(str(label) for label in range(max(y) + 1))
    return Task(0, "by hand", names, split, split)


def later_loss(stream: TaskStream, method: Method) -> float:
    """Cross-entropy on the training samples of the first task after all are learnt."""
    values = {"epochs": 15, "batch_size": 6, "learning_rate": 0.1, "warmup": 0, "width": 16}
    running = Run(make_plan(stream, method, values=values), stream)
    running.execute()
    with torch.no_grad():
        logits = logits_apart(running.net, stream[0])
    return float(functional.cross_entropy(logits, stream[0].train.labels))
