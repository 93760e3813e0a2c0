"""What is tuned: the last two blocks of MiniLM, on what the frozen ones make of the sentences.

The frozen blocks are computed once for all contenders. Sentences are known by their numbers.
"""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from classgrad import networks
from classgrad.networks.network import Network
from classgrad.tasks import Split

LAST = 2  # blocks
UNITS = 384
BATCH = 64
ALIKE = 8  # batches among which sentences are sorted by their length


class Cache:
    """The features of the tokens of sentences, after the frozen blocks."""

    def __init__(self, net: Network) -> None:
        layers = list(net.trunk.children())
        self.below, self.above = layers[: -1 - LAST], layers[-1 - LAST :]
        self.features: list[Tensor] = []
        self.most = 0  # tokens of any sentence
        self.collecting = False  # then all batches have as many tokens

    @torch.no_grad()
    def add(self, split: Split) -> Tensor:
        """Add sentences; return their numbers."""
        first = len(self.features)
        for rows in split.images.split(BATCH):
            state = rows.float() / 255
            for layer in self.below:
                state = layer(state)
            x, there = state
            for one, count in zip(x, there.sum((1, 2)).int().tolist(), strict=True):
                self.features.append(one[:count].clone())
                self.most = max(self.most, count)
        return torch.arange(first, len(self.features))

    def batch(self, numbers: Tensor) -> tuple[Tensor, Tensor]:
        """Return features of tokens, with zeros after the last, and which tokens there are."""
        chosen = [self.features[number] for number in numbers.tolist()]
        longest = self.most if self.collecting else max(map(len, chosen))
        there = torch.zeros(len(chosen), longest, 1)
        for row, one in zip(there, chosen, strict=True):
            row[: len(one)] = 1
        return nn.utils.rnn.pad_sequence(chosen, batch_first=True), there

    def batches(self, numbers: Tensor, size: int, rng: torch.Generator) -> Iterator[Tensor]:
        """Yield the places of numbers in random batches of sentences of about the same length."""
        parts: list[Tensor] = []
        for some in torch.randperm(len(numbers), generator=rng).split(ALIKE * size):
            lengths = torch.tensor([len(self.features[n]) for n in numbers[some].tolist()])
            parts += some[lengths.argsort(stable=True)].split(size)
        for place in torch.randperm(len(parts), generator=rng).tolist():
            yield parts[place]


class Top(nn.Module):
    """The last blocks, the mean over tokens, and a head for each task."""

    def __init__(self, cache: Cache, classes: Sequence[int]) -> None:
        super().__init__()
        self.cache = [cache]  # no part of the state
        self.layers = nn.Sequential(*copy.deepcopy(cache.above))
        self.heads = nn.ModuleList(nn.Linear(UNITS, count) for count in classes)

    def embed(self, numbers: Tensor) -> Tensor:
        """Return the embeddings of sentences."""
        features: Tensor = self.layers(self.cache[0].batch(numbers))
        return features

    def forward(self, numbers: Tensor, task: int) -> Tensor:
        """Return the logits of a task's intents."""
        logits: Tensor = self.heads[task](self.embed(numbers))
        return logits

    def linear(self) -> dict[str, nn.Linear]:
        """Return the layers of the blocks, by name."""
        named = self.layers.named_modules(prefix="layers")
        return {name: layer for name, layer in named if isinstance(layer, nn.Linear)}


def pretrained() -> Network:
    """Return the network as it was released, of which the last blocks learn."""
    return networks.build("minilm", (512,), 1, trainable=LAST).eval()


def build(cache: Cache, classes: Sequence[int], seed: int) -> Top:
    """Return the last blocks as they were released, and heads with random weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Top(cache, classes)
