"""Reinforced Continual Learning (Xu, Zhu; NeurIPS 2018): learn how many units to add.

The first task is learnt as in finetuning. For each later task a controller, an LSTM, chooses a
number a_l in 0..29 for each layer. A child is the network with a_l more units in layer l: all old
weights keep their bits; the weights to and from new units, and the head, are trained for
`child_epochs`. Its reward is

    R = validation accuracy (0 to 1) - α Σ_l a_l.

The LSTM's first input is a fixed vector s, drawn at random for the task; its next inputs are its
own outputs, π_l = softmax(W h_l), before anything is drawn from them. So the choices are
independent given the controller, as in the released code. With `sees="choices"` its inputs are the
choices drawn so far, the first one zero, and choices depend on those before them.

The controller learns from each child by REINFORCE: it follows (R - V) Σ_l ∇ log π_l(a_l), with V
what a critic, linear in s, predicts, itself fitted to R. With `sees="choices"` it is linear in the
LSTM's state, with a value V_l for each choice. Of all children (`trials`) the one with the
highest reward is kept, of equal ones the first. A task uses only the units that existed when it was
learnt, so its outputs never change.

Controller and critic are initialised again for every task, as in the released code. Choices of
ours: new units start with outgoing weights of zero; children of one task differ only in their
units, whose weights are drawn from the same seed. With BatchNorm, the scales and shifts of new
channels are trained, or the task has its own (`affine=task`).

Differences from the released code: layers may be convolutions too, where a unit is a filter.
"""

import math
from collections.abc import Sequence
from dataclasses import InitVar
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from pydantic import Field, PrivateAttr
from torch import Tensor, nn
from torch.nn import functional

from classgrad import seeds
from classgrad.errors import UserError
from classgrad.methods.base import Fit, Step
from classgrad.methods.structure.expanding import Expanding, added
from classgrad.methods.structure.growing import grow, resize, units, width
from classgrad.networks.network import Network, preserved_rng
from classgrad.prediction.accuracy import accuracy
from classgrad.tasks import Task


class Controller(nn.Module):
    """An LSTM that sees its last output, or the last choice, and returns the logits of the next.

    A critic predicts the reward; its gradient does not reach the controller.
    """

    first: Tensor

    def __init__(
        self,
        choices: int,
        generator: torch.Generator,
        *,
        hidden: int = 100,
        rate: float = 1e-3,
        critic_rate: float = 5e-3,
        sees: Literal["outputs", "choices"] = "outputs",
    ) -> None:
        super().__init__()
        self.choices, self.sees = choices, sees
        with preserved_rng():
            self.lstm = nn.LSTM(choices, hidden, num_layers=2, batch_first=True)
            self.policy = nn.Linear(hidden, choices)
            self.critic = nn.Linear(choices if sees == "outputs" else hidden, 1)
        bound = 1 / math.sqrt(hidden)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
            if sees == "outputs":
                self.register_buffer("first", torch.rand(choices, generator=generator))
                self.critic.weight.zero_()
                self.critic.bias.zero_()
        actor = [*self.lstm.parameters(), *self.policy.parameters()]
        groups = [{"params": actor, "lr": rate}]
        groups += [{"params": list(self.critic.parameters()), "lr": critic_rate}]
        self.optimizer = torch.optim.Adam(groups)

    def states(self, actions: list[int]) -> Tensor:
        """Return the LSTM's state before each choice (n x hidden)."""
        if self.sees == "outputs":
            return self._states_of_outputs(len(actions))
        inputs = torch.zeros(1, len(actions), self.choices, dtype=self.policy.weight.dtype)
        for position, action in enumerate(actions[:-1], start=1):
            inputs[0, position, action] = 1
        states: Tensor = self.lstm(inputs)[0][0]
        return states

    def _states_of_outputs(self, count: int) -> Tensor:
        """Return the states of an LSTM whose inputs are its own outputs."""
        states, memory, seen = [], None, self.first.view(1, 1, -1)
        for _ in range(count):
            state, memory = self.lstm(seen, memory)
            seen = self.policy(state).softmax(2)
            states.append(state[0, 0])
        return torch.stack(states)

    def values(self, states: Tensor) -> Tensor:
        """Return the reward that the critic predicts before each choice."""
        if self.sees == "choices":
            of_states: Tensor = self.critic(states.detach())[:, 0]
            return of_states
        of_first: Tensor = self.critic(self.first)
        return of_first.expand(len(states))

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> list[int]:
        """Draw `count` choices."""
        actions: list[int] = []
        for _ in range(count):
            logits = self.policy(self.states([*actions, 0])[-1])
            actions.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
        return actions

    def log_probability(self, actions: list[int], states: Tensor | None = None) -> Tensor:
        """Return the log-probability of each of these choices."""
        logs = self.policy(self.states(actions) if states is None else states).log_softmax(1)
        chosen: Tensor = logs[torch.arange(len(actions)), torch.tensor(actions)]
        return chosen

    def loss(self, actions: list[int], reward: float) -> Tensor:
        """Return -Σ (R - V) log π, V the critic's value, plus the critic's squared error."""
        states = self.states(actions)
        values = self.values(states)
        logs = self.log_probability(actions, states)
        policy_loss: Tensor = -((reward - values.detach()) * logs).sum()
        return policy_loss + functional.mse_loss(values, torch.full_like(values, reward))

    def learn(self, actions: list[int], reward: float) -> None:
        """Take one optimiser step for these choices and their reward."""
        self.optimizer.zero_grad()
        self.loss(actions, reward).backward()
        self.optimizer.step()


