"""A recurrent controller that learns by REINFORCE to choose one number after another."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.networks.network import global_chance_kept


class Controller(nn.Module):
    """An LSTM that sees the last choice (at first none) and gives the odds of the next.

    A critic predicts the reward from the LSTM's state, before each choice; it learns beside the
    controller and does not move it.
    """

    def __init__(
        self,
        choices: int,
        generator: torch.Generator,
        *,
        hidden: int = 100,
        rate: float = 1e-3,
        critic_rate: float = 5e-3,
    ) -> None:
        super().__init__()
        self.choices = choices
        with global_chance_kept():
            self.memory = nn.LSTM(choices, hidden, num_layers=2, batch_first=True)
            self.odds = nn.Linear(hidden, choices)
            self.critic = nn.Linear(hidden, 1)
        bound = 1 / math.sqrt(hidden)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.uniform_(-bound, bound, generator=generator)
        actor = [*self.memory.parameters(), *self.odds.parameters()]
        groups = [{"params": actor, "lr": rate}]
        groups += [{"params": list(self.critic.parameters()), "lr": critic_rate}]
        self.optimizer = torch.optim.Adam(groups)

    def states(self, actions: list[int]) -> Tensor:
        """Return the LSTM's state before each choice (n x hidden)."""
        seen = torch.zeros(1, len(actions), self.choices, dtype=self.odds.weight.dtype)
        for place, action in enumerate(actions[:-1], start=1):
            seen[0, place, action] = 1
        found: Tensor = self.memory(seen)[0][0]
        return found

    @torch.no_grad()
    def sample(self, count: int, generator: torch.Generator) -> list[int]:
        """Draw so many choices."""
        actions: list[int] = []
        for _ in range(count):
            logits = self.odds(self.states([*actions, 0])[-1])
            actions.append(int(torch.multinomial(logits.softmax(0), 1, generator=generator)))
        return actions

    def log_probability(self, actions: list[int], states: Tensor | None = None) -> Tensor:
        """Return the logarithm of the odds of these choices, one number for each."""
        logs = self.odds(self.states(actions) if states is None else states).log_softmax(1)
        found: Tensor = logs[torch.arange(len(actions)), torch.tensor(actions)]
        return found

    def loss(self, actions: list[int], reward: float) -> Tensor:
        """Return -Σ (R - V) log π, V the critic's value, with the critic's squared error."""
        states = self.states(actions)
        values = self.critic(states.detach())[:, 0]
        logs = self.log_probability(actions, states)
        policy: Tensor = -((reward - values.detach()) * logs).sum()
        return policy + functional.mse_loss(values, torch.full_like(values, reward))

    def learn(self, actions: list[int], reward: float) -> None:
        """Take one step on what these choices brought."""
        self.optimizer.zero_grad()
        self.loss(actions, reward).backward()
        self.optimizer.step()
