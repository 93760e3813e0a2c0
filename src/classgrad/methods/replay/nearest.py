"""A network that answers with the nearest class mean where it has means, else with its heads."""

from typing import Self

import torch
from torch import Tensor, nn
from torch.nn import functional

from classgrad.networks.network import Network


class NearestMeans(Network):
    """Heads while training; in evaluation mode -||z - μ_y||² for each class y of the task.

    z is the embedding and μ_y the mean of the class, both of length 1. Tasks without means are
    answered by their heads. The means are buffers: they go wherever the network goes.
    """

    means_known: Tensor  # how many tasks have means, from the first on

    def __init__(
        self, trunk: nn.Module, embedding: int, *, seed: int = 1, shared_head: bool = False
    ) -> None:
        super().__init__(trunk, embedding, seed=seed, shared_head=shared_head)
        device = next(trunk.parameters()).device
        self.register_buffer("means_known", torch.tensor(0, device=device))

    @classmethod
    def of(cls, net: Network) -> Self:
        """Return a network with the trunk and the heads of `net`, or `net` if it is one already."""
        if isinstance(net, cls):
            return net
        made = cls(net.trunk, net.embedding, seed=net.seed, shared_head=net.shared_head)
        made.heads = net.heads
        for task in range(len(net.heads)):
            made._make_room(task, net.head_parameters(task)[0].shape[0])
        return made.train(net.training)

    def add_task(self, classes: int) -> None:
        """Append what the next task owns, with room for its means."""
        super().add_task(classes)
        self._make_room(len(self.heads) - 1, classes)

    def _make_room(self, task: int, classes: int) -> None:
        like = next(self.trunk.parameters())
        room = torch.zeros(classes, self.embedding, dtype=like.dtype, device=like.device)
        self.register_buffer(f"means_{task}", room)

    @property
    def means(self) -> list[Tensor]:
        """Unit means (classes x embedding) of the tasks that have them."""
        return [self.get_buffer(f"means_{task}") for task in range(int(self.means_known))]

    def set_means(self, means: list[Tensor]) -> None:
        """Answer for the first tasks by these means, which are brought to length 1."""
        for task, of_task in enumerate(means):
            self.get_buffer(f"means_{task}").copy_(functional.normalize(of_task, dim=1))
        self.means_known.fill_(len(means))

    def classify(self, features: Tensor, task: int) -> Tensor:
        """Map embeddings to the logits of one task, or to its scores by nearest means."""
        if self.training or task >= int(self.means_known):
            return super().classify(features, task)
        z, means = functional.normalize(features, dim=1), self.get_buffer(f"means_{task}")
        return 2 * z @ means.T - z.square().sum(1, keepdim=True) - means.square().sum(1)