class RCL(Expanding):
    """Train children with more units, the rest frozen; a controller learns how many to add."""

    name: ClassVar[str] = "rcl"
    summary: ClassVar[str] = "Reinforced Continual Learning: a controller adds units (NeurIPS 2018)"
    aliases: ClassVar[dict[str, str]] = {"alpha": "price"}

    trials: int = Field(default=50, ge=1, description="children tried for each task")
    child_epochs: int = Field(default=15, ge=1, description="epochs a child is trained for")
    largest: int = Field(default=29, ge=1, description="units a layer can get in a task, at most")
    price: float = Field(
        default=1e-4, ge=0, description="price of a new unit, as a share of accuracy (α)"
    )
    l2: float = Field(default=1e-4, ge=0, description="weight decay of a child's trained weights")
    controller_rate: float = Field(
        default=1e-3, gt=0, description="learning rate of the controller"
    )
    critic_rate: float = Field(default=5e-3, gt=0, description="learning rate of its critic")
    hidden: int = Field(
        default=100, ge=1, description="units of each of the controller's two layers"
    )
    sees: Literal["outputs", "choices"] = Field(
        default="outputs",
        description="what the controller sees: its last output, or its last choice",
    )

    if TYPE_CHECKING:  # aliases, see Settings
        alpha: InitVar[float] = price

    _task: int = PrivateAttr(default=-1)
    _children: list[dict[str, Any]] = PrivateAttr(default_factory=list)  # actions and rewards
    _start: dict[str, Any] = PrivateAttr(default_factory=dict)  # the network before any child
    _best: dict[str, Any] = PrivateAttr(default_factory=dict)  # the best child so far

    def wrap(self, net: Network, stream: Sequence[Task], seed: int) -> Network:
        """Convert the layers to growing ones; refuse later tasks without validation data."""
        for task in stream[1:]:
            if not len(task.valid):
                raise UserError(
                    f"rcl compares networks on validation data, but task '{task.name}' has none: "
                    "set valid_fraction above 0"
                )
        return super().wrap(net, stream, seed)

    def begin_task(self, net: Network, task: Task) -> None:
        """Freeze what earlier tasks learnt, unless the task has begun before."""
        if self._task == task.id:
            return
        self._task, self._children, self._best = task.id, [], {}
        self._start = snapshot(net) if task.id else {}
        self.set_free(net, added(net, width(net)) if task.id else None)

    def rounds(self, task: Task) -> int:
        """Return how many children are trained."""
        return self.trials if task.id else 1

    def fit_task(self, net: Network, task: Task, fit: Fit) -> None:
        """Train the children, and keep the best."""
        if task.id == 0:
            fit([task])
            return
        controller = self._controller(net, task)
        while len(self._children) < self.trials:
            restore_network(net, self._start)
            number = len(self._children)
            rng = seeds.generator(net.seed, "choices", task.id, number)
            actions = controller.sample(len(width(net)), rng)
            before = width(net)
            more = dict(zip(before, actions, strict=True))
            grow(net, more, seeds.generator(net.seed, "children", task.id))
            self.set_free(net, added(net, before))
            fit([task], epochs=self.child_epochs)
            share_correct = accuracy(net, task.id, task, task.valid) / 100
            reward = share_correct - self.price * sum(actions)
            controller.learn(actions, reward)
            if not self._best or reward > max(child["reward"] for child in self._children):
                self._best = snapshot(net)
            self._children.append({"actions": actions, "reward": reward})
        restore_network(net, self._best)
        self.set_free(net, {})  # nothing more is trained, and the units of the best are counted

    def _controller(self, net: Network, task: Task) -> Controller:
        """Return a new controller that has learnt from the children so far."""
        controller = Controller(
            self.largest + 1,
            seeds.generator(net.seed, "controller", task.id),
            hidden=self.hidden,
            rate=self.controller_rate,
            critic_rate=self.critic_rate,
            sees=self.sees,
        )
        for child in self._children:
            controller.learn(child["actions"], child["reward"])
        return controller

    def adjust_gradients(self, net: Network, step: Step) -> None:
        """Add the weight decay, then mask."""
        if self._free is not None:
            for name, parameter in net.named_parameters():
                if name in self._free and parameter.grad is not None:
                    parameter.grad.add_(parameter.detach(), alpha=self.l2)
        super().adjust_gradients(net, step)

    def end_task(self, net: Network, task: Task, generator: torch.Generator) -> None:
        """Keep only the number of units of each task."""
        self._task, self._children, self._start, self._best = -1, [], {}, {}
        self.set_free(net, None)

    def state_dict(self) -> dict[str, Any]:
        """Return the units of every task and, within a task, its children so far."""
        progress = {"task": self._task, "tried": list(self._children)}
        return {**super().state_dict(), **progress, "start": self._start, "best": self._best}

    def load_state_dict(self, state: dict[str, Any], net: Network) -> None:
        """Load a state."""
        super().load_state_dict(state, net)
        self._task, self._children = state["task"], list(state["tried"])
        self._start, self._best = dict(state["start"]), dict(state["best"])


def snapshot(net: Network) -> dict[str, Any]:
    """Return a copy of all sizes and values of a network."""
    values: dict[str, Tensor] = {name: v.detach().clone() for name, v in net.state_dict().items()}
    return {"units": units(net), "values": values}


def restore_network(net: Network, state: dict[str, Any]) -> None:
    """Give a network these sizes and values."""
    resize(net, state["units"])
    net.load_state_dict(state["values"])
