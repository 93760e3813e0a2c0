"""Slow and plain: a perceptron in numpy, losses in loops, herding by trying every sample."""

import copy
import math

import numpy as np
import torch

from classgrad.methods import Method
from classgrad.networks import Network
from classgrad.runs.run import Run
from classgrad.runs.spec import make_plan
from classgrad.tasks import Task, TaskStream
from streams import step_of


def weights(net: Network) -> dict[str, np.ndarray]:
    """All weights of a network, as they are now."""
    return {name: value.detach().numpy().copy() for name, value in net.state_dict().items()}


def embedding(at: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    """What an MLP of two hidden layers without norms makes of its inputs."""
    first = np.maximum(x.reshape(len(x), -1) @ at["trunk.fc1.weight"].T, 0)
    return np.maximum(first @ at["trunk.fc2.weight"].T, 0)


def outputs(at: dict[str, np.ndarray], x: np.ndarray, task: int) -> np.ndarray:
    """The outputs of one head of that MLP."""
    return embedding(at, x) @ at[f"heads.{task}.weight"].T


def softmax(row: np.ndarray) -> np.ndarray:
    """The softmax of one row of logits."""
    powers = np.exp(row - row.max())
    return powers / powers.sum()


def sigmoid(value: float) -> float:
    """The sigmoid of one number."""
    return 1 / (1 + math.exp(-value))


def binary(target: float, logit: float) -> float:
    """The cross-entropy of one sigmoid output."""
    g = sigmoid(logit)
    return -(target * math.log(g) + (1 - target) * math.log(1 - g))


def greedy(features: np.ndarray, count: int) -> list[int]:
    """Herding, by the distance of every possible next mean from the mean of all."""
    mean, chosen = features.mean(0), []
    for _ in range(min(count, len(features))):
        distances = {
            i: np.linalg.norm(mean - features[[*chosen, i]].mean(0))
            for i in range(len(features))
            if i not in chosen
        }
        chosen.append(min(distances, key=distances.__getitem__))
    return chosen


def inputs(task: Task, index: slice | torch.Tensor = slice(None)) -> torch.Tensor:
    """What a network in float64 sees of a task's training images."""
    return task.transform(task.train.unit_images(index, torch.float64))


def learning(
    stream: TaskStream, method: Method, tasks: int, network: str = "mlp", **values: object
) -> Run:
    """A run in float64 that has learnt some tasks and begun the next."""
    quick = {"epochs": 2, "batch_size": 12, "learning_rate": 0.02, "warmup": 0}
    if network == "mlp":
        quick["width"] = 12
    running = Run(make_plan(stream, method, network=network, values={**quick, **values}), stream)
    running.net.double()
    for task in range(tasks):
        running.learn(task)
    running.net.add_task(stream[tasks].classes)
    running.method.begin_task(running.net, stream[tasks])
    running.net.train()
    return running


def go_on(net: Network, method: Method, task: Task, numbers: range) -> torch.Tensor:
    """Take some steps of plain gradient descent; return all parameters after them."""
    optimizer = torch.optim.SGD(method.parameters(net, [task]), lr=0.02)
    net.train()
    for number in numbers:
        rng = torch.Generator().manual_seed(number)
        index = torch.randperm(len(task.train), generator=rng)[:12]
        step = step_of(task, optimizer, index, number=number, seed=number)
        optimizer.zero_grad()
        method.loss(net, step).backward()
        optimizer.step()
        method.after_step(net, step)
    return torch.cat([p.detach().flatten() for p in net.parameters()])


def interrupted(running: Run, task: Task, stream: TaskStream) -> tuple[torch.Tensor, torch.Tensor]:
    """The parameters after five steps at once, and after a stop and a new start within them."""
    first_net, method = running.net, running.method
    go_on(first_net, method, task, range(2))
    net, state = copy.deepcopy(first_net), copy.deepcopy(method.state_dict())
    again = method.replace()
    again.wrap(net, stream, 1)
    again.load_state_dict(state, net)
    assert again.memory_bytes() == method.memory_bytes() > 0
    straight = go_on(first_net, method, task, range(2, 5))
    return straight, go_on(net, again, task, range(2, 5))
